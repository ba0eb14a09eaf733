"""The client against a server that misbehaves, over a real socket."""

import contextlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from harness.errors import NoDataError, PrometheusError, PrometheusUnavailableError, UsageError
from harness.metrics.catalogue import select
from harness.metrics.prometheus import client
from harness.metrics.prometheus.client import PrometheusServer
from harness.metrics.prometheus.exporter import WORKERS, export
from harness.metrics.promql import local
from tests.support.fake_metrics import RowList

MATRIX = [{"metric": {"pod": "a"}, "values": [[1800000000.1, "1.5"], [1800000000.2, "NaN"]]}]


def answer(result, **more):
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}, **more})


@contextlib.contextmanager
def served_by(handler):
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Quiet(BaseHTTPRequestHandler):
    def log_message(self, *_):
        """Say nothing."""


@contextlib.contextmanager
def serving(body, status=200, delay_s=0.0, meeting=None):
    seen = []

    class Handler(Quiet):
        def do_GET(self):
            seen.append((urlsplit(self.path).path, parse_qs(urlsplit(self.path).query), dict(self.headers)))
            time.sleep(delay_s)
            if meeting:
                meeting.wait()
            with contextlib.suppress(OSError):
                self.send_response(status if isinstance(status, int) else next(status))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

    with served_by(Handler) as url:
        yield url, seen


def ask(url, timeout_s=2.0, **options):
    with PrometheusServer(url, timeout_s=timeout_s, **options) as server:
        return server.query_range("up", 1_800_000_000_100, 1_800_000_000_200, 100)


def test_times_are_sent_in_utc_milliseconds_and_every_call_has_its_timeout():
    with serving(answer(MATRIX)) as (url, seen):
        found = ask(url)
    path, query, _ = seen[0]
    assert path == "/api/v1/query_range"
    assert query["start"] == ["1800000000.100"]
    assert query["end"] == ["1800000000.200"]
    assert query["step"] == ["0.100"]
    assert query["timeout"] == ["2s"]
    assert found.series[0].times_ms.tolist() == [1_800_000_000_100, 1_800_000_000_200]
    assert found.series[0].values[0] == 1.5
    assert found.notes == ()


@pytest.mark.parametrize("values", [["0.1", "NaN", "3e+09"], ["-Inf", "7", "+Inf"]])
@pytest.mark.parametrize("separators", [(",", ":"), None], ids=["as Prometheus writes", "as a proxy may"])
def test_samples_are_the_same_however_they_are_written(values, separators):
    awkward = {"a": 'x,"values":[[1,"2"]],', "b": '\\"]]', "le": "+Inf"}
    result = [
        {"metric": awkward, "values": [[1800000000.1 + place, value] for place, value in enumerate(values)]},
        {"metric": {}, "values": [[1800000000, "8"]]},
    ]
    body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}, separators=separators)
    with serving(body) as (url, _):
        first, second = ask(url).series
    assert first.labels == awkward
    assert first.times_ms.tolist() == [1_800_000_000_100, 1_800_000_001_100, 1_800_000_002_100]
    np.testing.assert_array_equal(first.values, [float(value) for value in values])
    assert (second.labels, second.times_ms.tolist(), second.values.tolist()) == ({}, [1_800_000_000_000], [8.0])


def test_what_the_server_remarks_is_kept_and_not_carried_over():
    remarks = {"warnings": ["store A did not answer"], "infos": ["not a counter"]}
    with serving(answer(MATRIX, **remarks)) as (url, _), PrometheusServer(url) as server:
        assert server.query("up", 1.0).notes == ("store A did not answer", "not a counter")
    with serving(answer(MATRIX)) as (url, _):
        assert ask(url).notes == ()


def test_a_server_that_does_not_answer_costs_one_timeout_and_no_retry():
    with serving(answer(MATRIX), delay_s=120.0) as (url, seen):
        begun_s = time.monotonic()
        with pytest.raises(PrometheusError, match=r"did not answer within 0\.2 s"):
            ask(url, timeout_s=0.2)
        assert time.monotonic() - begun_s < 60
        assert len(seen) == 1


@pytest.mark.parametrize(
    ("body", "status", "match"),
    [
        (answer([]), 200, "nothing that matches up"),
        ("<html>please log in</html>", 200, "not a Prometheus response"),
        (json.dumps({"status": "success"}), 200, "not a Prometheus response"),
        (json.dumps({"data": {"result": [1800000000, "3"]}}), 200, "neither a vector nor a matrix"),
        (answer([{"metric": {}, "values": [[1, "x"]]}]), 200, "neither a vector nor a matrix"),
        (
            json.dumps({"status": "error", "error": "parse error: bad"}),
            400,
            r"refused up: HTTP Status Code 400: parse error: bad$",
        ),
        (
            json.dumps({"kind": "Status", "message": 'no endpoints available for service "prometheus"', "code": 503}),
            503,
            r'refused up: HTTP Status Code 503: no endpoints available for service "prometheus"$',
        ),
        ("[]", 500, r"refused up: HTTP Status Code 500: b'\[\]'$"),
        ("x" * 5000, 503, r"503.*\.\.\.$"),
    ],
)
def test_bad_answers_are_errors_that_say_so(body, status, match):
    with serving(body, status) as (url, seen):
        expected = NoDataError if "nothing" in match else PrometheusError
        with pytest.raises(expected, match=match) as caught:
            ask(url)
        assert len(seen) == 1
    assert len(str(caught.value)) < 700


