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
from pathlib import Path

from harness.traffic.endpoint import Endpoint, Response, Routes
from harness.traffic.generator import LoadPlan

END_S = 20.0


class Shard:
    """The process that sends shard ``index`` of so many, whose log is in ``folder``."""

    def __init__(self, plan: LoadPlan, index: int, of: int, folder: Path) -> None:
        self._log, path = folder / "requests.bin", folder / "plan.json"
        path.write_text(plan.shard(index, of, log=str(self._log)).model_dump_json(), encoding="utf-8")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.traffic.generator", str(path), str(os.getpid())]
        )
        self._lock = threading.Lock()
        self.routes: Routes = {
            "/health": lambda: Response(200 if self._sends() else 503, b"{}"),
            "/status": lambda: Response(200, json.dumps({"sends": self._sends()}).encode()),
            "/finish": lambda: Response(200, json.dumps({"exit_code": self.finish()}).encode()),
            "/requests": lambda: Response(200, self._log.read_bytes() if self._log.exists() else b""),
        }

    def finish(self) -> int | None:
        """End what sends; its exit code, None when it did not end in time. Idempotent."""
        with self._lock:
            if self._process.poll() is None:
                self._process.terminate()
            try:
                return self._process.wait(END_S)
            except subprocess.TimeoutExpired:
                return None

    def _sends(self) -> bool:
        """Whether it does: its log is made when its imports are done, just before the first request."""
        return self._process.poll() is None and self._log.exists()


def main() -> None:
    """Send until told to finish, and stay until the pod is ended."""
    environment, stopping = os.environ, threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    plan, folder = LoadPlan.model_validate_json(environment["LOAD_PLAN"]), Path(environment["REPLICA_DIR"])
    shard = Shard(plan, int(environment["REPLICA"]), int(environment["LOAD_SHARDS"]), folder)
    Endpoint("", int(environment["PORT"]), shard.routes)
    stopping.wait()
    shard.finish()


if __name__ == "__main__":
    main()
