"""A trace in Mooncake's form: when requests came and how long they and their answers were, to be asked again."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.replica.errors import CannotBeMetError

NS_PER_MS = 1_000_000
MS_PER_S = 1000
MOST_TOKENS = 1_000_000
MOST_PER_S = 100_000
MOST_MS = 1e15
"""Beyond any clock, those from 1970 on among them; a larger whole number may be no float."""
_FIELDS = ("timestamp", "input_length", "output_length")


@dataclass(frozen=True, slots=True)
class Request:
    """One line: milliseconds after the first one, and tokens in and out."""

    at_ms: float
    input_tokens: int
    output_tokens: int


def read(path: Path, factor: float) -> list[Request]:
    """The requests of a trace, ``factor`` times as fast. Raises CannotBeMetError with what is at fault."""
    found: list[Request] = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    found.append(_request(f"{path}:{number}", line))
                    if found[-1].at_ms < found[max(len(found) - 2, 0)].at_ms:
                        raise CannotBeMetError(
                            f"{path}:{number}: it came before the line above it: sort the trace by time."
                        )
    except (OSError, UnicodeDecodeError) as error:
        raise CannotBeMetError(f"the trace {path} cannot be read: {error}.") from error
    if not found or found[-1].at_ms <= found[0].at_ms:
        raise CannotBeMetError(f"the trace {path} needs requests at two times or more, and has {len(found)} in all.")
    begin_ms = found[0].at_ms
    moved = [Request((each.at_ms - begin_ms) / factor, each.input_tokens, each.output_tokens) for each in found]
    if len(moved) * MS_PER_S > MOST_PER_S * moved[-1].at_ms:
        raise CannotBeMetError(
            f"the trace {path} has {len(moved)} requests in {moved[-1].at_ms:.4g} ms at factor {factor:g}, more than "
            f"{MOST_PER_S} a second; `timestamp` is in milliseconds."
        )
    return moved


def arrivals(requests: Sequence[Request]) -> Iterator[int]:
    """Nanoseconds after the start at which they are meant to be sent; endless: after a mean interval from the beginning again."""
    last_ms = requests[-1].at_ms
    round_ms = last_ms + last_ms / (len(requests) - 1)
    for number in itertools.count():
        for each in requests:
            yield round((number * round_ms + each.at_ms) * NS_PER_MS)


def _request(where: str, line: str) -> Request:
    try:
        entry = json.loads(line)
        at_ms, *lengths = (entry[name] for name in _FIELDS)
    except (ValueError, TypeError, KeyError) as error:
        raise CannotBeMetError(
            f"{where}: a line of a trace is a JSON object with {', '.join(_FIELDS)}: {line:.200}"
        ) from error
    if type(at_ms) not in (int, float) or not 0 <= at_ms <= MOST_MS:
        raise CannotBeMetError(f"{where}: `timestamp` is in milliseconds from 0 to {MOST_MS:g}, not {at_ms!r:.40}.")
    if not all(type(length) is int and 1 <= length <= MOST_TOKENS for length in lengths):
        raise CannotBeMetError(f"{where}: lengths are whole tokens from 1 to {MOST_TOKENS}, not {lengths!r:.80}.")
    return Request(float(at_ms), *lengths)
