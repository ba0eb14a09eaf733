"""CITATION.cff says of this software what the package says, and is read as that of a published set is."""

from pathlib import Path

import yaml

import harness
from harness.results.ro_crate import citation

FILE = Path(__file__).parents[2] / "CITATION.cff"


def test_it_has_the_fields_of_the_format_and_the_version_of_the_package():
    said = yaml.safe_load(FILE.read_text())

    assert said["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= said.keys()
    assert said["type"] == "software"
    assert said["version"] == harness.__version__


def test_it_is_read_as_that_of_a_published_set():
    found = citation(FILE)

    assert found.authors
    assert found.licence == "https://spdx.org/licenses/Apache-2.0"
