"""Pages, help and messages say one thing by one word: what is left in the table below is written as on its right."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml

from harness.cli import app

ROOT = Path(__file__).parents[2]
WORDS = {
    r"\bway of (running|sharing)\b|\bways of (running|sharing)\b": "configuration, sharing mode",
    r"\bcompany\b(?!\.)": "neighbour",
    r"\bin turns\b|\bturns? on (a|the|this) GPU\b|\b(takes?|taking) (no )?turns\b": "time slice",
    r"\bwhat (a|each|the) switch\b.* (takes|costs)\b|\bwhat switching takes\b": "context-switch time",
    r"\bwould (probably )?tell\b|\b(cannot|do not|does not) tell\b|\bcannot be told\b|\btells? nothing\b": "inconclusive; try N repeats",
    r"\btells (?!you)\w+|\bto tell (them )?apart\b": "reports, shows, distinguishes",
    r"\bweakens?\b": "caveat",
    r"\bspeaks? (for|against|TLS|HTTP)\b": "evidence; uses",
    r"\bmend(s|ed)?\b": "fix",
    r"\bfor want of\b": "out of, too little",
    r"\bas it was asked\b|\bheld against\b": "as requested, compared with",
    r"\bholds? (it|them|one|a replica|\w+ replicas?) back\b|\bheld back\b": "bottleneck, limit",
    r"\bcell by cell\b": "each configuration",
    r"\bwhat it takes\b|\bwho takes\b|\bTake something else\b|\bTake it to\b": "use",
    r"\b(or|and) take (fewer|one|no|what|the|another)\b|^Take (fewer|whole|an?other|them)\b": "use",
    r"\bTake .{1,60} (away|off|out of)\b": "remove",
    r"\bfrom a bare machine to a decision\b|\bwhich mode to take\b": "which sharing mode to use",
    r"\blends?\b(?!\.yml)|\bgives away\b": "allocates, advertises, manages",
    r"\b(nobody|somebody)\b(?!:)": "no user, nothing, another user",
    r"\bclose what else runs\b": "close other programs",
    r"(?<!here )(?<!such )\bis no (?!longer|value\b)\.?\w+": "is not a ...",
    r"\bin the place of\b|\bof anybody's own\b": "instead of, your own",
    r"\bwhoever\b": "who",
    r"[0-9}] %(?![ ]?[}\w(])": "95%, without a space",
}
USER_NOBODY = re.compile(r"(runs )?as (the user )?nobody\b|name: nobody\b")
"""The user of that name."""
CODE = re.compile(r"`[^`]*`")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/*.md"))]
SAID = {"name", "msg", "fail_msg", "success_msg", "description", "short_description", "say", "is", "summary", "action"}
"""Keys of a role's YAML whose text a user reads: names of tasks, messages, descriptions."""


def helps(command, name: str = "harness") -> Iterator[tuple[str, str]]:
    yield name, " ".join([command.help or "", *(getattr(each, "help", None) or "" for each in command.params)])
    for part, below in getattr(command, "commands", {}).items():
        yield from helps(below, f"{name} {part}")


def strings(module: Path) -> str:
    """What a module can say: its strings without its docstrings, a place in braces for what is filled in."""
    nodes = list(ast.walk(ast.parse(module.read_text(encoding="utf-8"))))
    documentation = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    said = []
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            said.append("".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation | parts:
            said.append(node.value)
    return "\n".join(said)


def texts(content: object) -> Iterator[str]:
    """What a file of a role says, at any depth."""
    if isinstance(content, dict):
        for key, value in content.items():
            if isinstance(value, str) and key in SAID:
                yield value
            yield from texts(value)
    elif isinstance(content, list):
        for item in content:
            yield from texts(item)


def of_yaml(file: Path) -> str:
    """Without comments, which the reader of a message does not see."""
    return "\n".join(text for document in yaml.safe_load_all(file.read_text()) for text in texts(document))


def within(folder: str, *patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in (ROOT / folder).rglob(pattern))


TEXTS = {page.name: page.read_text(encoding="utf-8") for page in PAGES} | dict(helps(typer.main.get_command(app)))
SAYING = {
    **{path: strings(path) for folder in ("harness", "roles", "plugins") for path in within(folder, "*.py")},
    **{path: of_yaml(path) for folder in ("roles", "playbooks") for path in within(folder, "*.yml")},
}
MESSAGES = {str(path.relative_to(ROOT)): said for path, said in SAYING.items()}


def test_the_messages_of_roles_and_plugins_are_among_those_that_are_read() -> None:
    read = {name.split("/")[0] for name, said in MESSAGES.items() if said}

    assert read == {"harness", "roles", "plugins", "playbooks"}
    assert any("Fix what is named and run again" in said for said in MESSAGES.values())


@pytest.mark.parametrize(("pattern", "better"), WORDS.items())
def test_pages_and_help_use_the_words_of_the_glossary(pattern: str, better: str) -> None:
    assert not lines_with(pattern, {name: CODE.sub("", text) for name, text in TEXTS.items()}), f"better: {better}"


@pytest.mark.parametrize(("pattern", "better"), WORDS.items())
def test_messages_use_the_words_of_the_glossary(pattern: str, better: str) -> None:
    assert not lines_with(pattern, MESSAGES), f"better: {better}"


def lines_with(pattern: str, said: dict[str, str]) -> list[tuple[str, str]]:
    """Lines with the pattern, each with where it is."""
    wanted = re.compile(pattern, re.IGNORECASE)
    lines = ((name, line.strip()) for name, text in said.items() for line in text.splitlines())
    return [(name, line) for name, line in lines if wanted.search(USER_NOBODY.sub("", line))]