def test_a_refusal_just_after_a_failure_is_of_an_api_server_that_has_not_loaded_its_rules_yet(monkeypatch):
    with serving("no", iter([403, 503, 403, 401, 403])) as (url, _), PrometheusServer(url, timeout_s=2.0) as server:

        def found():
            with pytest.raises(PrometheusError) as caught:
                server.query("up")
            return caught.type

        assert [found() for _ in range(4)] == [PrometheusError, *3 * [PrometheusUnavailableError]]
        monkeypatch.setattr(client, "SETTLE_S", 0.0)
        assert found() is PrometheusError


def test_headers_that_are_not_accepted_are_renewed_once():
    keys, renewed = ["old"], []

    def renew():
        renewed.append(keys.pop())
        keys.append("new")

    access = {"headers": lambda: {"X-Key": keys[0]}, "renew": renew}
    with serving(answer(MATRIX), iter([401, 200])) as (url, seen):
        assert ask(url, **access).series
        assert [headers["X-Key"] for _, _, headers in seen] == ["old", "new"]
    with serving("no", iter([401, 401, 403])) as (url, seen):
        for _ in range(2):
            with pytest.raises(PrometheusError):
                ask(url, **access)
        assert (len(seen), renewed) == (3, ["old", "new"])


def test_no_server():
    with pytest.raises(PrometheusError, match="cannot be reached") as caught:
        ask("http://127.0.0.1:9")
    assert caught.value.__cause__ is not None


def test_an_export_from_a_server_that_hangs_ends_after_one_timeout():
    with serving(answer(MATRIX), delay_s=5.0) as (url, seen), PrometheusServer(url, timeout_s=0.3) as server:
        with pytest.raises(PrometheusError, match="did not answer within"):
            export(
                server,
                metrics=select("all"),
                dialect=local("replicas"),
                start_s=1_800_000_000,
                rows=10,
                step_s=1,
                window_s=4,
                sink=RowList(),
            )
        assert len(seen) <= 2 * WORKERS  # of ten queries for a start


def test_the_whole_answer_has_to_be_there_in_time():
    class Dripping(Quiet):
        def do_GET(self):
            with contextlib.suppress(OSError):
                self.send_response(200)
                self.send_header("Content-Length", "1000000")
                self.end_headers()
                while self.wfile.write(b"x"):  # until the client hangs up
                    time.sleep(0.02)

    with served_by(Dripping) as url, pytest.raises(PrometheusError, match=r"did not answer within 0\.2 s"):
        ask(url, timeout_s=0.2)


def test_an_answer_that_would_fill_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr(client, "MOST_ANSWER_BYTES", 1 << 20)
    with serving("x" * (1 << 21)) as (url, _), pytest.raises(PrometheusError, match="more than 1 MiB"):
        ask(url)


def test_a_label_that_is_a_number_is_its_text():
    with serving(answer([{"metric": {"pod": 7}, "values": [[1, "2"]]}])) as (url, _):
        assert ask(url).series[0].labels == {"pod": "7"}
    unlabelled = answer([{"metric": ["pod"], "values": [[1, "2"]]}])
    with serving(unlabelled) as (url, _), pytest.raises(PrometheusError, match="neither a vector"):
        ask(url)


def test_a_password_in_the_address_is_never_shown():
    address = "http://me:s%40cret@127.0.0.1:9/prometheus@2"
    with pytest.raises(PrometheusError, match=r"http://127\.0\.0\.1:9/prometheus@2 cannot") as caught:
        ask(address)
    assert "cret" not in str(caught.value)
    assert "cret" not in repr(PrometheusServer(address))


def test_headers_are_sent_and_never_shown():
    with serving(answer(MATRIX)) as (url, seen):
        ask(url, headers={"Authorization": "Bearer secret"})
        assert seen[0][2]["Authorization"] == "Bearer secret"
        assert "secret" not in repr(PrometheusServer(url, headers={"Authorization": "Bearer secret"}))


def test_threads_do_not_share_a_connection():
    all_at_once = threading.Barrier(4, timeout=60)  # over one connection, one would be asked after another
    with (
        serving(answer(MATRIX), meeting=all_at_once) as (url, _),
        PrometheusServer(url, timeout_s=120) as server,
        ThreadPoolExecutor(4) as threads,
    ):
        assert len([found.series for found in threads.map(server.query, ["up"] * 4, [1.0] * 4)]) == 4
    assert not all_at_once.broken


@pytest.mark.parametrize(
    "url", ["ftp://x", "127.0.0.1:9090", "http://", "http://[::1", "http://127.0.0.1:99999", "http://user:secret@:1"]
)
def test_what_is_no_address_is_refused_before_anything_is_asked(url):
    with pytest.raises(UsageError, match="is not an address of a Prometheus server") as refused:
        PrometheusServer(url)
    assert "secret" not in str(refused.value)
