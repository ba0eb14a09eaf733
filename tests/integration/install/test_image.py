"""scripts/image with a builder that only looks at what it was given: no registry is asked."""

import json
import os
import re
import subprocess
import sys
from zipfile import ZipFile

import pytest

import harness
from tests.support.checkout import copy_of_the_checkout
from tests.unit.test_image import arguments

SOURCES = (
    *("LICENSE", "MANIFEST.in", "README.md", "ansible.cfg", "harness", "images", "inventory", "playbooks", "plugins"),
    *("pyproject.toml", "requirements.txt", "roles", "scripts", "setup.py", "site.yml", "templates"),
)
BUILDER = f"""#!{sys.executable}
import json, os, sys
json.dump({{"words": sys.argv[1:], "context": os.listdir(sys.argv[-1])}}, open("asked.json", "w"))
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkout")
    copy_of_the_checkout(folder, SOURCES)
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "programs").mkdir()
    before = folder / "build/lib/harness"  # of a build of an older version
    before.mkdir(parents=True)
    (before / "gone.py").touch()
    return folder


def build(checkout, *words, **environment):
    path = f"{checkout / 'programs'}{os.pathsep}/usr/bin{os.pathsep}/bin"
    offline = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1"}
    return subprocess.run(
        [checkout / "scripts/image", *words],
        env={"PATH": path, **offline, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_its_context_has_all_that_the_containerfile_copies(checkout):
    builder = checkout / "programs/buildah"
    builder.write_text(BUILDER)
    builder.chmod(0o755)

    done = build(checkout, "--quiet", BASE="localhost/python", EXTRAS="[replica]")

    assert done.returncode == 0, done.stderr
    asked = json.loads((checkout / "asked.json").read_text())
    copied = [name for words in arguments("COPY") for name in words.split()[:-1]]
    assert {name.replace("*", f"{harness.__version__}-py3-none-any") for name in copied} == set(asked["context"])
    assert {"BASE=localhost/python", "EXTRAS=[replica]", "--quiet"} <= set(asked["words"])
    assert f"gpu-sharing-harness:{harness.__version__}" in asked["words"]
    assert f"org.opencontainers.image.version={harness.__version__}" in asked["words"]
    assert (checkout / asked["words"][asked["words"].index("--file") + 1]).is_file()
    (wheel,) = (checkout / "build/image").glob("*.whl")
    assert "harness/gone.py" not in ZipFile(wheel).namelist()


def test_its_base_is_that_of_the_table_by_its_digest(checkout):
    assert build(checkout).returncode == 0
    (base,) = [word for word in json.loads((checkout / "asked.json").read_text())["words"] if word.startswith("BASE=")]
    assert re.fullmatch(r"BASE=docker\.io/library/python:3\.\S+@sha256:[0-9a-f]{64}", base)
