"""An index of results lists what verifies, names the rest with its reason, and lets no name be markup."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.campaign.leaderboard import Entry, Leaderboard, leaderboard
from harness.campaign.publish import publish
from harness.cli.app import app
from harness.errors import ResultsPathError
from harness.results.files import sha256_of
from harness.results.manifest import Status
from tests.unit.results.synthetic import Shape, write_campaign, write_experiment


def campaign(folder: Path, number: int, **shape: float | Status) -> Path:
    write_campaign(folder, replicas=[1], repeats=2, shape=Shape(record_s=20, seed=number, **shape))  # type: ignore[arg-type]
    identity = json.loads((folder / "campaign.json").read_text())
    (folder / "campaign.json").write_text(json.dumps(identity | {"campaign_id": f"{number:032}"}))
    return folder


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two whole campaigns, one of them also as an archive, and all that is not to be listed."""
    folder = tmp_path_factory.mktemp("results")
    campaign(folder / "a-slow", 1, scale=0.5)
    publish(campaign(folder / "b-fast", 2), folder / "fast.tar.xz")
    next(campaign(folder / "changed", 3).glob("*_rep1/wide.csv")).write_text("changed")
    (folder / "damaged.tar.xz").write_bytes(b"nothing of ours")
    (folder / "link").symlink_to(folder / "a-slow")
    (folder / "notes").mkdir()
    (folder / "README.md").write_text("not ours")
    return folder


def test_what_verifies_is_listed_the_fastest_first(results: Path) -> None:
    found = leaderboard(results)
    assert [(entry.source, entry.replicas, entry.runs) for entry in found.entries] == [
        ("b-fast", 1, 2),
        ("a-slow", 1, 2),
    ]
    fast, slow = found.entries
    assert fast.figures["inputs"].mean > 1.5 * slow.figures["inputs"].mean
    assert fast.gpu == "Synthetic GPU"
    assert fast.sha256 == sha256_of(results / "b-fast" / "campaign.json")


def test_what_does_not_is_named_with_its_reason(results: Path) -> None:
    refused = leaderboard(results).refused
    assert refused.keys() == {"changed", "damaged.tar.xz", "fast.tar.xz", "link"}
    assert "the file was changed" in refused["changed"]
    assert "no published set" in refused["damaged.tar.xz"]
    assert refused["fast.tar.xz"] == "the same campaign as b-fast"
    assert refused["link"].endswith("is a link.")


def test_an_archive_is_listed_with_its_own_hash(results: Path, tmp_path: Path) -> None:
    copy = tmp_path / "set.tar.xz"
    copy.write_bytes((results / "fast.tar.xz").read_bytes())
    (entry,) = leaderboard(tmp_path).entries
    assert (entry.source, entry.sha256) == ("set.tar.xz", sha256_of(copy))


def test_the_command_prints_markdown_or_json(results: Path) -> None:
    said = CliRunner().invoke(app, ["leaderboard", str(results)])
    assert said.exception is None, said.output
    lines = said.stdout.splitlines()
    assert lines[0].startswith("| workload | GPU | sharing | replicas |")
    assert {line.count("|") for line in lines[:4]} == {lines[0].count("|")}
    assert "- link: " in said.stdout
    document = json.loads(CliRunner().invoke(app, ["leaderboard", str(results), "--json"]).stdout)
    assert [entry["source"] for entry in document["entries"]] == ["b-fast", "a-slow"]
    assert document["entries"][0]["figures"]["inputs"]["low"] > 0
    assert len(document["refused"]) == 4


def test_a_campaign_without_a_run_that_can_be_used_is_named_and_does_not_vanish(tmp_path: Path) -> None:
    campaign(tmp_path / "invalid", 1, status=Status.INVALID)
    with pytest.raises(ResultsPathError, match="invalid: none of its runs can be used: they are INVALID"):
        leaderboard(tmp_path)


def test_no_name_of_somebody_else_is_markup() -> None:
    foul = "<img src=x> | [a](b) `c` \x1b[2J\n# title"
    entry = Entry(foul, "mps", 1, foul, foul, foul, 1, "fp32", "eager", paced=False, gpu=foul, figures={}, runs=1, verdict="VALID",
                  source=foul, sha256="0" * 64)  # fmt: skip
    text = Leaderboard([entry], {foul: foul}).to_markdown()
    assert "<img" not in text
    assert "\x1b" not in text
    assert "\\| \\[a\\](b) \\`c\\`" in text
    assert len(text.splitlines()) == 7
    assert all(character.isprintable() or character == "\n" for character in text)


@pytest.mark.parametrize("made", [False, True])
def test_a_folder_without_any_is_refused(tmp_path: Path, made: bool) -> None:
    folder = tmp_path / "empty"
    if made:
        folder.mkdir()
    with pytest.raises(
        ResultsPathError, match="no campaign that can be listed: it holds none" if made else "is not there"
    ):
        leaderboard(folder)


def test_one_campaign_is_told_from_a_folder_of_them(results: Path) -> None:
    campaign = next(path.parent for path in results.glob("*/campaign.json"))
    with pytest.raises(ResultsPathError, match="is one campaign, and the list is of all in a folder") as refused:
        leaderboard(campaign)
    assert str(results) in refused.value.advice


def test_why_nothing_is_listed_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut/campaign.json").write_text("{")
    with pytest.raises(ResultsPathError) as refused:
        leaderboard(tmp_path)
    assert re.search(
        r"cut: \S+/cut does not hold what it should: \S+campaign.json is damaged: [^.]+\.$", refused.value.message
    )


def test_a_cell_without_a_run_that_can_be_used_is_named_beside_those_that_are_listed(tmp_path: Path) -> None:
    mixed = write_campaign(tmp_path / "mixed", replicas=[1, 3], repeats=1, shape=Shape(record_s=20))
    (whole,) = mixed.glob("*_r3_*")
    shutil.rmtree(whole)
    write_experiment(mixed, "resnet50", 3, 1, Shape(record_s=20, status=Status.INVALID))
    (folder,) = {entry.source for entry in leaderboard(tmp_path).entries}
    assert folder == "mixed"
    assert leaderboard(tmp_path).refused == {
        "mixed, resnet50, time-slicing, 3 replicas": "none of its runs can be used: they are INVALID"
    }


def test_no_name_of_somebody_else_reaches_the_terminal_as_it_is(tmp_path: Path) -> None:
    campaign(tmp_path / "foul\x1b[2J", 1, status=Status.INVALID)
    said: list[str] = []
    with pytest.raises(ResultsPathError) as refused:
        leaderboard(tmp_path, say=said.append)
    assert said == [f"verifying {tmp_path}/foul [2J"]
    assert "\x1b" not in refused.value.message
