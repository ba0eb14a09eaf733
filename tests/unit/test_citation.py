"""CITATION.cff says of this software what the package says, and is read as that of a published set is."""

from pathlib import Path

import yaml

import harness

FILE = Path(__file__).parents[2] / "CITATION.cff"


def test_it_has_the_fields_of_the_format_and_the_version_of_the_package():
    said = yaml.safe_load(FILE.read_text())

    assert said["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= said.keys()
    assert said["type"] == "software"
    assert said["version"] == harness.__version__
