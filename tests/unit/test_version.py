"""harness/__init__.py says the version; everything else that names one names the same."""

import datetime as dt
import re
from pathlib import Path

import yaml

import harness
from harness.campaign.source import TEMPLATES
from harness.spec.kubernetes import IMAGE

ROOT = Path(__file__).parents[2]


def stated(name: str) -> dict:
    return yaml.safe_load((ROOT / name).read_text())


def test_the_collection_the_citation_and_the_starter_of_a_cluster_have_the_version_of_the_package():
    versions = {name: stated(name)["version"] for name in ("galaxy.yml", "CITATION.cff")}
    starter = yaml.safe_load((TEMPLATES / "kubernetes.yaml").read_text())

    assert versions == dict.fromkeys(versions, harness.__version__)
    assert starter["kubernetes"]["image"] == IMAGE
    assert IMAGE.endswith(f":{harness.__version__}")


def test_the_pages_name_files_and_images_of_this_version():
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md")]
    named = re.compile(r"(?:gpu_sharing_harness-(?:node-)?|(?<=[\s/])gpu-sharing-harness:)([0-9][0-9.]*[0-9])")
    versions = [found for page in pages for found in named.findall(page.read_text())]

    assert len(versions) >= 3
    assert set(versions) == {harness.__version__}


def test_the_citation_has_the_fields_of_its_format():
    cited = stated("CITATION.cff")

    assert (cited["cff-version"], cited["type"]) == ("1.2.0", "software")
    assert {"message", "title", "authors"} <= cited.keys()


def test_the_newest_entry_of_the_changelog_is_this_version_on_the_day_of_the_citation():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## (\S+) - (\S+)$", changelog, re.MULTILINE)

    assert newest[1] == harness.__version__
    assert dt.date.fromisoformat(newest[2]) == stated("CITATION.cff")["date-released"]
    assert len(changelog.splitlines()) < 100


def test_every_entry_of_the_changelog_is_a_whole_one():
    """Of lines in their order: a bullet in the middle of another leaves the first without its full stop."""
    blocks = re.split(r"\n(?=- |\n)", (ROOT / "CHANGELOG.md").read_text())
    entries = [" ".join(block.split()) for block in blocks if block.startswith("- ")]

    assert [entry for entry in entries if not entry.endswith((".", ".)"))] == []
