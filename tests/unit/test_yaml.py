"""Every YAML file in the repository is parsed and has a kind that something checks; a new one needs a kind."""

import re
import subprocess
from pathlib import Path

import yaml

from tests.support.cases import every

ROOT = Path(__file__).parents[2]

KINDS = {
    "campaign file": r"harness/campaign/(shipped|init_templates)/[^/]+\.yaml",
    "campaign file of an example": r"examples/(.+/)?(activity|activity-resnet50|busy|campaign|cpus|distilbert|engine|fair|graphs|hostile|interference|neighbour|offline|packed|pass|resnet50|served|server|shares|sharing|sm-shares|spread|stress|stress-alone|training|whisper)(-local)?(-thirds)?\.yaml",
    "objects of an example": r"examples/cluster/access\.yaml",
    "playbook": r"(site|playbooks/[^/]+|tests/node/.+)\.ya?ml",
    "role": r"roles/[^/]+/(tasks|handlers|defaults|vars|meta)/[^/]+\.ya?ml",
    "defaults of every role": r"roles/versions/defaults/main/[^/]+\.yml",
    "collection": r"galaxy\.yml|meta/runtime\.yml",
    "inventory": r"inventory/.+\.ya?ml",
    "Prometheus rules": r"roles/prometheus/files/alerts\.yml",
    "settings of promtool": r"roles/prometheus/files/promtool\.yml",
    "tests of the rules": r"tests/unit/monitoring/rule_tests\.yml",
    "settings of the docs site": r"mkdocs\.yml",
    "answers of servers": r"tests/support/dialects\.yaml",
    "lint settings": r"\.(yamllint|ansible-lint(\.yml)?)",
}


class Loader(yaml.SafeLoader):
    """Also knows Ansible's own tags."""


Loader.add_multi_constructor("!", lambda loader, _suffix, node: loader.construct_scalar(node))


def yaml_files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    return [name for name in listed if re.search(r"\.ya?ml$|^\.yamllint$", name) and (ROOT / name).is_file()]


def kinds_of(name: str) -> list[str]:
    return [kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, name)]


@every(yaml_files())
def test_every_file_parses_and_has_one_kind(name):
    list(yaml.load_all((ROOT / name).read_text(), Loader=Loader))

    assert len(kinds_of(name)) == 1, f"{name}: say in KINDS what it is, and check it where its kind is checked"


def campaign_files() -> list[str]:
    return [name for name in yaml_files() if any(kind.startswith("campaign") for kind in kinds_of(name))]


@every(campaign_files())
def test_every_campaign_file_is_valid(name):
    from harness.campaign.plan import expand
    from harness.spec.load import parse_campaign

    assert expand(parse_campaign((ROOT / name).read_text(), origin=name))


PAGES = [*ROOT.glob("docs/*.md"), ROOT / "README.md", *ROOT.glob("examples/*/README.md")]


@every(
    [
        (page, text)
        for page in PAGES
        for text in re.findall(r"```yaml\n(name: .*?)```", page.read_text(), re.DOTALL)
        if "workloads:" in text
    ],
    lambda page, text: f"{page.name} {text[:40]!r}",
)
def test_every_campaign_on_a_page_is_valid(page, text):
    from harness.campaign.plan import expand
    from harness.spec.load import parse_campaign

    assert expand(parse_campaign(text, origin=page.name))


def test_an_unknown_file_has_no_kind():
    assert kinds_of("somewhere/else.yaml") == []
