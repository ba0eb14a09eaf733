"""Ten pages as a user reads them, made of published sets; ``python -m tests.support.golden_pages`` writes them anew."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path

from tests.support import forked

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "pages"
WIDTH = 100
SETS = "examples/h200/h200-{}.tar.xz"
WHISPER, ACTIVITY = SETS.format("sharing-whisper-20261121T142139Z"), SETS.format("activity-20261124T112719Z")
NEIGHBOURS, LOADS = SETS.format("interference-20261121T144004Z"), SETS.format("stress-alone-20261121T144039Z")

PAGES: Mapping[str, list[str]] = {
    "help.txt": ["--help"],
    "status.txt": ["status", "examples/two-gpus"],
    "verify.txt": ["verify", ACTIVITY],
    "compare.txt": ["compare", WHISPER, "--by", "sharing"],
    "compare.html": ["compare", WHISPER, "--by", "sharing"],
    "neighbours.txt": ["compare", NEIGHBOURS, "--by", "condition"],
    "report.txt": ["report", ACTIVITY],
    "report.html": ["report", ACTIVITY],
    "report.md": ["report", ACTIVITY],
    "loads.txt": ["report", LOADS],
}
"""Name -> command: what it prints (``.txt``), or the page that it writes; of HTML the words, a line a block."""

_BLOCKS = {"p", "li", "h1", "h2", "h3", "tr", "dt", "dd", "div", "summary", "figcaption", "caption", "section", "nav"}
_UNSEEN = {"style", "script", "head"}


class _Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = [""]
        self._unseen = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - the parser's signature
        self._unseen += tag in _UNSEEN
        if tag in _BLOCKS:
            self.lines.append("")
        elif tag in {"td", "th", "text"}:
            self.lines[-1] += " | "

    def handle_endtag(self, tag: str) -> None:
        self._unseen -= tag in _UNSEEN
        if tag in _BLOCKS:
            self.lines.append("")

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self.lines[-1] += data


def rendered(name: str) -> str:
    """The page today."""
    command = PAGES[name]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        page = ["--html", str(out / name)] if name.endswith(".html") else []
        given = {"compare": page, "report": ["--out", folder]}.get(command[0], [])
        said = {**os.environ, "COLUMNS": str(WIDTH), "NO_COLOR": "1"}
        done = forked.harness(*command, *given, cwd=ROOT, environment=said)
        assert done.returncode == 0, done.stderr
        text = done.stdout if name.endswith(".txt") else (out / name).read_text(encoding="utf-8")
        text = text.replace(folder, "FOLDER")
    if name.endswith(".html"):
        words = _Words()
        words.feed(text)
        text = "\n".join(line for line in (re.sub(r"\s+", " ", line).strip() for line in words.lines) if line)
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE).strip() + "\n"


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for page in PAGES:
        (GOLDEN / page).write_text(rendered(page), encoding="utf-8")
