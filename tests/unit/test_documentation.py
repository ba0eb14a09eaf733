"""What the pages say can be done can be done: commands, options, links, exit codes."""

import re
import shlex
import sys
from pathlib import Path
from subprocess import run

import typer
import yaml

from harness import errors
from harness.cli import READER_LEFT, app
from tests.support.cases import every

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*/README.md")])
COMMANDS = typer.main.get_command(app).commands


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


def command_lines() -> list[tuple[str, str]]:
    lines = [(page.name, line) for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    return [(page, line.partition(" #")[0].strip()) for page, line in lines if line.strip()]


def harness_lines() -> list[tuple[str, str]]:
    """Those of `sh`, and of the scripts and pipelines to copy: behind a list's dash, `run:` or an environment variable."""
    texts = [(page.name, block) for page in PAGES for kind in ("sh", "bash", "yaml") for block in blocks(page, kind)]
    found = re.compile(r"^[-\s]*(?:run: )?(?:[A-Z_]+=\S+ )*(harness [a-z-].*)$", re.MULTILINE)
    return [(page, line.partition(" #")[0].strip()) for page, text in texts for line in found.findall(text)]


@every(harness_lines())
def test_every_harness_command_on_a_page_exists_with_its_options(page, line):
    words = shlex.split(line)
    command = COMMANDS["node"].commands[words[2]] if words[1] == "node" else COMMANDS[words[1]]
    options = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}

    assert {word for word in words if word.startswith("--")} <= options, page


@every(pair for pair in command_lines() if pair[1].startswith("scripts/"))
def test_every_script_on_a_page_exists_and_can_be_run(page, line):
    script = ROOT / shlex.split(line)[0]

    assert script.stat().st_mode & 0o111, page


def programs_named() -> list[tuple[str, str]]:
    """What pages and the examples' files say is run by python: a file or a module."""
    files = [*PAGES, *ROOT.glob("examples/*/*.yaml")]
    named = re.compile(r"^(?:#\s+)?python3? (-m )?([\w./-]+)", re.MULTILINE)
    found = [(file.name, module, name) for file in files for module, name in named.findall(file.read_text())]
    return [(file, f"{name.replace('.', '/')}.py" if module else name) for file, module, name in found]


@every(pair for pair in programs_named() if pair[1].startswith(("examples/", "scripts/", "tests/")))
def test_every_program_of_ours_that_is_named_exists(file, program):
    path = ROOT / program

    assert path.is_file() or (path.with_suffix("") / "__main__.py").is_file(), file


