"""Files in one step, with owner and mode; links; absences; and a check that touches nothing."""

import base64
import errno
import os
import types

import pytest
import tree
from fake_module import Failed, FakeModule

module = tree.shared("node_files")


def wanted(path, content="x", **changes):
    """What a role asks for of one file."""
    plain = {"source": None, "mode": "0644", "owner": "", "only_mend": False}
    return {
        "files": [plain | {"path": str(path), "content": content} | changes],
        "links": {},
        "absent": [],
        "emptied": [],
    }


def files(**params):
    return module.Files(FakeModule(**params))


def test_a_file_is_written_once_with_its_folder_and_mode(tmp_path):
    path = tmp_path / "a/b/c.conf"
    first, second = files(), files()
    first.file(path, "x = 1\n", "0600", "")
    second.file(path, "x = 1\n", "0600", "")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("x = 1\n", 0o600)
    assert (first.written, second.written) == ([str(path)], [])
    assert [one.name for one in path.parent.iterdir()] == ["c.conf"]


def test_a_wrong_mode_alone_is_put_right(tmp_path):
    path = tmp_path / "d/c.conf"
    files().file(path, "x", "0644", "")
    path.chmod(0o666)
    again = files()
    again.file(path, "x", "0644", "")
    assert again.written == [str(path)]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_private_file_never_appears_in_a_diff(tmp_path):
    found = files()
    found.file(tmp_path / "d/secret", "token", "0600", "")
    found.file(tmp_path / "d/public", "shown", "0644", "")
    assert [one["after"] for one in found.diff] == ["", "shown"]


def test_a_key_is_made_once_and_is_in_no_result(tmp_path):
    path = tmp_path / "d/key"
    key_of_its_own = wanted(path, "secret: RANDOM_KEY", random=True, mode="0600")
    first, again = files(), files()
    first.apply(key_of_its_own)
    key = path.read_text().removeprefix("secret: ")
    again.apply(key_of_its_own)
    assert len(base64.b64decode(key, validate=True)) == 32
    assert (first.written, again.written, path.read_text()) == ([str(path)], [], f"secret: {key}")
    assert key not in str(first.diff)


def test_check_mode_touches_nothing(tmp_path):
    (tmp_path / "old.bak").touch()
    found = files(check_mode=True)
    found.file(tmp_path / "d/new", "x", "0644", "")
    found.link(tmp_path / "d/link", "/usr/libexec/crio/runc")
    found.absent(str(tmp_path / "*.bak"))
    assert len(found.written) == 2
    assert len(found.removed) == 1
    assert [one.name for one in tmp_path.iterdir()] == ["old.bak"]


def test_a_link_is_made_and_mended_and_a_real_file_in_its_way_is_an_error(tmp_path):
    link = tmp_path / "runc"
    files().link(link, "/somewhere/else")
    files().link(link, "/usr/libexec/crio/runc")
    again = files()
    again.link(link, "/usr/libexec/crio/runc")
    assert str(link.readlink()) == "/usr/libexec/crio/runc"
    assert again.written == []
    (tmp_path / "crun").touch()
    with pytest.raises(Failed, match="real file"):
        files().link(tmp_path / "crun", "/usr/libexec/crio/crun")


def test_what_fits_a_pattern_goes_hidden_files_too_and_folders_stay(tmp_path):
    for name in ("a.bak", ".b.bak", "keep.conf"):
        (tmp_path / name).touch()
    (tmp_path / "folder.bak").mkdir()
    files().absent(str(tmp_path / "*.bak"))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["folder.bak", "keep.conf"]


def test_what_is_asked_for_stays_though_a_pattern_fits_it(tmp_path):
    for name in ("now.py", "earlier.py", "linked.py"):
        (tmp_path / name).write_text("x")
    (tmp_path / "linked.py").unlink()
    links = {str(tmp_path / "linked.py"): "/somewhere"}
    found = files()
    found.apply(wanted(tmp_path / "now.py") | {"links": links, "absent": [str(tmp_path / "*.py")]})
    assert sorted(one.name for one in tmp_path.iterdir()) == ["linked.py", "now.py"]
    assert found.removed == [str(tmp_path / "earlier.py")]


def test_a_source_that_a_check_does_not_meet_yet_counts_as_empty(tmp_path):
    one = {"source": str(tmp_path / "admin.conf"), "content": None}
    assert files(check_mode=True).content(one) == ""
    with pytest.raises(FileNotFoundError):
        files().content(one)


