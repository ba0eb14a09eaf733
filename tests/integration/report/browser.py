"""A headless Chromium, spoken to through its DevTools protocol: what a reader's browser would see."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import websocket

START_TIMEOUT_S = 120
ANSWER_TIMEOUT_S = 120
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
]


def chromium() -> str | None:
    """Path of the browser; None where there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@dataclass
class Page:
    """One tab, with everything it said since the last ``open``.

    Attributes:
        errors: console errors and uncaught exceptions.
        requests: addresses asked for, other than ``data:`` ones.
    """

    socket: websocket.WebSocket
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    loaded: bool = False
    _number: int = 0

    def open(self, address: str) -> None:
        """Load a page to its end."""
        self.errors, self.requests, self.loaded = [], [], False
        self.call("Page.navigate", url=address)
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        while not self.loaded:
            assert time.monotonic() < deadline_s, f"{address} did not load"
            self._listen()

    def evaluate(self, script: str) -> Any:
        """Value of an expression, awaited when it is a promise."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One call of the protocol."""
        self._number += 1
        number = self._number
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = self._listen()
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])

    def _listen(self) -> dict[str, Any]:
        message = json.loads(self.socket.recv())
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in {"error", "warning"}:
            self.errors.append(str(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in {"error", "warning"}:
            self.errors.append(str(parameters["entry"]))
        elif method == "Network.requestWillBeSent" and not parameters["request"]["url"].startswith("data:"):
            self.requests.append(parameters["request"]["url"])
        return dict(message)


@contextmanager
def browser(program: str) -> Iterator[Page]:
    """A browser of its own with one empty tab; it ends with the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            socket = websocket.create_connection(_tab(Path(profile), process), timeout=ANSWER_TIMEOUT_S)
            try:
                page = Page(socket)
                for domain in ("Page", "Runtime", "Log", "Network"):
                    page.call(f"{domain}.enable")
                yield page
            finally:
                socket.close()
        finally:
            process.terminate()
            process.wait(60)


def _tab(profile: Path, process: subprocess.Popen[bytes]) -> str:
    """Address of the tab's socket, asked of the browser's own."""
    port_file = profile / "DevToolsActivePort"
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not (port_file.exists() and len(port_file.read_text().splitlines()) == 2):
        assert process.poll() is None, "the browser ended at once"
        assert time.monotonic() < deadline_s, "the browser did not open its port"
        time.sleep(0.05)
    port, path = port_file.read_text().splitlines()
    socket = websocket.create_connection(f"ws://127.0.0.1:{port}{path}", timeout=ANSWER_TIMEOUT_S)
    try:
        page = Page(socket)
        targets = page.call("Target.getTargets")["targetInfos"]
    finally:
        socket.close()
    (tab,) = [target["targetId"] for target in targets if target["type"] == "page"]
    return f"ws://127.0.0.1:{port}/devtools/page/{tab}"