@every(PAGES, lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def parts_of_the_site() -> dict[str, list[str]]:
    """The nav of the site without its first line, which is README.md itself."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert nav[0] == {"Overview": "README.md"}
    return {part: pages for entry in nav[1:] for part, pages in entry.items()}


def test_the_sites_nav_has_four_parts_which_name_every_page_once():
    parts = parts_of_the_site()
    named = [page for pages in parts.values() for page in pages]

    assert list(parts) == ["Tutorial", "How-to", "Reference", "Explanation"]
    assert sorted(named) == sorted([*(page.name for page in ROOT.glob("docs/*.md")), "CONTRIBUTING.md"])


def test_the_readmes_table_has_the_pages_of_the_site_part_by_part():
    rows = re.findall(r"^\| (\S+) \| [^|]+\? \| (.+) \|$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    table: dict[str, list[str]] = {}
    for part, links in rows:
        for page in re.findall(r"\]\((?:docs/)?([^)#]+)", links):
            if page not in table.setdefault(part, []):
                table[part].append(page)

    assert {part: sorted(pages) for part, pages in table.items()} == {
        part: sorted(pages) for part, pages in parts_of_the_site().items()
    }


def test_the_site_builds_without_a_warning_and_its_pages_ask_no_other_host(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    asked = re.compile(r'<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)="(?:https?:)?//[^>]*')
    pages = {page: page.read_text() for page in tmp_path.rglob("*.html") if page.name != "404.html"}
    assert {page: found for page, text in pages.items() if (found := asked.findall(text))} == {}
    assert 'role="dialog" aria-label="Search"' in pages[tmp_path / "index.html"]
    for page, text in pages.items():
        assert "<th></th>" not in text, f"a column of {page.relative_to(tmp_path)} has no name for whoever hears it"
        for target in re.findall(r'(?:href|src)="([^"#:?]+)[#?"]', text):
            assert (page.parent / target).exists(), f"{page.relative_to(tmp_path)} links to {target}"


def test_the_campaign_on_the_page_is_valid():
    from harness.campaign.plan import expand
    from harness.spec.load import parse_campaign

    text, limits, conditions = blocks(ROOT / "docs" / "campaigns.md", "yaml")

    assert len(expand(parse_campaign(text, origin="docs/campaigns.md"))) == 2 * 3 * 3
    swept = parse_campaign(text + limits, origin="docs/campaigns.md")
    assert len(expand(swept)) == 2 * 3 * (1 + 3 * 2) * 3
    assert len(expand(parse_campaign(text + conditions, origin="docs/campaigns.md"))) == 3 * 2 * 3 * 3


def test_the_campaign_of_the_tutorial_is_valid():
    from harness.campaign.plan import expand
    from harness.spec.load import parse_campaign

    (text,) = blocks(ROOT / "docs" / "tutorial.md", "yaml")

    assert len(expand(parse_campaign(text, origin="docs/tutorial.md"))) == 2 * 5


def test_the_campaigns_of_the_recipes_are_valid_and_its_pipelines_run_the_commands_shown():
    from harness.campaign.plan import expand
    from harness.spec.load import parse_campaign

    page = ROOT / "docs" / "recipes.md"
    divided, eight, limits, github, gitlab = blocks(page, "yaml")
    (shown,) = [block for block in blocks(page, "sh") if "harness run gate.yaml --results gate --json" in block]
    steps = [step["run"] for step in yaml.safe_load(github)["jobs"]["gate"]["steps"] if "run" in step]

    assert len(expand(parse_campaign(divided, origin="docs/recipes.md"))) == 3 * 3
    assert (
        len(expand(parse_campaign(eight, origin="docs/recipes.md"))) == (1 + 3 + 3) * 3
    )  # exclusive: 8 replicas alone
    assert expand(parse_campaign(limits, origin="docs/recipes.md"))[0].slo is not None
    assert steps == yaml.safe_load(gitlab)["gpu-gate"]["script"] == shown.splitlines()


def error_classes(base=errors.HarnessError):
    return [base, *(each for child in base.__subclasses__() for each in error_classes(child))]


def test_the_folder_of_the_workload_image_holds_all_that_a_replica_imports(tmp_path):
    (build,) = re.findall(
        r"mkdir -p build/workload\n.*?(?= *podman)", (ROOT / "docs/cluster.md").read_text(), re.DOTALL
    )
    run(["bash", "-euc", build.replace("build/workload", str(tmp_path))], cwd=ROOT, check=True)

    below = [
        path for folder in (".", "engine", "frontends") for path in tmp_path.glob(f"harness/replica/{folder}/*.py")
    ]
    below.remove(tmp_path / "harness/replica/fork_server.py")  # of one machine alone
    modules = sorted(".".join(path.resolve().relative_to(tmp_path.resolve()).with_suffix("").parts) for path in below)
    program = f"import importlib; [importlib.import_module(name) for name in {modules}]"
    done = run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"Containerfile", "requirements.txt", "cuda.txt", "torch.txt"} <= {path.name for path in tmp_path.iterdir()}


def test_every_exit_code_is_documented():
    assert {error.exit_code for error in error_classes()} | {0, READER_LEFT} == errors.EXIT_CODES.keys()


def test_the_tree_of_errors_is_drawn_as_it_is():
    for error in error_classes():
        if error.__module__ == "harness.errors":
            assert re.search(rf"\b{error.__name__} +{error.exit_code}\b", errors.__doc__), error
