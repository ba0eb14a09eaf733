"""What describes a published set says what its manifests say, is held to it, and takes no value that breaks it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.analysis.campaign import analyse
from harness.analysis.report import report_of
from harness.campaign.publish import publish
from harness.campaign.verify import verify_campaign
from harness.cli import app
from harness.errors import ResultsPathError, StorageError, UsageError
from harness.results.files import sha256_of
from harness.results.published import unpack
from harness.results.ro_crate import RO_CRATE, Author, citation, stated_hashes
from tests.unit.results.synthetic import GPU, SOFTWARE, Shape, write_campaign

NAME = "described-20260131T000000Z"
ORCID = "0000-0002-1825-0097"
CFF = """
cff-version: 1.2.0
title: "Sharing: what it \\"costs\\""
authors:
  - family-names: Lovelace
    given-names: Ada
    orcid: https://orcid.org/0000-0002-1825-0097
  - name: A Laboratory
license: CC-BY-4.0
doi: 10.5281/zenodo.1234567
date-released: 2026-01-31
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / NAME
    write_campaign(folder, replicas=[1], repeats=2, shape=Shape(record_s=20))
    (folder.parent / "CITATION.cff").write_text(CFF)
    return publish(folder, citation=citation(folder.parent / "CITATION.cff"))


@pytest.fixture
def folder(archive: Path, tmp_path: Path) -> Path:
    return unpack(archive, tmp_path)


def document(folder: Path, name: str) -> dict[str, Any]:
    content = json.loads((folder / name).read_text())
    assert isinstance(content, dict)
    return content


def entities(folder: Path) -> dict[str, dict[str, Any]]:
    return {entity["@id"]: entity for entity in document(folder, RO_CRATE)["@graph"]}


def test_the_crate_lists_every_file_with_its_hash(folder: Path) -> None:
    there = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    assert stated_hashes(folder) == {name: sha256_of(path) for name, path in there.items() if name != RO_CRATE}


def test_the_crate_says_who_made_it_where_and_with_what(folder: Path) -> None:
    found = entities(folder)
    root = found["./"]
    assert root["name"] == 'Sharing: what it "costs"'
    assert root["license"] == {"@id": "https://spdx.org/licenses/CC-BY-4.0"}
    assert root["url"] == "https://doi.org/10.5281/zenodo.1234567"
    assert [found[author["@id"]]["name"] for author in root["author"]] == ["Ada Lovelace", "A Laboratory"]
    assert found[f"https://orcid.org/{ORCID}"]["@type"] == "Person"
    facts = [found[each["@id"]] for each in found["#machine"]["additionalProperty"]]
    said = {fact["name"]: fact["value"] for fact in facts}
    assert (said["GPU"], said["GPU driver"]) == (GPU.name, GPU.driver)
    assert found["#harness"]["version"] == SOFTWARE.harness
    assert found["#campaign"]["object"] == {"@id": "campaign.yaml"}


def test_every_entity_that_is_named_is_there(folder: Path) -> None:
    found = entities(folder)

    def named(value: Any) -> list[str]:
        if isinstance(value, list):
            return [each for item in value for each in named(item)]
        return [value["@id"]] if isinstance(value, dict) else []

    references = {each for entity in found.values() for key, value in entity.items() for each in named(value)}
    assert references - found.keys() == {"https://w3id.org/ro/crate/1.1"}


def problems(folder: Path) -> list[str]:
    return [str(problem) for problem in verify_campaign(folder).problems]


def test_a_hash_that_is_not_the_manifests_is_found(folder: Path) -> None:
    (samples, *_) = [name for name in stated_hashes(folder) if name.endswith("samples.parquet")]
    text = (folder / RO_CRATE).read_text()
    (folder / RO_CRATE).write_text(text.replace(stated_hashes(folder)[samples], "0" * 64))
    assert any(f"{RO_CRATE}: it does not describe {samples}" in problem for problem in problems(folder))


def test_a_file_that_the_crate_leaves_out_is_found(folder: Path) -> None:
    content = document(folder, RO_CRATE)
    gone = next(entity["@id"] for entity in content["@graph"] if entity["@id"].endswith("wide.csv"))
    content["@graph"] = [entity for entity in content["@graph"] if entity["@id"] != gone]
    (folder / RO_CRATE).write_text(json.dumps(content))
    assert any(f"it does not describe {gone}" in problem for problem in problems(folder))


