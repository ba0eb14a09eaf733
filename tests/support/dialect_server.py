"""A server for each way to answer of ``dialects.yaml``, and what really happened."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.support.raw_server import CLOSE, HOLD, RawServer, chunked, whole

DEFAULT_KINDS = {True: "text/event-stream", False: "application/json"}


@dataclass(frozen=True)
class Answered:
    """One entry of the list; its fields are said at its head."""

    name: str
    program: str
    seen: str
    sends: str
    happened: dict[str, Any]
    run: str = ""
    protocol: str = "openai-chat"
    kind: str = ""
    stream: bool = True
    cut: bool = False
    hold: bool = False
    close: bool = False
    line_end: str = "\n"
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def server(self) -> dict[str, Any]:
        """The fields of a campaign file's server."""
        streams = {} if self.protocol == "oip" else {"stream": self.stream}
        return {"protocol": self.protocol, "model": "m", **streams, **self.settings}

    @property
    def events(self) -> list[bytes]:
        """Each with the end that its framing has."""
        end = 2 if self.content_type in {"text/event-stream", "text/plain"} and ":" in self.sends.split()[0] else 1
        lines = [line for line in self.sends.split("\n") if line]
        return [line.replace("␤", self.line_end).encode() + end * self.line_end.encode() for line in lines]

    @property
    def content_type(self) -> str:
        """Of the answer."""
        return self.kind or DEFAULT_KINDS[self.stream and self.protocol != "oip"]

    @property
    def first_pieces(self) -> list[int]:
        """Which piece of the answer each event ends with; the first one is the head."""
        return [(2 if self.cut else 1) * (number + 1) for number in range(len(self.events))]

    def answering(self) -> RawServer:
        """The server."""
        if self.content_type == "application/json":
            return RawServer(whole(b"".join(self.events), f"Content-Type: {self.content_type}"))
        pieces = [part for event in self.events for part in (halves(event) if self.cut else [event])]
        answer = chunked(*pieces, kind=self.content_type, end=not (self.hold or self.close))
        return RawServer([*answer, *([HOLD] if self.hold else []), *([CLOSE] if self.close else [])])


def halves(event: bytes) -> list[bytes]:
    """Cut within a character that has several bytes, where there is one."""
    at = next((number + 1 for number, byte in enumerate(event) if byte > 0x7F), len(event) // 2)
    return [event[:at], event[at:]]


def read() -> list[Answered]:
    """The whole list."""
    entries = yaml.safe_load((Path(__file__).parent / "dialects.yaml").read_text(encoding="utf-8"))
    return [Answered(**entry) for entry in entries]
