"""The repository as an Ansible collection: built, installed elsewhere, and used with an inventory of somebody else."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support.checkout import ROOT, copy_of_the_checkout

PROGRAMS = Path(sys.executable).parent
CARRIED = (
    "galaxy.yml",
    "LICENSE",
    "README.md",
    "inventory",
    "meta",
    "playbooks",
    "plugins",
    "roles",
    "templates",
    "site.yml",
    "harness/__init__.py",
)
PLAY = """
- hosts: all
  gather_facts: false
  vars:
    node_gpu: absent
  tasks:
    - import_role: {name: gpu_sharing_harness.node.device_plugin, tasks_from: look.yml}
    - copy:
        content: "{{ dict(gpu=ansible_facts.gpu, image=device_plugin_image, sharing=device_plugin_sharing) | to_json }}"
        dest: "{{ playbook_dir }}/said.json"
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder outside the checkout with the collection below ``collections``, and how to run a program there."""
    folder = tmp_path_factory.mktemp("collection")
    copy_of_the_checkout(folder / "source", (*CARRIED, "examples/cluster", "tests/support"))
    (folder / "source/dist").mkdir()
    (folder / "source/dist/gpu_sharing_harness-1-py3-none-any.whl").touch()
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE")}
    environment = {**kept, "ANSIBLE_COLLECTIONS_PATH": str(folder / "collections"), "HOME": str(folder)}

    def run(*words, cwd=folder):
        done = subprocess.run(
            [PROGRAMS / words[0], *words[1:]],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    run("ansible-galaxy", "collection", "build", "--output-path", folder, cwd=folder / "source")
    (archive,) = folder.glob("*.tar.gz")
    run("ansible-galaxy", "collection", "install", "--offline", "-p", folder / "collections", archive)
    run.archive, run.folder = archive, folder
    return run


def test_it_carries_no_tests_no_examples_and_nothing_that_was_built(installed):
    with tarfile.open(installed.archive) as packed:
        names = {name.split("/")[0] for name in packed.getnames()}

    assert names >= {"inventory", "plugins", "roles", "templates", "harness"}
    assert not names & {"tests", "examples", "docs", "scripts", "dist", ".venv"}


def test_a_role_runs_from_it_with_its_own_defaults_and_modules(installed):
    (installed.folder / "play.yml").write_text(PLAY)

    installed(
        "ansible-playbook",
        "-i",
        "localhost,",
        "-c",
        "local",
        "-e",
        f"ansible_python_interpreter={sys.executable}",
        "play.yml",
    )

    said = json.loads((installed.folder / "said.json").read_text())
    assert said["sharing"] == "time-slicing"
    assert said["image"].startswith("nvcr.io/nvidia/k8s-device-plugin:")
    assert said["gpu"]["node"] == "localhost"


def test_every_role_is_found_by_the_name_of_the_collection(installed):
    roles = [f"gpu_sharing_harness.node.{path.parents[1].name}" for path in ROOT.glob("roles/*/tasks/main.yml")]
    (installed.folder / "roles.yml").write_text(json.dumps([{"hosts": "all", "roles": roles}]))

    installed("ansible-playbook", "-i", "localhost,", "--syntax-check", "roles.yml")


def test_every_playbook_is_found_by_the_name_of_the_collection(installed):
    playbooks = [f"gpu_sharing_harness.node.{path.stem}" for path in ROOT.glob("playbooks/*.yml")]

    installed("ansible-playbook", "-i", "localhost,", "--syntax-check", *playbooks)