def test_what_cannot_be_written_ends_with_the_reason(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(Failed, match=r"could not be brought to its state.*run again"):
        files().apply(wanted(tmp_path / "file/below"))
    with pytest.raises(Failed, match="no-such-user"):
        files().apply(wanted(tmp_path / "d/x", owner="no-such-user"))


def test_what_a_killed_run_left_goes_with_the_next_write(tmp_path):
    left = tmp_path / ".c.conf.abcd.new"
    other = tmp_path / ".other.abcd.new"
    left.touch()
    other.touch()
    files().file(tmp_path / "d/c.conf", "x", "0644", "")
    assert not left.exists()
    assert other.exists()


def test_a_folder_that_is_a_mount_has_its_new_files_beside_the_old_ones(tmp_path, monkeypatch):
    path = tmp_path / "kubelet/config.yaml"
    files().file(path, "old", "0644", "")
    rename = os.rename

    def across(new, target, *, src_dir_fd, dst_dir_fd):
        if not os.path.sameopenfile(src_dir_fd, dst_dir_fd):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        rename(new, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(module.os, "rename", across)
    files().file(path, "new", "0600", "")

    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o600)
    assert [one.name for folder in (tmp_path, path.parent) for one in folder.iterdir()] == ["kubelet", "config.yaml"]


def test_a_user_s_folder_that_is_a_link_leads_root_nowhere(tmp_path, monkeypatch):
    monkeypatch.setattr(module.pwd, "getpwnam", lambda _: types.SimpleNamespace(pw_uid=1000))
    monkeypatch.setattr(module.pwd, "getpwuid", lambda _: types.SimpleNamespace(pw_gid=1000))
    owned = []
    monkeypatch.setattr(module.os, "chown", lambda *words: owned.append(words))
    monkeypatch.setattr(module.os, "fchown", lambda *words: owned.append(words))
    for name in ("home", "etc"):
        (tmp_path / name).mkdir()
    (tmp_path / "home/.kube").symlink_to(tmp_path / "etc")
    with pytest.raises(OSError, match=r"\.kube"):
        files().file(tmp_path / "home/.kube/config", "x", "0600", "ada")
    assert (owned, list((tmp_path / "etc").iterdir())) == ([], [])


def test_a_file_to_be_mended_only_is_not_made(tmp_path):
    path = tmp_path / "d/30-nvidia.conf"
    files().apply(wanted(path, only_mend=True))
    assert not path.parent.exists()
    path.parent.mkdir()
    path.write_text("damaged")
    files().apply(wanted(path, only_mend=True))
    assert path.read_text() == "x"


def test_a_file_with_the_line_ends_of_windows_is_written_once(tmp_path):
    path, content = tmp_path / "d/a.yaml", "a: 1\r\nb: 2\r\n"
    first, again = files(), files()
    first.file(path, content, "0644", "")
    again.file(path, content, "0644", "")
    assert (first.written, again.written, path.read_bytes()) == ([str(path)], [], content.encode())


@pytest.mark.parametrize("check_mode", [False, True])
def test_folders_go_with_all_that_is_in_them_where_the_pattern_says_so_and_others_where_nothing_is_left(
    tmp_path, check_mode
):
    kept, left = tmp_path / "kept", tmp_path / "left"
    for path in ("kept/pvc-1/data/x", "kept/pvc-2/x", "kept/pvc-notes", "kept/mine", "left/pvc-1/x", "linked/x"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (kept / "pvc-3").symlink_to(tmp_path / "linked")
    found = files(check_mode=check_mode)
    patterns = [f"{folder}/pvc-*/" for folder in (kept, left)]
    found.apply({"files": [], "links": {}, "absent": [*patterns, f"{kept}/min*"], "emptied": [str(left), str(kept)]})
    gone = [str(kept / "pvc-1"), str(kept / "pvc-2"), str(left / "pvc-1"), str(kept / "mine")]
    assert found.removed == [*gone, str(left)]
    assert (left.exists(), (kept / "pvc-1").exists(), (tmp_path / "linked/x").exists()) == (
        check_mode,
        check_mode,
        True,
    )
    assert (kept / "pvc-notes").exists(), "a pattern with a slash is of folders alone"
    assert (kept / "pvc-3").is_symlink()
    found = files(check_mode=check_mode)
    (kept / "minutes").mkdir(parents=True)
    found.apply({"files": [], "links": {}, "absent": [f"{kept}/minu*"], "emptied": [str(kept)]})
    assert (found.removed, (kept / "minutes").exists()) == ([], True), "a folder is no file"


@pytest.mark.parametrize("check_mode", [False, True])
def test_a_folder_on_another_disk_is_emptied_and_its_link_goes(tmp_path, check_mode):
    (tmp_path / "disk/pvc-1").mkdir(parents=True)
    link = tmp_path / "volumes"
    link.symlink_to(tmp_path / "disk")
    found = files(check_mode=check_mode)
    found.apply({"files": [], "links": {}, "absent": [f"{link}/pvc-*/"], "emptied": [str(link)]})
    assert found.removed == [str(link / "pvc-1"), str(link)]
    assert (link.is_symlink(), (tmp_path / "disk").is_dir()) == (check_mode, True)
