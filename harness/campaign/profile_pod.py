"""In the pod of a Job: measure a profile, and hand out each point once it is measured.

Beside HTTP's ``/health`` there are ``/status``, which says how far it is, and ``/points/NAME``, the point's folder as a tar archive.
What is to be measured comes in the variable PROFILE_GIVEN. When all is measured it stays for LINGER_SECONDS, to be fetched.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from harness.backends.kubernetes.objects import PROFILE_GIVEN
from harness.campaign.profile import Profile, begin
from harness.errors import HarnessError
from harness.results.files import atomic_write
from harness.results.profile import FIGURES, POINTS, Plan, Point
from harness.results.provenance import collect
from harness.spec.model import StrictModel

_LOG = logging.getLogger(__name__)
STATUS = "status"


class Given(StrictModel):
    """What the pod is told.

    Attributes:
        plan: what to measure.
        known: points that were fetched from an earlier pod, and are not measured again.
    """

    plan: Plan
    known: list[Point]


class _Quiet(SimpleHTTPRequestHandler):
    """Files of one folder, and no line in the log for each."""

    def log_message(self, *_: Any) -> None:
        """Nothing: the log is the profile's."""


class Pod:
    """One profile in this pod.

    Args:
        given: what to measure.
        folder: to work in.
    """

    def __init__(self, given: Given, folder: Path) -> None:
        self._known = {point.name for point in given.known}
        self._profile, self._public = folder / "profile", folder / "public"
        self._facts: dict[str, Any] = {"replica": 0, "finished": False, "error": "", "points": [], "lines": []}
        provenance = collect()
        self._facts["provenance"] = provenance.model_dump(mode="json")
        begin(self._profile, given.plan.model_copy(update={"provenance": provenance}))
        for point in given.known:
            (self._profile / POINTS / point.name).mkdir()
            atomic_write(self._profile / POINTS / point.name / FIGURES, point.model_dump_json())
        (self._public / POINTS).mkdir(parents=True)
        (self._public / "health").write_text("serving\n", encoding="utf-8")
        self._tell()

    def serve(self, port: int) -> ThreadingHTTPServer:
        """Hand out what there is from a thread of its own, until it is closed. Raises OSError."""
        server = ThreadingHTTPServer(("", port), partial(_Quiet, directory=str(self._public)))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def measure(self) -> None:
        """Measure what is not known; what went wrong is in the status."""
        try:
            Profile(self._profile, self._say).run()
        except HarnessError as error:
            self._facts["error"] = f"{error.message} {error.advice}".strip()
        self._facts["finished"] = True
        self._tell()

    def _say(self, line: str) -> None:
        """After each point."""
        _LOG.info(line)
        folders = [path for path in (self._profile / POINTS).iterdir() if not path.name.startswith(".")]
        for folder in sorted(folders):
            if folder.name not in self._known:
                self._known.add(folder.name)
                with tarfile.open(self._public / POINTS / folder.name, "w") as archive:
                    archive.add(folder, arcname="")
                self._facts["points"].append(folder.name)
        self._facts["lines"].append(line)
        self._tell()

    def _tell(self) -> None:
        atomic_write(self._public / STATUS, json.dumps(self._facts), replace=True)


def main() -> None:
    """Measure, and stay until the time is over or somebody ends it."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    enough = threading.Event()
    pod = Pod(Given.model_validate_json(os.environ[PROFILE_GIVEN]), Path(os.environ["REPLICA_DIR"]))
    server = pod.serve(int(os.environ["PORT"]))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        pod.measure()
        enough.wait(float(os.environ["LINGER_SECONDS"]))
    except KeyboardInterrupt:
        pass  # asked to end: what was measured was fetched, or is measured again
    finally:
        server.server_close()


if __name__ == "__main__":
    main()
