"""A published set is one archive: the same bytes each time, read as the folder is, and refused when it is anything else."""

from __future__ import annotations

import io
import json
import lzma
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.analysis.contrasts.comparison import gathered
from harness.campaign.folder import open_folder
from harness.campaign.publish import publish
from harness.campaign.verify import verify_campaign
from harness.cli import app
from harness.errors import ConflictError, ResultsPathError, UsageError, VerificationError
from harness.results import published
from harness.results.published import opened, unpack
from tests.unit.results.synthetic import Shape, write_campaign

NAME = "synthetic-20260131T000000Z"
DESCRIBED = {"campaign.parquet", "ro-crate-metadata.json"}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / NAME
    write_campaign(folder, replicas=[1, 3], repeats=2, shape=Shape(record_s=20))
    (folder / "report.html").write_text("derived")
    (folder / "attempts" / "failed-1").mkdir(parents=True, exist_ok=True)
    (folder / "attempts" / "failed-1" / "log").write_text("what went wrong")
    return folder


@pytest.fixture(scope="module")
def archive(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish(original, tmp_path_factory.mktemp("published") / f"{NAME}.tar.xz")


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_holds_every_file_that_the_manifests_list_and_nothing_that_follows_or_failed(
    original: Path, archive: Path
) -> None:
    with opened(archive) as folder:
        assert folder.name == NAME
        assert verify_campaign(folder).ok
        found, expected = files_below(folder), files_below(original)
    left_out = {"report.html", "attempts/failed-1/log"}
    assert {name: content for name, content in found.items() if name not in DESCRIBED} == {
        name: content for name, content in expected.items() if name not in left_out
    }
    assert found.keys() >= DESCRIBED
    assert not folder.exists()


def test_the_same_campaign_gives_the_same_bytes_wherever_and_whenever(
    original: Path, archive: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(original, tmp_path / NAME, copy_function=shutil.copyfile)
    (copy / "campaign.json").chmod(0o600)
    assert publish(copy) == tmp_path / f"{NAME}.tar.xz"
    assert (tmp_path / f"{NAME}.tar.xz").read_bytes() == archive.read_bytes()


def test_what_does_not_verify_is_not_published(original: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(original, tmp_path / NAME)
    next(copy.glob("*_rep1/wide.csv")).write_text("changed")
    with pytest.raises(VerificationError, match="the file was changed"):
        publish(copy)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_what_cannot_be_an_archive_is_refused(
    original: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConflictError, match="exists already"):
        publish(original, archive)
    with pytest.raises(UsageError, match=r"does not end in \.tar\.xz"):
        publish(original, tmp_path / "set.zip")
    with pytest.raises(ResultsPathError, match=r"has no campaign\.json"):
        publish(next(original.glob("*_rep1")))
    monkeypatch.setattr(published, "MOST_FILES", 3)
    with pytest.raises(ResultsPathError, match="more than the 3 files"):
        publish(original, tmp_path / f"{NAME}.tar.xz")


def test_a_campaign_that_runs_is_not_published(original: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(original, tmp_path / NAME)
    with open_folder(copy).lock(), pytest.raises(ConflictError, match="is running"):
        publish(copy)


def test_a_campaign_that_was_interrupted_is_published_with_a_note(original: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(original, tmp_path / NAME)
    shutil.rmtree(next(copy.glob("*_r3_*_rep2")))
    notes: list[str] = []
    with pytest.raises(UsageError, match="3 of 4 experiments are"):
        publish(copy)
    publish(copy, partial=True, say=notes.append)
    assert any("3 of 4 experiments are finished" in note for note in notes)


def test_a_folder_is_opened_as_it_is(original: Path) -> None:
    with opened(original) as folder:
        assert folder == original


def test_a_campaign_file_in_the_place_of_results_is_told_from_a_damaged_archive(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\n")
    with pytest.raises(ResultsPathError, match="is a campaign file, and results are expected") as refused, opened(file):
        pass
    assert f"harness run {file}" in str(refused.value.advice)


def test_an_error_names_the_archive(archive: Path) -> None:
    def read(folder: Path) -> None:
        raise ResultsPathError(f"{folder}/x is damaged.", advice=f"Look at {folder}.")

    with pytest.raises(ResultsPathError) as caught, opened(archive) as folder:
        read(folder)
    assert caught.value.message == f"{archive}/x is damaged."
    assert caught.value.advice == f"Look at {archive}."


def run(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exception is None, done.output
    return done.stdout


def test_commands_read_an_archive_as_they_read_its_folder(original: Path, archive: Path) -> None:
    assert f"{archive}: 4 experiments" in run("verify", archive)
    with gathered([archive]) as of_archive, gathered([original]) as of_folder:
        assert [(test.key, test.b, test.contrast.ratio) for test in of_archive.tests] == [
            (test.key, test.b, test.contrast.ratio) for test in of_folder.tests
        ]


def test_the_report_of_an_archive_comes_to_lie_below_results_or_where_one_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_campaign(tmp_path / NAME, replicas=[1], repeats=1, shape=Shape(record_s=20))
    archive = publish(tmp_path / NAME)
    monkeypatch.chdir(tmp_path)
    run("report", archive)
    run("report", archive, "--out", "elsewhere")
    for folder in (Path("results") / NAME, Path("elsewhere")):
        assert json.loads((folder / "summary.json").read_text())["campaign"] == NAME
        assert (folder / "report.html").is_file()


def test_a_damaged_file_is_told_by_the_archives_name(archive: Path) -> None:
    with opened(archive) as folder:
        changed = next(folder.glob("*_r1_*_rep1/wide.csv"))
        changed.write_text("changed")
        outcome = verify_campaign(folder).of(archive)
    with pytest.raises(VerificationError) as caught:
        outcome.refuse()
    assert f"{archive}/{changed.relative_to(folder)}: the file was changed" in caught.value.message
    assert str(folder) not in str(caught.value)


def packed(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with lzma.open(path, "wb") as stream, tarfile.open(fileobj=stream, mode="w") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b"x" if kind == tarfile.REGTYPE else b""


GOOD = member("set/campaign.json")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (member("../stolen"), "not the name of a file"),
        (member("set/../../stolen"), "not the name of a file"),
        (member("/etc/stolen"), "not the name of a file"),
        (member("set//file"), "not the name of a file"),
        (member("alone"), "not the name of a file"),
        (member("set/\x1b[2Jfile"), "not the name of a file"),
        (member("set/link", tarfile.SYMTYPE, "/etc/passwd"), "not a regular file"),
        (member("set/link", tarfile.LNKTYPE, "set/campaign.json"), "not a regular file"),
        (member("set/folder", tarfile.DIRTYPE), "not a regular file"),
        (member("set/pipe", tarfile.FIFOTYPE), "not a regular file"),
        (member("set/disk", tarfile.BLKTYPE), "not a regular file"),
        (member(f"set/{'long' * 60}"), "not a regular file"),  # said in a header of another kind before it
        (member("set/campaign.json"), "is there twice"),
        (member("set/campaign.json/below"), "is there twice"),
        (member("other/campaign.json"), "2 folders"),
    ],
    ids=lambda value: repr(value[0].name)[:40] if isinstance(value, tuple) else None,
)
def test_an_archive_of_anything_but_files_in_one_folder_is_refused(
    bad: tuple[tarfile.TarInfo, bytes], said: str, tmp_path: Path
) -> None:
    archive = packed(tmp_path / "bad.tar.xz", GOOD, bad)
    into = tmp_path / "into"
    with pytest.raises(ResultsPathError, match=said):
        unpack(archive, into)
    assert {path.name for path in into.rglob("*") if not path.is_dir()} <= {"campaign.json"}
    assert not (tmp_path / "stolen").exists()


TAMPERED: dict[str, Callable[[bytes], bytes]] = {
    "no archive": lambda _archive: b"name,value\n",
    "empty": lambda _archive: b"",
    "cut": lambda archive: archive[: len(archive) // 2],
    "without its last bytes": lambda archive: archive[:-4],
    "changed": lambda archive: archive[:5000] + bytes([archive[5000] ^ 1]) + archive[5001:],
    "longer": lambda archive: archive + b"more",
    "followed by another": lambda archive: archive + archive,
    "nothing in it": lambda _archive: lzma.compress(bytes(10240)),
    "more in it": lambda archive: lzma.compress(lzma.decompress(archive) + b"more"),
    "zeros without end": lambda archive: lzma.compress(lzma.decompress(archive) + bytes(1 << 20)),
    "too much memory": lambda archive: with_a_dictionary(archive, 512 << 20),
}


def with_a_dictionary(archive: bytes, size: int) -> bytes:
    packer = lzma.LZMACompressor(filters=[{"id": lzma.FILTER_LZMA2, "dict_size": size, "mf": lzma.MF_HC3, "preset": 0}])
    return packer.compress(lzma.decompress(archive)) + packer.flush()


@pytest.mark.parametrize("kind", TAMPERED)
def test_what_is_not_whole_is_refused(kind: str, archive: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.tar.xz"
    bad.write_bytes(TAMPERED[kind](archive.read_bytes()))
    with pytest.raises(ResultsPathError, match="not a harness archive"):
        unpack(bad, tmp_path / "into")


@pytest.mark.parametrize(("limit", "most"), [("MOST_FILES", 3), ("MOST_BYTES", 10_000)])
def test_what_holds_too_much_is_refused_before_it_is_written(
    limit: str, most: int, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, limit, most)
    with pytest.raises(ResultsPathError, match="holds more than"):
        unpack(archive, tmp_path / "into")
    written = files_below(tmp_path / "into")
    assert len(written) <= published.MOST_FILES
    assert sum(map(len, written.values())) <= published.MOST_BYTES


def test_every_command_says_what_is_wrong_with_an_archive(tmp_path: Path) -> None:
    bad = tmp_path / "bad.tar.xz"
    bad.write_bytes(b"nothing of ours")
    for words in (["verify"], ["report"], ["compare"], ["status"], ["scenarios"], ["export", "out", "--from"]):
        done = CliRunner().invoke(app, [*words, str(bad)])
        assert isinstance(done.exception, ResultsPathError), words
        assert "not a harness archive" in done.exception.message


def test_the_shipped_sets_are_as_publish_makes_them(published: Callable[[str], list[Path]], tmp_path: Path) -> None:
    (folder,) = published("h200-interference-*")
    made = publish(folder, tmp_path / "again.tar.xz")
    with opened(made) as again:
        found = files_below(again)
    assert found.keys() >= DESCRIBED
    shipped = files_below(folder)
    shipped.pop("croissant.json")  # of a version that wrote it
    assert {name: shipped[name] for name in shipped.keys() - DESCRIBED} == {
        name: found[name] for name in found.keys() - DESCRIBED
    }
