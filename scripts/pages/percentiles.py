"""Rows of a table that differ in a percentile alone, as one row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_PERCENTILE = re.compile(r"(?<![a-z])p([0-9]{2})(?![0-9])")
_SHARE = re.compile(r"\b[0-9]{2}% of ")


def merged(rows: Iterable[str]) -> Iterator[str]:
    """Lines of a Markdown table by the name in their first cell: ``ttft_p50_ms`` and ``ttft_p99_ms`` become ``ttft_{p50,p99}_ms``."""
    alike: dict[str, list[str]] = {}
    for row in rows:
        named = _PERCENTILE.search(row.partition(" | ")[0])
        shared = _PERCENTILE.sub("p{}", _SHARE.sub("That share of ", row)) if named else row
        alike.setdefault(shared, []).append(row)
    for shared, same in alike.items():
        name, bar, words = shared.partition(" | ")
        found = [_PERCENTILE.search(row) for row in same]
        which = ",".join(match[0] for match in found if match)
        one_row = name.replace("p{}", f"{{{which}}}") + bar + words.replace("p{}", "percentile")
        yield same[0] if len(same) == 1 else one_row