@pytest.mark.parametrize("name", ["campaign.yaml", "campaign.parquet"])
def test_a_changed_file_that_no_manifest_lists_is_found(folder: Path, name: str) -> None:
    with (folder / name).open("ab") as stream:
        stream.write(b"\n")
    assert any(f"{name}: the file was changed" in problem for problem in problems(folder))


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"@graph": 3}', '{"@graph": [{"sha256": "0"}]}'])
def test_a_damaged_description_is_a_problem(folder: Path, text: str) -> None:
    (folder / RO_CRATE).write_text(text)
    assert any("is damaged" in problem for problem in problems(folder))


def test_a_description_names_no_file_elsewhere(folder: Path) -> None:
    content = document(folder, RO_CRATE)
    content["@graph"].append({"@id": "../../etc/passwd", "sha256": "0" * 64})
    (folder / RO_CRATE).write_text(json.dumps(content))
    assert any("does not lie in that folder" in problem for problem in problems(folder))


def test_a_set_that_was_unpacked_may_get_its_report_again(folder: Path) -> None:
    assert problems(folder) == []
    report_of(analyse(folder))
    assert problems(folder) == []


def test_options_go_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "CITATION.cff"
    file.write_text(CFF)
    found = citation(file, ['Bob "B" O\'Brien', f"Eve <{ORCID}>"], "https://example.org/terms")
    assert found.authors == (Author('Bob "B" O\'Brien'), Author("Eve", f"https://orcid.org/{ORCID}"))
    assert found.licence == "https://example.org/terms"


@pytest.mark.parametrize("author", ["", " ", "A\nB", "A\x1b[2J", "x" * 400, "Ada <1234>", "Ada <b> c", "<script>"])
def test_what_is_no_author_is_refused(author: str) -> None:
    with pytest.raises(UsageError, match="author"):
        citation(authors=[author])


@pytest.mark.parametrize("licence", ["", "free for all", "CC\nBY", "javascript:x", 'https://e.org/"x'])
def test_what_is_no_licence_is_refused(licence: str) -> None:
    with pytest.raises(UsageError, match="is not a licence"):
        citation(licence=licence)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a list", "holds no fields"),
        ("a: b: c", "not YAML"),
        ("title: 1\ntitle: 2", "given twice"),
        ("authors: Ada", "not a list of persons"),
        ("title: [a]", "not text"),
        ('title: "a\\nb"', "one line"),
        ("license: 3", "not text"),
        ("url: file:///etc/passwd", "not a web address"),
        pytest.param("#" * 300_000, "longer than 262,144 characters, and is not read", id="too long"),
    ],
)
def test_a_file_that_cannot_be_one_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "CITATION.cff"
    file.write_text(text)
    with pytest.raises(UsageError, match=said) as refused:
        citation(file)
    assert "campaign" not in refused.value.message
    assert refused.value.message.count(str(file)) <= 1


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ResultsPathError, match="not a regular file"):
        citation(tmp_path / "CITATION.cff")


@pytest.mark.parametrize("written", ["10.5281/zenodo.1", "https://doi.org/10.5281/zenodo.1", "doi:10.5281/zenodo.1"])
def test_a_doi_is_one_address_however_it_is_written(tmp_path: Path, written: str) -> None:
    (tmp_path / "CITATION.cff").write_text(f'doi: "{written}"')
    assert citation(tmp_path / "CITATION.cff").url == "https://doi.org/10.5281/zenodo.1"


def test_a_set_of_nobody_says_so(archive: Path, tmp_path: Path) -> None:
    out = tmp_path / f"{NAME}.tar.xz"
    done = CliRunner().invoke(app, ["publish", str(archive.with_name(NAME)), "--out", str(out)])
    assert "author and license not stated" in done.output
    assert "Not stated" in entities(unpack(out, tmp_path / "into"))["./"]["license"]


def test_the_command_takes_author_and_licence(archive: Path, tmp_path: Path) -> None:
    folder = archive.with_name(NAME)
    out = tmp_path / f"{NAME}.tar.xz"
    words = ["publish", str(folder), "--out", str(out), "--author", "Ada Lovelace", "--license", "CC0-1.0"]
    done = CliRunner().invoke(app, words)
    assert done.exception is None, done.output
    assert "not stated" not in done.output
    root = entities(unpack(out, tmp_path / "into"))["./"]
    assert root["license"] == {"@id": "https://spdx.org/licenses/CC0-1.0"}


def test_a_place_that_cannot_be_written_is_said_with_the_option_that_names_another(folder: Path) -> None:
    with pytest.raises(StorageError, match="nowhere") as refused:
        publish(folder, folder / "nowhere" / f"{NAME}.tar.xz")
    assert "--out" in refused.value.advice
