"""Pages, help and messages say one thing by one word: what is left in the table below is written as on its right."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from harness.cli import app

ROOT = Path(__file__).parents[2]
WORDS = {
    r"\bway of (running|sharing)\b|\bways of (running|sharing)\b": "configuration, sharing mode",
    r"\bcompany\b(?!\.)": "neighbour",
    r"\bin turns\b|\bturns? on (a|the|this) GPU\b|\btaking turns\b": "time slice",
    r"\bwhat (a|each|the) switch\b.* (takes|costs)\b|\bwhat switching takes\b": "context-switch time",
    r"\bwould (probably )?tell\b|\bcannot be told\b|\btells? nothing\b": "inconclusive; try N repeats",
    r"\bweakens?\b": "caveat",
    r"\bspeaks? (for|against)\b": "evidence",
    r"\bmends?\b": "fix",
    r"\bfor want of\b": "out of, too little",
    r"\bholds? (it|them|one|a replica|\w+ replicas?) back\b|\bheld back\b": "bottleneck, limit",
    r"\bcell by cell\b": "each configuration",
    r"\bwhat it takes\b|\bwho takes it\b|\bTake something else\b|\bTake it to\b": "use",
    r"\bfrom a bare machine to a decision\b|\bwhich mode to take\b": "which sharing mode to use",
    r"\b(nobody|somebody) else lends?\b|\bgives away\b": "allocates, manages",
    r"\bclose what else runs\b": "close other programs",
    r"(?<!there )\bis no (?!longer|value)\.?\w+": "is not a ...",
    r"\bin the place of\b|\bof anybody's own\b": "instead of, your own",
    r"\bwhoever\b": "who",
    r"[0-9] %": "95%, without a space",
}
OF_PAGES = list(WORDS)[-4:]
"""Of pages and help alone."""
CODE = re.compile(r"`[^`]*`")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/*.md"))]


def helps(command, name: str = "harness") -> Iterator[tuple[str, str]]:
    yield name, " ".join([command.help or "", *(getattr(each, "help", None) or "" for each in command.params)])
    for part, below in getattr(command, "commands", {}).items():
        yield from helps(below, f"{name} {part}")


def strings(module: Path) -> str:
    """What a module can say: its strings without its docstrings."""
    nodes = list(ast.walk(ast.parse(module.read_text(encoding="utf-8"))))
    documentation = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    said = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in documentation]
    return "\n".join(node.value for node in said if isinstance(node.value, str))


TEXTS = {page.name: page.read_text(encoding="utf-8") for page in PAGES} | dict(helps(typer.main.get_command(app)))


MESSAGES = {str(path.relative_to(ROOT)): strings(path) for path in sorted(ROOT.glob("harness/**/*.py"))}


@pytest.mark.parametrize(("pattern", "better"), WORDS.items())
def test_pages_and_help_use_the_words_of_the_glossary(pattern: str, better: str) -> None:
    said = re.compile(pattern, re.IGNORECASE)
    lines = [
        (name, line.strip())
        for name, text in TEXTS.items()
        for line in text.splitlines()
        if said.search(CODE.sub("", line))
    ]

    assert not lines, f"better: {better}"


@pytest.mark.parametrize("pattern", [pattern for pattern in WORDS if pattern not in OF_PAGES])
def test_messages_use_the_words_of_the_glossary(pattern: str) -> None:
    said = re.compile(pattern, re.IGNORECASE)
    lines = [(name, line) for name, text in MESSAGES.items() for line in text.splitlines() if said.search(line)]

    assert not lines, f"better: {WORDS[pattern]}"
