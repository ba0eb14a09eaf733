"""A page of metrics, line by line: Prometheus's text format 0.0.4, OpenMetrics, and what servers send in the name of either.

Not prometheus_client's parsers, although the tests hold this to them: they hold the interpreter of a process whose latencies are
measured for 29 ms (OpenMetrics: 57) a page of 1,400 lines, this for 3. Where one is read each second, 1% of the requests are sent
over 21 ms (40) late, with this over 2 (``python -m tests.benchmarks.metrics_page --late``). They also give up a page for one line.
Either format is read by its lines, whatever content type it is sent with.
"""

from __future__ import annotations

import re

_LABELS = r'\{[^"{}]*+(?:"(?:[^"\\]|\\.)*+"[^"{}]*+)*+\}'
_LINE = re.compile(
    rf"((?:[A-Za-z_:][\w:]*+(?:{_LABELS})?|{_LABELS}))[ \t]+([^\s{{}}]++)(?:[ \t]+-?[\d.]++)?[ \t]*+(?:#.*)?"
)
"""A series (its name may be quoted, among its labels) and its value; a timestamp and an exemplar may follow."""


def split(line: str) -> tuple[str, str] | None:
    """Series and value of a line as they are written; None where it cannot be read, as one of a native histogram."""
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    try:
        float(match[2])
    except ValueError:
        return None
    return match[1], match[2]


def read(page: str) -> tuple[dict[str, str], list[str]]:
    """The values of a page by series, and the lines that cannot be read. Raises ValueError where it holds no value at all."""
    values: dict[str, str] = {}
    unread = []
    for line in page.split("\n"):
        if line.startswith("#") or not (line := line.strip()):
            continue
        if sample := split(line):
            values[sample[0]] = sample[1]
        else:
            unread.append(line)
    if unread and not values:
        raise ValueError(f"{unread[0][:80]!r} is not a line of Prometheus's text formats")
    return values, unread
