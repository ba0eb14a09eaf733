"""The table of ``docs/cluster.md`` that says what each backend can do, from their capabilities."""

from __future__ import annotations

from harness.backends.capabilities import BACKENDS, FEATURES

_BEGIN, _END = "<!-- Written by `python -m scripts.pages`. -->\n", "<!-- End of the table. -->\n"


def page(text: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = text.partition(_BEGIN)
    return f"{before}{_BEGIN}{_table()}{_END}{rest.partition(_END)[2]}"


def _table() -> str:
    head = f"| feature | {' | '.join(BACKENDS)} |\n|{'---|' * (1 + len(BACKENDS))}\n"
    return head + "".join(f"| {one.name} | {' | '.join(map(one.cell, BACKENDS))} |\n" for one in FEATURES)
