"""Files are written on file systems that cannot do everything, and what fails there says what to do."""

import errno
import os
import stat

import pytest

from harness.errors import ConflictError, StorageError
from harness.results.files import atomic_write, storage_error


def refusing(number):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_without_hard_links_a_file_is_written_and_never_over_another(tmp_path, monkeypatch, number):
    monkeypatch.setattr(os, "link", refusing(number))

    atomic_write(tmp_path / "a", "first")
    with pytest.raises(ConflictError, match="never overwritten"):
        atomic_write(tmp_path / "a", "second")

    assert (tmp_path / "a").read_text() == "first"
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_a_folder_that_cannot_be_synced_is_no_error(tmp_path, monkeypatch):
    sync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: refusing(errno.EINVAL)() if stat.S_ISDIR(os.fstat(fd).st_mode) else sync(fd)
    )

    atomic_write(tmp_path / "a", "text")

    assert (tmp_path / "a").read_text() == "text"


def test_a_path_that_is_too_long_says_what_to_do(tmp_path):
    with pytest.raises(StorageError, match="shorter"):
        atomic_write(tmp_path / ("x" * 300), "text")


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENOTDIR, errno.EROFS, errno.EIO]
)
def test_what_to_do_suits_a_command_that_has_no_results_folder_and_nothing_to_resume(tmp_path, number):
    advice = storage_error(OSError(number, os.strerror(number)), tmp_path / "report.html").advice
    assert "--results" not in advice
    assert "resume" not in advice or "run the command again (a campaign: harness resume)" in advice


def test_what_may_have_been_read_is_not_said_to_need_write_access(tmp_path):
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    assert "write access" in storage_error(denied, tmp_path).advice
    assert "write access" not in storage_error(denied, tmp_path, "read or write").advice
