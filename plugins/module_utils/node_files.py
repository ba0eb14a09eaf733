# ruff: noqa: INP001 - Ansible loads this folder by its own rules, without a package
"""Files brought to their state: contents, links and what must not be there."""

from __future__ import annotations

import base64
import errno
import glob
import hashlib
import os
import pwd
import re
import secrets
import shutil
from collections.abc import Container
from pathlib import Path
from typing import Any

KEY_BYTES = 32
FETCH_TIMEOUT_S = 30
# A password in an address is nobody's to read.
CREDENTIALS = re.compile(r"//[^/]*@")


def write_file(path: Path, content: bytes, mode: int = 0o644, uid: int | None = None) -> None:
    """Replaces the file in one step: a reader sees the old one or the new one, also after a power cut."""
    # A folder that is made for a user is the user's alone, as it will be after the next boot.
    path.parent.mkdir(mode=0o755 if uid is None else 0o700, parents=True, exist_ok=True)
    # One folder up, on the same disk: what is left by a kill in its own folder may be read as configuration.
    try:
        _replace(path, path.parent.parent, content, mode, uid)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # The folder is a mount: /var/lib/kubelet has a disk of its own, or is one that the kubelet laid upon itself.
        _replace(path, path.parent, content, mode, uid)


def _replace(path: Path, folder: Path, content: bytes, mode: int, uid: int | None) -> None:
    """Writes the new file into a folder, and puts it in the place of the old one."""
    for left in folder.glob(f".{path.name}.*.new"):
        left.unlink()
    # A user could have a link lead root elsewhere: the folder is opened once, and all is done in what was opened.
    flags = os.O_RDONLY | os.O_DIRECTORY
    place = os.open(path.parent, flags | (os.O_NOFOLLOW if uid else 0))
    beside = os.dup(place) if folder == path.parent else os.open(folder, flags)
    name = f".{path.name}.{secrets.token_hex(4)}.new"
    try:
        if uid and os.fstat(place).st_uid not in {0, uid}:
            raise PermissionError(f"{path.parent} is another user's")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=beside), "wb") as new:
            new.write(content)
            os.fchmod(new.fileno(), mode)
            if uid is not None:
                os.fchown(new.fileno(), uid, pwd.getpwuid(uid).pw_gid)
                os.fchown(place, uid, pwd.getpwuid(uid).pw_gid)
            new.flush()
            os.fsync(new.fileno())
        try:
            os.rename(name, path.name, src_dir_fd=beside, dst_dir_fd=place)
        except OSError:
            os.unlink(name, dir_fd=beside)
            raise
    finally:
        os.close(place)
        os.close(beside)


