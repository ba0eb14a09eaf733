"""In a pod of a cluster: one shard of the load, and its log handed out when it is told to finish.

``/health`` says that it sends, ``/finish`` has it send no more, waits for the last answers and says how it ended, ``/requests`` is the
log. The whole plan comes in the variable LOAD_PLAN, which shard this is in REPLICA, of LOAD_SHARDS.
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


class Shard(ThreadingHTTPServer):
    """Answers on a port beside the process that sends shard ``index`` of so many, whose log is in ``folder``."""

    def __init__(self, port: int, plan: LoadPlan, index: int, of: int, folder: Path) -> None:
        super().__init__(("", port), _ShardHandler)
        self.log = folder / "requests.bin"
        path = folder / "plan.json"
        path.write_text(plan.shard(index, of, log=str(self.log)).to_json(), encoding="utf-8")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.traffic.generator", str(path), str(os.getpid())]
        )
        self._lock = threading.Lock()

    @property
    def sends(self) -> bool:
        """Whether it does: its log is made when its imports are done, just before the first request."""
        return self._process.poll() is None and self.log.exists()

    def finish(self) -> int | None:
        """End what sends; its exit code, None when it did not end in time. Idempotent."""
        with self._lock:
            if self._process.poll() is None:
                self._process.terminate()
            try:
                return self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                return None


class _ShardHandler(BaseHTTPRequestHandler):
    server: Shard

    def do_GET(self) -> None:
        shard, status = self.server, 200
        path = f"/{self.path.partition('?')[0].strip('/')}"  # who hands it on may add to it
        body = b"{}"
        if path == "/health":
            status = 200 if shard.sends else 503
        elif path == "/status":
            body = json.dumps({"sends": shard.sends}).encode()
        elif path == "/finish":
            body = json.dumps({"exit_code": shard.finish()}).encode()
        elif path == "/requests":
            body = shard.log.read_bytes() if shard.log.exists() else b""
        else:
            status = 404
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: the log of the pod is the generator's."""


def main() -> None:
    """Send until told to finish, and stay until the pod is ended."""
    environment = os.environ
    plan, folder = LoadPlan.parse(environment["LOAD_PLAN"]), Path(environment["REPLICA_DIR"])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Shard(
        int(environment["PORT"]), plan, int(environment["REPLICA"]), int(environment["LOAD_SHARDS"]), folder
    ) as shard:
        try:
            shard.serve_forever()
        except KeyboardInterrupt:
            shard.finish()


if __name__ == "__main__":
    main()
