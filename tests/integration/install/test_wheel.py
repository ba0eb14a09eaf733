"""The wheel, built from the source archive, does its work in an environment of its own, far from any checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.support.checkout import ROOT, copy_of_the_checkout

pytestmark = pytest.mark.long

SOURCES = (
    *("LICENSE", "MANIFEST.in", "README.md", "ansible.cfg", "harness", "inventory", "playbooks", "plugins"),
    *("pyproject.toml", "roles", "setup.py", "site.yml", "templates"),
)
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, f'build_{sys.argv[1]}')(sys.argv[2])"
CAMPAIGN = """
name: words
workloads: [{name: words, factory: "word_count:make"}]
replicas: [1]
timing: {step_s: 0.2, stabilise_s: 0.2, record_s: 1, cooldown_s: 0}
"""


def build(kind, source, target):
    subprocess.run(
        [sys.executable, "-c", BUILD, kind, target], cwd=source, check=True, capture_output=True, timeout=240
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("build")
    copy_of_the_checkout(folder / "source", SOURCES)
    build("sdist", folder / "source", folder)
    (archive,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder / "unpacked")
    (unpacked,) = (folder / "unpacked").iterdir()
    build("wheel", unpacked, folder)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def harness(wheel, tmp_path_factory):
    """The command, as somebody meets it who installed the wheel and stands in an empty folder."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=120)
    python = folder / "venv/bin/python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-deps", wheel],
        check=True,
        timeout=240,
    )
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
    # The dependencies are those of the tests. What is in a folder that a .pth names is on the path, and nothing more:
    # the checkout, which is installed there for editing, is not.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (folder / "work").mkdir()
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "HARNESS", "ANSIBLE"))}
    programs = f"{folder / 'venv/bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"

    def run(*words, codes=(0,)):
        done = subprocess.run(
            words if words[0] == "python" else ["harness", *words],
            cwd=folder / "work",
            env={**kept, "PATH": programs, "KUBECONFIG": str(folder / "none")},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode in codes, done.stdout + done.stderr
        assert str(ROOT) not in done.stdout + done.stderr
        return done

    run.folder = folder / "work"
    return run


def test_it_carries_every_file_of_the_checkout_that_it_needs(wheel):
    carried = set(zipfile.ZipFile(wheel).namelist())
    files = [path for name in SOURCES for path in [ROOT / name, *(ROOT / name).rglob("*")] if path.is_file()]
    wanted = {str(path.relative_to(ROOT)) for path in files if not {"__pycache__", ".mypy_cache"} & set(path.parts)}
    wanted -= {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py"}

    assert wanted - {name.removeprefix("harness/_data/") for name in carried} == set()
    assert len([name for name in carried if "dist-info" not in name]) == len(wanted)


def test_help_and_version_are_of_the_wheel(harness, wheel):
    assert "Usage: harness" in harness("--help").stdout
    version = harness("--version").stdout.split()[-1]
    assert wheel.name.split("-")[1] == version


def test_a_campaign_of_ones_own_workload_runs_to_its_report(harness):
    shutil.copy2(ROOT / "examples/own_workload/word_count.py", harness.folder)
    (harness.folder / "words.yaml").write_text(CAMPAIGN)

    # 4: a machine that is too busy for the replicas gives results that are not valid, and a report that says so.
    ran = json.loads(harness("run", "words.yaml", "--json", "--force", "--no-report", codes=(0, 4)).stdout)

    harness("verify", ran["campaign"])
    report = json.loads(harness("report", ran["campaign"], "--json").stdout)["report"]
    assert (harness.folder / report).read_text().startswith("<!DOCTYPE html>")


def test_a_published_campaign_is_compared(harness):
    (published,) = ROOT.glob("examples/h200/h200-sharing-distilbert-*")
    shutil.copy2(published, harness.folder)

    assert "time-slicing" in harness("compare", published.name, "--by", "sharing").stdout


def test_campaign_files_come_from_the_wheel(harness):
    harness("init", "mine.yaml")
    harness("validate", "mine.yaml")
    harness("plan", "smoke")
    assert json.loads(harness("schema").stdout)["title"]


def test_the_pods_of_a_campaign_are_rendered(harness):
    program = (
        "from harness.backends.kubernetes.objects import workload; from harness.campaign.plan import expand;"
        "from harness.campaign.source import read_source; from pathlib import Path;"
        "spec = read_source('cluster.yaml').spec;"
        "print(workload(expand(spec)[0], Path('x'), spec.kubernetes, 'id'))"
    )
    shutil.copy2(ROOT / "examples/cluster/campaign.yaml", harness.folder / "cluster.yaml")

    assert "'image'" in harness("python", "-c", program).stdout


def test_ansible_runs_the_playbooks_that_it_carries(harness):
    listed = json.loads(harness("node", "offline-list", "--json").stdout)
    assert listed["images"]

    # Where this machine could become a node, no task has the tag; where not, the carried role says why.
    options = ("--check", "--tags", "nothing-has-this-tag", "--json")
    checked = json.loads(harness("node", "provision", *options, codes=(0, 10)).stdout)
    assert "preflight" in {each["role"] for each in checked["roles"]}
    assert {each["role"] for each in checked["failures"]} <= {"preflight"}
