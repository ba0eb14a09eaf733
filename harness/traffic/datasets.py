"""Data files as people have them: their requests in order, and what is said of a file before it is used.

A file is a stream: of one with times no more than REORDERED records are in memory, however long it is. Within so many they
may be out of order; they are sorted, and counted.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from harness.errors import LoadError, counted, duration
from harness.spec.model import StrictModel
from harness.spec.server import CHATS, LANGUAGE, ServerSpec
from harness.traffic.files import READ, Record, records
from harness.traffic.protocols import UNKNOWN
from harness.traffic.shapes import (
    FAILED,
    NO_QUESTION,
    UNREADABLE,
    Shape,
    Turn,
    UnusableError,
    WrongValueError,
    shape_of,
    turns_of,
)

REORDERED = 1 << 15
MOST_PER_S = 100_000
MOST_UNREADABLE = 0.01
"""Share of the records: with more, the file is not what it was taken for."""
MS_PER_S = 1000
_REASONS = {FAILED: "failed (0 tokens)", NO_QUESTION: "without a question"}
SCALE_MS = {"ms": 1.0, "s": 1000.0}


@dataclass(slots=True)
class Conversation:
    """The requests that follow each other: one, or the turns of a session. ``at_ms`` is 0 in a file without times."""

    line: int
    turns: list[Turn]
    at_ms: float = 0.0
    session: str = ""


@dataclass(slots=True)
class Tally:
    """What was read, and what was not."""

    records: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    first_unreadable: str = ""
    out_of_order: int = 0


class Dataset:
    """A file of requests; ``timed``: they come at its times, in ``unit`` where the file does not say it.

    Raises LoadError for a file that is not read, here or as its requests are taken.
    """

    def __init__(self, path: Path, unit: str | None = None, *, timed: bool = False) -> None:
        self.path, self._timed = path, timed
        first = next((record.value for record in records(path) if isinstance(record.value, dict)), {})
        self.shape = shape_of(first) if first else Shape("unknown", "ms")
        self.unit = unit or self.shape.unit
        self.unit_from = "the campaign file" if unit else f"the form of {self.shape.name}"
        if timed and not self.unit:
            raise LoadError(self._both_readings())

    def conversations(self, tally: Tally | None = None) -> Iterator[Conversation]:
        """Those of the file once, in the order of their times or of the file."""
        tally = tally or Tally()
        window: list[tuple[float, int, Conversation]] = []
        sessions: dict[str, Conversation] = {}
        latest_ms = given_ms = 0.0
        for record in records(self.path):
            tally.records += 1
            turns = self._turns(record, tally)
            name = str(record.value.get("session_id") or "") if turns else ""
            if name in sessions:
                sessions[name].turns += turns
                continue
            if not turns or not (conversation := self._begun(record, turns, tally)):
                continue
            if name:
                sessions[name], conversation.session = conversation, name
            tally.out_of_order += conversation.at_ms < latest_ms
            latest_ms = max(latest_ms, conversation.at_ms)
            if conversation.at_ms < given_ms:
                raise LoadError(
                    f"{self.path}:{record.line}: it came before a line that is {REORDERED:,} lines above or more; sort the file by time."
                )
            entry = (conversation.at_ms, record.line, conversation)
            if len(window) < REORDERED:
                heapq.heappush(window, entry)
                continue
            given_ms, _, earliest = heapq.heappushpop(window, entry)
            sessions.pop(earliest.session, None)
            yield earliest
        self._require_readable(tally)
        if not window:
            raise LoadError(f"{self.path} holds no request: all are dropped as {', '.join(tally.dropped)}.")
        yield from (conversation for _, _, conversation in sorted(window))

    def _turns(self, record: Record, tally: Tally) -> list[Turn]:
        """Those of a record; none of one that is dropped."""
        if record.fault:
            self._drop(record, UnusableError(UNREADABLE, record.fault), tally)
            return []
        try:
            return turns_of(record.value)
        except UnusableError as error:
            self._drop(record, error, tally)
            return []
        except (WrongValueError, OverflowError) as error:
            raise LoadError(f"{self.path}:{record.line}: {error}.") from error

    def _begun(self, record: Record, turns: list[Turn], tally: Tally) -> Conversation | None:
        if not self._timed:
            return Conversation(record.line, turns)
        if turns[0].at is None:
            self._drop(record, UnusableError(UNREADABLE, "timestamp is missing"), tally)
            return None
        return Conversation(record.line, turns, turns[0].at * SCALE_MS[self.unit])

    def _drop(self, record: Record, error: UnusableError, tally: Tally) -> None:
        tally.dropped[error.reason] += 1
        if error.reason == UNREADABLE and not tally.first_unreadable:
            tally.first_unreadable = f"{self.path}:{record.line}: {error}"

    def _require_readable(self, tally: Tally) -> None:
        bad = tally.dropped[UNREADABLE]
        if bad > MOST_UNREADABLE * tally.records:
            raise LoadError(
                f"{tally.first_unreadable}; {bad} of {tally.records} records cannot be read. A file of requests has {READ}: each record "
                "with a text (`prompt`), `messages`, `body`, `conversations`, `turns`, or `input_length` and `output_length`; as a trace "
                "with its `timestamp` too."
            )

    def _both_readings(self) -> str:
        """Why the times of a file are not guessed, with what they would mean in either unit."""
        times = [float("inf"), float("-inf")]
        number = 0
        for record in records(self.path):
            for turn in self._turns(record, Tally())[:1]:
                if turn.at is not None:
                    number += 1
                    times = [min(times[0], turn.at), max(times[1], turn.at)]
        span = max(times[1] - times[0], 0.0)
        as_ms, as_s = (f"{duration(span * scale / MS_PER_S)}" for scale in SCALE_MS.values())
        return (
            f"{self.path} does not say the unit of its timestamps: its {number} requests come within {as_ms} if they are milliseconds, and "
            f"within {as_s} if they are seconds. Say it in `trace`: `unit: ms` or `unit: s`."
        )


class LoadFacts(StrictModel):
    """What a file of requests holds, as it is used."""

    file: str = Field(description="Its name.")
    sha256: str
    shape: str = Field(description="Whose form it has.")
    requests: int = Field(description="Of one pass through the file, without those dropped.")
    sessions: int = Field(description="Conversations of more than one request.")
    dropped: dict[str, int] = Field(description="Records that are not asked, by reason.")
    first_unreadable: str = Field(default="", description="The first that cannot be read, and why.")
    out_of_order: int = Field(default=0, description="Records that came before one above them; they are sorted.")
    same_time: int = Field(default=0, description="Starts at the time of the one before.")
    unit: str | None = Field(default=None, description="Of the timestamps; None: they are not used.")
    unit_from: str | None = Field(default=None, description="Where that was said.")
    length_s: float | None = Field(
        default=None, description="From the first start to the last, at the factor asked for."
    )
    mean_per_s: float | None = Field(default=None, description="Starts per second, of requests or of sessions.")
    highest_per_s: float | None = Field(default=None, description="Most starts in a second counted from the first.")
    input_tokens: float | None = Field(default=None, description="Mean, where the file says it.")
    output_tokens: float | None = Field(default=None, description="Mean, where the file says it.")

    def in_words(self) -> str:
        """For people, in a line."""
        sentences = [f"{self.file} ({self.shape}): {counted(self.requests, 'request')}"]
        if self.sessions:
            sentences.append(f"{counted(self.sessions, 'session')} of more than one")
        if self.length_s is not None:
            sentences.append(
                f"{duration(self.length_s)}, mean {self.mean_per_s:.4g}/s, highest {self.highest_per_s:.4g}/s"
            )
            sentences.append(f"timestamps in {self.unit} by {self.unit_from}")
        if self.input_tokens is not None and self.output_tokens is not None:
            sentences.append(f"{self.input_tokens:.0f} tokens in and {self.output_tokens:.0f} out on average")
        sentences += [f"dropped {number} {_REASONS.get(reason, reason)}" for reason, number in self.dropped.items()]
        if self.out_of_order:
            sentences.append(f"{self.out_of_order} out of order, sorted")
        return "; ".join(sentences) + "."


def most_turns(server: ServerSpec, shape: Shape) -> int | None:
    """How many turns of a conversation are asked; None: all."""
    sessions = server.requests.sessions
    return sessions.turns if sessions else None if shape.sessions else 1


def load_facts(server: ServerSpec) -> LoadFacts | None:
    """What the file of requests or the trace of a server holds, all of it read; None without a file. Raises LoadError."""
    trace, file = server.trace, server.requests.file
    if trace is None and file is None:
        return None
    path = Path(trace.file if trace else file or "")
    try:
        stat = path.stat()
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror}.") from error
    turns = server.requests.sessions.turns if server.requests.sessions else None
    facts, content = _read_facts(
        path, (stat.st_mtime_ns, stat.st_size), trace.unit if trace else None, trace.factor if trace else 0.0, turns
    )
    if content["messages"] and server.protocol not in CHATS:
        raise LoadError(
            f"{path} has `messages`, which protocol {server.protocol.value} does not send: use a protocol of a chat, e.g. openai-chat."
        )
    url = next((name for name in content if name.startswith("/") and not server.target.endswith(name)), None)
    if url and server.protocol in LANGUAGE:
        raise LoadError(
            f"{path} asks {url}, and the server is asked at {server.target}: use the protocol or `path` that fits."
        )
    return facts


@functools.lru_cache(maxsize=16)
def _read_facts(
    path: Path, _version: tuple[int, int], unit: str | None, factor: float, turns: int | None
) -> tuple[LoadFacts, Counter[str]]:
    """Those of one pass, and how many requests have each kind of content. ``factor`` 0: the times are not used."""
    dataset, tally, content = Dataset(path, unit, timed=bool(factor)), Tally(), Counter[str]()
    inputs, outputs = _Mean(), _Mean()
    most = turns or (None if dataset.shape.sessions else 1)
    rate = _Rate(factor)
    requests = sessions = 0
    for conversation in dataset.conversations(tally):
        asked_turns = conversation.turns[:most]
        requests += len(asked_turns)
        sessions += len(asked_turns) > 1
        for turn in asked_turns:
            inputs.add(turn.input_tokens)
            outputs.add(turn.output_tokens)
            if turn.messages is not None:
                content["messages"] += 1
            elif turn.url:
                content[turn.url] += 1
        rate.add(conversation.at_ms)
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    facts = LoadFacts(
        file=path.name,
        sha256=digest,
        shape=dataset.shape.name,
        requests=requests,
        sessions=sessions,
        dropped=dict(tally.dropped),
        first_unreadable=tally.first_unreadable,
        out_of_order=tally.out_of_order,
        input_tokens=inputs.value,
        output_tokens=outputs.value,
    )
    return (facts.model_copy(update=rate.facts(dataset)) if factor else facts), content


class _Mean:
    """Of those that are known."""

    def __init__(self) -> None:
        self._sum = self._number = 0

    def add(self, count: int) -> None:
        if count != UNKNOWN:
            self._sum += count
            self._number += 1

    @property
    def value(self) -> float | None:
        return self._sum / self._number if self._number else None


class _Rate:
    """How often conversations begin, as they are told in order."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._number = self._same = self._busy = self._most = 0
        self._begin_ms, self._last_ms, self._second = 0.0, -1.0, -1

    def add(self, at_ms: float) -> None:
        if not self._number:
            self._begin_ms = at_ms
        self._number += 1
        self._same += at_ms == self._last_ms
        self._last_ms = at_ms
        if self._factor:
            second = int((at_ms - self._begin_ms) / self._factor // MS_PER_S)
            self._busy = self._busy + 1 if second == self._second else 1
            self._second, self._most = second, max(self._most, self._busy)

    def facts(self, dataset: Dataset) -> dict[str, Any]:
        """Raises LoadError where there is no rate, or one that cannot be."""
        length_s = (self._last_ms - self._begin_ms) / self._factor / MS_PER_S
        if not length_s > 0:
            raise LoadError(
                f"the trace {dataset.path} needs requests at two times or more, and has {self._number} in all."
            )
        if self._number > MOST_PER_S * length_s:
            raise LoadError(
                f"the trace {dataset.path} has {self._number} requests in {length_s * MS_PER_S:.4g} ms at factor {self._factor:g}, more than "
                f"{MOST_PER_S} a second; its timestamps are taken for {dataset.unit} by {dataset.unit_from}."
            )
        return {
            "unit": dataset.unit,
            "unit_from": dataset.unit_from,
            "length_s": length_s,
            "mean_per_s": (self._number - 1) / length_s,
            "highest_per_s": float(self._most),
            "same_time": self._same,
        }
