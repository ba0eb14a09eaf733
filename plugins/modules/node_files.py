#!/usr/bin/python3
"""All files of one role in one call: contents, links and what must not be there."""

from __future__ import annotations

import glob
import os
import pwd
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: node_files
short_description: Files with their contents, links and absences in one call
description:
  - One call per role instead of one or two per file; each file is replaced in one step, its folder made where needed.
options:
  files:
    description: Files.
    type: list
    elements: dict
    default: []
    suboptions:
      path: {description: Where., type: path, required: true}
      content: {description: What; this or O(files[].source)., type: str}
      source: {description: A file on the machine that is copied., type: path}
      mode: {description: Permissions in octal., type: str, default: "0644"}
      owner: {description: User who owns it and its folder; empty leaves that to whoever runs this., type: str,
              default: ""}
  links: {description: Symbolic links as path and target; a real file in the way is an error., type: dict, default: {}}
  absent: {description: Files that must not be there; patterns as a shell would read them., type: list, elements: str,
           default: []}
author: [the project]
"""

EXAMPLES = r"""
- name: Configure
  node_files:
    files: [{path: /etc/example.conf, content: "answer = 42\n"}]
    absent: ["/etc/example.d/*.bak"]
"""

RETURN = r"""
written: {description: Files that were written now., type: list, elements: str, returned: always}
removed: {description: Files that were removed now., type: list, elements: str, returned: always}
"""


class Files:
    """What is asked for against what is on the disk."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.written: list[str] = []
        self.removed: list[str] = []
        self.diff: list[dict[str, str]] = []

    def content(self, one: dict[str, Any]) -> str:
        """The content asked for; a source that a check of a virgin machine does not meet counts as empty."""
        if one["source"] is None:
            return str(one["content"])
        source = Path(one["source"])
        return "" if self.module.check_mode and not source.exists() else source.read_text(encoding="utf-8")

    def file(self, path: Path, content: str, mode: str, owner: str) -> None:
        """Brings one file to its content, mode and owner."""
        before = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
        uid = pwd.getpwnam(owner).pw_uid if owner else None
        if before == content and not path.is_symlink() and self.fits(path, int(mode, 8), uid):
            return
        self.written.append(str(path))
        shown = {"before": before or "", "after": content} if int(mode, 8) & 0o044 else {"before": "", "after": ""}
        self.diff.append({"before_header": str(path), "after_header": str(path), **shown})
        if not self.module.check_mode:
            self.write(path, content, int(mode, 8), uid)

    @staticmethod
    def fits(path: Path, mode: int, uid: int | None) -> bool:
        """Whether mode and owner are right."""
        info = path.stat()
        return info.st_mode & 0o7777 == mode and uid in (None, info.st_uid) and uid in (None, path.parent.stat().st_uid)

    def write(self, path: Path, content: str, mode: int, uid: int | None) -> None:
        """Replaces the file in one step: a reader sees the old one or the new one, also after a power cut."""
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        # One folder up, on the same disk: what is left by a kill in its own folder may be read as configuration.
        handle, name = tempfile.mkstemp(dir=path.parent.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as new:
            new.write(content)
            os.fchmod(new.fileno(), mode)
            if uid is not None:
                os.fchown(new.fileno(), uid, pwd.getpwuid(uid).pw_gid)
                os.chown(path.parent, uid, pwd.getpwuid(uid).pw_gid)
            new.flush()
            os.fsync(new.fileno())
        Path(name).replace(path)

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

    def absent(self, pattern: str) -> None:
        """Removes the files that fit a pattern."""
        for name in sorted(glob.glob(pattern, include_hidden=True)):  # noqa: PTH207 - the pattern may be absolute
            if not Path(name).is_dir():
                self.removed.append(name)
                if not self.module.check_mode:
                    Path(name).unlink()


def specification() -> dict[str, Any]:
    """The module's arguments."""
    file = {
        "path": {"type": "path", "required": True},
        "content": {"type": "str"},
        "source": {"type": "path"},
        "mode": {"type": "str", "default": "0644"},
        "owner": {"type": "str", "default": ""},
    }
    return {
        "files": {
            "type": "list",
            "elements": "dict",
            "default": [],
            "options": file,
            "mutually_exclusive": [("content", "source")],
            "required_one_of": [("content", "source")],
        },
        "links": {"type": "dict", "default": {}},
        "absent": {"type": "list", "elements": "str", "default": []},
    }


def main() -> None:
    """Runs the module."""
    module = AnsibleModule(argument_spec=specification(), supports_check_mode=True)
    files = Files(module)
    try:
        for one in module.params["files"]:
            files.file(Path(one["path"]), files.content(one), one["mode"], one["owner"])
        for path, target in module.params["links"].items():
            files.link(Path(path), target)
        for pattern in module.params["absent"]:
            files.absent(pattern)
    except (OSError, KeyError) as error:
        module.fail_json(
            msg=f"a file could not be brought to its state: {error}. Free space, a read-only disk or a user that does"
            " not exist are the usual reasons; mend it and run again.",
            written=files.written,
        )
    changed = bool(files.written or files.removed)
    module.exit_json(changed=changed, written=files.written, removed=files.removed, diff=files.diff)


if __name__ == "__main__":
    main()
