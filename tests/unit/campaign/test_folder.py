"""The folder of a campaign and its journal."""

import errno
import fcntl
import json
import os

import pytest

from harness.campaign import folder as folders
from harness.campaign.journal import Journal, read_events
from harness.campaign.progress import campaign_status
from harness.errors import ConflictError, ResultsPathError, StorageError
from harness.results import layout
from tests.support.experiments import campaign

TEXT = "name: test\n"


@pytest.fixture
def made(tmp_path):
    source = tmp_path / "campaign.yaml"
    source.write_text(TEXT)
    return folders.create(tmp_path / "results", campaign(), text=TEXT, source=str(source))


def test_what_is_made_can_be_opened(made):
    opened = folders.open_folder(made.path)

    assert opened == made
    assert opened.spec == campaign()
    assert made.path.name.startswith("test-2")


def test_two_campaigns_of_the_same_second_get_folders_of_their_own(tmp_path):
    paths = {folders.create(tmp_path, campaign(), text=TEXT, source="shipped:x").path for _ in range(5)}

    assert len(paths) == 5
    assert not list(tmp_path.glob(".*"))


def test_a_second_harness_is_refused_and_told_who_holds_the_campaign(made):
    with (
        made.lock(),
        pytest.raises(ConflictError, match=f"in use by another harness \\(process {os.getpid()}\\)"),
        folders.open_folder(made.path).lock(),
    ):
        pass
    with made.lock():
        pass


def test_whoever_looks_whether_a_campaign_is_held_is_in_nobodys_way(made, monkeypatch):
    with made.lock():
        assert campaign_status(made.path).running
    close, started = os.close, []

    def close_late(descriptor):
        """The moment in which the lock's file is still open for the look."""
        monkeypatch.setattr(os, "close", close)
        with made.lock():
            started.append(True)
        close(descriptor)

    monkeypatch.setattr(os, "close", close_late)
    assert not campaign_status(made.path).running
    assert started == [True]


def test_a_file_system_without_locks_is_told(made, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with pytest.raises(StorageError, match=r"Cannot lock .*local disk"), made.lock():
        pass


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["open", "ftruncate", "pwrite"])
def test_a_disk_that_refuses_the_lock_is_a_storage_error_with_its_path(made, monkeypatch, call, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(StorageError, match=f"{made.path}.*{os.strerror(number)}"), made.lock():
        pass
    if call == "open":
        with pytest.raises(StorageError, match="Cannot read"):
            made.is_locked()


def test_an_edited_copy_of_the_campaign_file_is_refused(made):
    (made.path / "campaign.yaml").write_text(TEXT + "repeats: 9\n")

    with pytest.raises(ConflictError, match="is not the campaign file this campaign began with"):
        folders.open_folder(made.path)


def test_a_campaign_file_that_is_gone_is_called_missing(made):
    (made.path / "campaign.yaml").unlink()
    with pytest.raises(ConflictError, match=r"campaign\.yaml is missing\.") as refused:
        folders.open_folder(made.path)
    assert "Restore it" in refused.value.advice


def test_an_edited_original_is_refused_and_one_that_is_gone_is_not(made, tmp_path):
    folders.check_source(made)
    (tmp_path / "campaign.yaml").write_text(TEXT + "repeats: 9\n")
    with pytest.raises(ConflictError, match="changed since the campaign"):
        folders.check_source(made)
    (tmp_path / "campaign.yaml").unlink()
    folders.check_source(made)


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", json.dumps({"campaign_id": 1})])
def test_a_damaged_identity_is_an_error_with_advice(made, damage):
    (made.path / layout.CAMPAIGN_JSON).write_text(damage)

    with pytest.raises(ResultsPathError) as caught:
        folders.open_folder(made.path)
    assert caught.value.advice


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(ResultsPathError, match="is not a campaign folder"):
        folders.open_folder(tmp_path)


def test_a_file_in_the_place_of_the_results_folder_is_an_error(tmp_path):
    (tmp_path / "results").write_text("")

    with pytest.raises(StorageError):
        folders.create(tmp_path / "results", campaign(), text=TEXT, source="shipped:x")


def test_attempts_are_never_numbered_twice(made):
    assert made.next_attempt("a") == 1
    for number in (1, 2, 10):
        layout.attempt_folder(made.path, "a", number).mkdir()
    assert made.next_attempt("a") == 11


def test_an_experiment_set_aside_is_kept(made):
    made.final_folder("a").mkdir()
    (made.final_folder("a") / "data").write_text("kept")

    place = made.set_aside("a")

    assert (place / "data").read_text() == "kept"
    assert not made.final_folder("a").exists()


@pytest.mark.parametrize("torn", [b'{"at": "2026', b"{", b"", b"x" * 70_000])
def test_a_torn_last_line_is_dropped_and_never_joined_to_the_next(tmp_path, torn):
    path = tmp_path / "state.jsonl"
    journal = Journal(path)
    journal.append("one", number=1)
    journal.close()
    with path.open("ab") as file:
        file.write(torn)
    assert [event["event"] for event in read_events(path)] == ["one"]

    journal = Journal(path)
    journal.append("two")
    journal.close()

    assert [event["event"] for event in read_events(path)] == ["one", "two"]


def test_a_journal_that_does_not_exist_is_empty(tmp_path):
    assert list(read_events(tmp_path / "state.jsonl")) == []
