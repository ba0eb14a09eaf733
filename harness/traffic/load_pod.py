"""In a pod of a cluster: one shard of the load, and its log handed out when it is told to finish.

``/health`` says that it sends, ``/finish`` has it send no more, waits for the last answers and says how it ended, ``/requests`` is the
log (``harness.traffic.requests_log``). The whole plan comes in the variable LOAD_PLAN, which shard this is in REPLICA, of LOAD_SHARDS.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from harness.traffic.generator import LoadPlan

END_S = 20.0


class Shard:
    """The process that sends, beside which this one answers.

    Args:
        plan: of all shards.
        index: which this is.
        of: how many there are.
        folder: for the log.
    """

    def __init__(self, plan: LoadPlan, index: int, of: int, folder: Path) -> None:
        self.log = folder / "requests.bin"
        path = folder / "plan.json"
        path.write_text(plan.shard(index, of, log=str(self.log)).to_json(), encoding="utf-8")
        self._process = subprocess.Popen([sys.executable, "-m", "harness.traffic", str(path), str(os.getpid())])
        self._lock = threading.Lock()

    @property
    def sends(self) -> bool:
        """Whether it still does."""
        return self._process.poll() is None

    def finish(self) -> int | None:
        """End it; its exit code, None when it did not end in time. Idempotent."""
        with self._lock:
            if self.sends:
                self._process.terminate()
            try:
                return self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                return None


def handler(shard: Shard) -> type[BaseHTTPRequestHandler]:
    """What answers for a shard."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer one request."""
            path = f"/{self.path.partition('?')[0].strip('/')}"  # who hands it on may add to it
            if path == "/health":
                self._say(200 if shard.sends else 503, b"{}")
            elif path == "/status":
                self._say(200, json.dumps({"sends": shard.sends}).encode())
            elif path == "/finish":
                self._say(200, json.dumps({"exit_code": shard.finish()}).encode())
            elif path == "/requests":
                self._say(200, shard.log.read_bytes() if shard.log.exists() else b"")
            else:
                self._say(404, b"{}")

        def log_message(self, *_: object) -> None:
            """Nothing: the log of the pod is the generator's."""

        def _say(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def main() -> None:
    """Send until told to finish, and stay until the pod is ended."""
    plan = LoadPlan.parse(os.environ["LOAD_PLAN"])
    shard = Shard(plan, int(os.environ["REPLICA"]), int(os.environ["LOAD_SHARDS"]), Path(os.environ["REPLICA_DIR"]))
    server = ThreadingHTTPServer(("", int(os.environ["PORT"])), handler(shard))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        shard.finish()
    finally:
        server.server_close()


if __name__ == "__main__":
    main()
