"""What the pages say can be done can be done: commands, options, links, exit codes."""

import re
import shlex
from pathlib import Path

import typer

from harness import errors
from harness.cli.app import EXIT_CODES, app
from tests.support.cases import every

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md")])
COMMANDS = typer.main.get_command(app).commands


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


def command_lines() -> list[tuple[str, str]]:
    lines = [(page.name, line) for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    return [(page, line.partition(" #")[0].strip()) for page, line in lines if line.strip()]


@every(pair for pair in command_lines() if pair[1].startswith("harness "))
def test_every_harness_command_on_a_page_exists_with_its_options(page, line):
    words = shlex.split(line)
    command = COMMANDS[words[1]]
    options = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}

    assert {word for word in words if word.startswith("--")} <= options, page


@every(pair for pair in command_lines() if pair[1].startswith("scripts/"))
def test_every_script_on_a_page_exists_and_can_be_run(page, line):
    script = ROOT / shlex.split(line)[0]

    assert script.stat().st_mode & 0o111, page


@every(PAGES, lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@every(PAGES, lambda page: page.name)
def test_no_page_is_unfinished(page):
    assert "@@" not in page.read_text()


def test_the_campaign_on_the_page_is_valid():
    from harness.campaign.plan import expand
    from harness.config.load import parse_campaign

    text, conditions = blocks(ROOT / "docs" / "campaigns.md", "yaml")

    assert len(expand(parse_campaign(text, origin="docs/campaigns.md"))) == 2 * 3 * 3
    assert len(expand(parse_campaign(text + conditions, origin="docs/campaigns.md"))) == 3 * 2 * 3 * 3


def error_classes(base=errors.HarnessError):
    return [base, *(each for child in base.__subclasses__() for each in error_classes(child))]


def test_every_exit_code_is_documented():
    page = (ROOT / "docs" / "campaigns.md").read_text()

    for code in {error.exit_code for error in error_classes()} | {0}:
        assert f"\n| {code} | " in page
        assert re.search(rf"\b{code} \w", EXIT_CODES.replace("\n", " "))


def test_the_tree_of_errors_is_drawn_as_it_is():
    for error in error_classes():
        if error.__module__ == "harness.errors":
            assert re.search(rf"\b{error.__name__} +{error.exit_code}\b", errors.__doc__), error