class Files:
    """What is asked for against what is on the disk."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.written: list[str] = []
        self.removed: list[str] = []
        self.diff: list[dict[str, str]] = []

    def content(self, one: dict[str, Any]) -> str:
        """The content asked for; a source that a check of a virgin machine does not meet counts as empty."""
        if one.get("random"):
            path = Path(one["path"])
            key = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
            return path.read_text(encoding="utf-8") if path.exists() else str(one["content"]).replace("RANDOM_KEY", key)
        if one.get("url"):
            return self.fetched(Path(one["path"]), one["url"], one["sha256"].lower())
        if one["source"] is None:
            return str(one.get("secret") or one["content"])
        source = Path(one["source"])
        return "" if self.module.check_mode and not source.exists() else source.read_text(encoding="utf-8")

    def fetched(self, path: Path, url: str, sha256: str) -> str:
        """The file as it is where it has the sum, else what is served; ends the module where that has another one. In check mode nothing is fetched."""
        content = path.read_bytes() if path.is_file() else b""
        right = hashlib.sha256(content).hexdigest() == sha256
        if right or self.module.check_mode:
            return content.decode() if right else ""
        from http.client import HTTPException

        from ansible.module_utils.urls import open_url  # takes longer to import than a run without news takes

        try:
            with open_url(url, timeout=FETCH_TIMEOUT_S) as response:
                content = bytes(response.read())
            found = hashlib.sha256(content).hexdigest()
            reason = "" if found == sha256 else f"has the sum {found}, and the table of versions says {sha256}"
        except (OSError, ValueError, HTTPException) as error:
            reason = str(error) or type(error).__name__
        if reason:
            self.module.fail_json(
                msg=f"{CREDENTIALS.sub('//...@', url)} could not be fetched: {reason}. Check that the machine reaches this address and that the mirror"
                " holds this very file, or name another mirror in inventory/group_vars/all/mirrors.yml; then run again."
            )
        return content.decode()

    def file(self, path: Path, content: str, mode: str, owner: str, *, diff: bool = True) -> None:
        """Brings one file to its content, mode and owner; diff: whether it may be shown."""
        # With its line ends as they are: \r\n, read as \n, would be written again by every run.
        before = path.read_bytes().decode(errors="replace") if path.is_file() else None
        uid = pwd.getpwnam(owner).pw_uid if owner else None
        if before == content and not path.is_symlink() and self.fits(path, int(mode, 8), uid):
            return
        self.written.append(str(path))
        public = diff and int(mode, 8) & 0o044
        shown = {"before": before or "", "after": content} if public else {"before": "", "after": ""}
        self.diff.append({"before_header": str(path), "after_header": str(path), **shown})
        if not self.module.check_mode:
            write_file(path, content.encode(), int(mode, 8), uid)

    @staticmethod
    def fits(path: Path, mode: int, uid: int | None) -> bool:
        """Whether mode and owner are right."""
        info = path.stat()
        return info.st_mode & 0o7777 == mode and uid in (None, info.st_uid) and uid in (None, path.parent.stat().st_uid)

    def link(self, path: Path, target: str) -> None:
        """Brings one link to its target."""
        if path.is_symlink() and str(path.readlink()) == target:
            return
        if path.exists() and not path.is_symlink():
            self.module.fail_json(
                msg=f"{path} is a real file and was to be a link to {target}. Some package or person put it there:"
                " move it away, or choose another folder for the links, and run again."
            )
        self.written.append(str(path))
        if not self.module.check_mode:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.symlink_to(target)

    def absent(self, pattern: str, keep: Container[str] = ()) -> None:
        """Removes the files that fit a pattern, but for those to keep.

        A name that ends with a slash may be of a folder as well; a pattern that does is of real folders alone.
        """
        folders, several = pattern.endswith("/"), glob.has_magic(pattern)
        for name in sorted(glob.glob(pattern.rstrip("/"), include_hidden=True)):  # noqa: PTH207 - the pattern may be absolute
            folder = Path(name).is_dir() and not Path(name).is_symlink()
            if name in keep or (Path(name).is_dir() and not folders) or (folders and several and not folder):
                continue
            self.removed.append(name)
            if not self.module.check_mode:
                shutil.rmtree(name) if folder else Path(name).unlink()

    def emptied(self, folder: Path) -> None:
        """Removes a folder in which nothing is left, or the link to it."""
        if folder.is_dir() and all(str(path) in self.removed for path in folder.iterdir()):
            self.removed.append(str(folder))
            if not self.module.check_mode:
                folder.unlink() if folder.is_symlink() else folder.rmdir()

    def apply(self, params: dict[str, Any]) -> None:
        """Files first, then links, then absences; ends the module with the reason when one cannot be had."""
        try:
            for one in params["files"]:
                if one["only_mend"] and not Path(one["path"]).exists():
                    continue
                # What is fetched has thousands of lines, and its sum says what it is.
                self.file(Path(one["path"]), self.content(one), one["mode"], one["owner"], diff=not one.get("url"))
            for path, target in params["links"].items():
                self.link(Path(path), target)
            keep = {one["path"] for one in params["files"]} | set(params["links"])
            for pattern in params["absent"]:
                self.absent(pattern, keep)
            for folder in params["emptied"]:
                self.emptied(Path(folder))
        except (OSError, KeyError, ValueError) as error:
            self.module.fail_json(
                msg=f"a file could not be brought to its state: {error}. Free space, a read-only disk or a user that"
                " does not exist are the usual reasons; fix it and run again.",
                written=self.written,
            )
