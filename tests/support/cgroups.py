"""Control groups for tests: planted trees, and real groups of version 1."""

from pathlib import Path

import pytest

from harness.cgroup import Cgroup

V2 = "30 24 0:26 {root} {place} rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate"
V1 = "32 31 0:29 {root} {place} rw,relatime - cgroup cgroup rw,{controllers}"


class Machine:
    """A process and the groups it is in."""

    def __init__(self, folder: Path):
        self.folder, self.process = folder, folder / "proc" / "7"
        self.process.mkdir(parents=True)
        self.lines, self.mounts = [], []

    def in_group(self, path, controllers="", *, root="/", mount="cgroup"):
        self.lines.append(f"{len(self.lines)}:{controllers}:{path}")
        place = self.folder / mount
        form = V1 if controllers else V2
        self.mounts.append(form.format(root=root, place=place, controllers=controllers))
        (self.process / "cgroup").write_text("\n".join(self.lines) + "\n")
        (self.process / "mountinfo").write_text("\n".join(self.mounts) + "\n")
        return self

    def has(self, group, mount="cgroup", **files):
        folder = self.folder / mount / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(f"{text}\n")
        return self

    @property
    def cgroup(self):
        return Cgroup(7, proc=self.folder / "proc")


def make_group(controller, name):
    """A real group; the test is skipped where none can be made. Remove it when its processes have ended."""
    folder = Path("/sys/fs/cgroup") / controller / name
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no group can be made here: {error}")
    return folder
