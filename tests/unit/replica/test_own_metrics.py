"""What an engine says of itself: read as it was said, kept where it changed, and never taken for unchanged when it was missing."""

import csv
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from harness.replica.engine.own_metrics import FILE_NAME, OwnMetrics
from harness.replica.errors import WorkloadError
from tests.support.processes import eventually

PAGE = """\
# HELP vllm:num_requests_running Number of requests.
vllm:num_requests_running{model_name="a} b"} 3.0 # {trace_id="t"} 1.0 1520879607.789
nv_inference_count{model="m",version="1"} 17 1700000000000
nv_native {count:24,sum:100,schema:0} 1700000000

{"http.server.duration",le="+Inf"} +Inf
nv_torn{model="m
# EOF
"""


@pytest.fixture
def serve():
    """A server that answers with one page after the other, the last one for ever; None: it fails."""
    servers = []

    def start(*pages, kind="application/openmetrics-text"):
        left = list(pages)

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                page = left.pop(0) if len(left) > 1 else left[0]
                self.server.asked.append(self.headers.get("X-Key"))
                self.send_response(503 if page is None else 200)
                self.send_header("Content-Type", kind)
                self.end_headers()
                self.wfile.write((page or "").encode())

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        servers[-1].asked = []
        threading.Thread(target=servers[-1].serve_forever, args=(0.02,), daemon=True).start()
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def url(server):
    return f"http://127.0.0.1:{server.server_address[1]}/metrics"


def test_a_line_is_written_where_something_changed_and_each_reading_is_told(serve, tmp_path):
    server = serve("a 1\nb 1\n", "a 2\nb 1\n", None, "a 2\nb 1\nc 1\n")
    with OwnMetrics(url(server), {"X-Key": "k"}, step_s=0.01, folder=tmp_path):
        assert eventually(lambda: len(server.asked) > 5)

    with (tmp_path / FILE_NAME).open(newline="") as file:
        rows = list(csv.DictReader(file))
    told = [(row["series"], row["value"]) for row in rows if row["series"] != "up"]
    assert told == [("a", "1"), ("b", "1"), ("a", "2"), ("c", "1")]
    ups = [row["value"] for row in rows if row["series"] == "up"]
    assert ups[:4] == ["1", "1", "0", "1"]
    assert len(ups) == len(server.asked)
    assert set(server.asked) == {"k"}
    assert [row["timestamp"] for row in rows] == sorted(row["timestamp"] for row in rows)


def test_a_line_that_cannot_be_read_is_left_out_counted_and_quoted_once(serve, tmp_path, capsys):
    server = serve(PAGE)
    with OwnMetrics(url(server), {}, step_s=0.01, folder=tmp_path):
        assert eventually(lambda: len(server.asked) > 3)

    with (tmp_path / FILE_NAME).open(newline="") as file:
        told = {row["series"]: row["value"] for row in csv.DictReader(file)}
    assert told == {
        "up": "1",
        'vllm:num_requests_running{model_name="a} b"}': "3.0",
        'nv_inference_count{model="m",version="1"}': "17",
        '{"http.server.duration",le="+Inf"}': "+Inf",
        "unread_lines": "2",
    }
    assert capsys.readouterr().err.count("nv_native {count:24") == 1


def test_a_page_to_log_in_is_no_metrics(serve, tmp_path):
    with pytest.raises(WorkloadError, match="a page in HTML, such as one to log in"):
        OwnMetrics(url(serve("<html>Sign in</html>", kind="text/html; charset=utf-8")), {}, step_s=1, folder=tmp_path)


def test_a_page_that_is_not_there_is_said_before_anything_is_measured(serve, tmp_path):
    with pytest.raises(
        WorkloadError, match=r"`server.metrics`: http://127.0.0.1:\d+/metrics gives no metrics \(HTTP 503"
    ):
        OwnMetrics(url(serve(None)), {}, step_s=1.0, folder=tmp_path)

    assert list(tmp_path.iterdir()) == []
