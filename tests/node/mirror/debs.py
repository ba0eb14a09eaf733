"""Small Debian packages, made on the spot with dpkg-deb."""

import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tests.node.machine.errors import MachineError


@dataclass(frozen=True)
class File:
    """One file of a package: its text and its mode; conffile: whether dpkg keeps an edited one, by default what lies below /etc."""

    text: str
    mode: int = 0o644
    conffile: bool | None = None


@dataclass(frozen=True)
class Package:
    """What goes into one package.

    files: absolute path -> file; what lies below /etc is a conffile, as in Debian, unless it says otherwise.
    version: full Debian version with its revision. scripts: what dpkg runs, by its name there (postinst, prerm).
    """

    name: str
    version: str
    files: dict[str, File] = field(default_factory=dict)
    depends: str = ""
    description: str = "stands in for the real package in a test"
    scripts: dict[str, str] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        """Name of the .deb as archives write it (no epochs here)."""
        return f"{self.name}_{self.version}_amd64.deb"

    @property
    def conffiles(self) -> list[str]:
        """What dpkg keeps where it was edited."""
        return [
            name
            for name, file in self.files.items()
            if (name.startswith("/etc/") if file.conffile is None else file.conffile)
        ]


def build(package: Package, folder: Path) -> Path:
    """Write the .deb into a folder and return its path."""
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch)
        tree.chmod(0o755)
        _write_tree(package, tree)
        _write_control(package, tree / "DEBIAN")
        target = folder / package.file_name
        done = subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, target],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise MachineError(f"dpkg-deb could not build {package.file_name}: {done.stderr.strip()}")
    return target


def _write_tree(package: Package, tree: Path) -> None:
    for name, file in package.files.items():
        path = tree / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text)
        path.chmod(file.mode)


def _write_control(package: Package, folder: Path) -> None:
    folder.mkdir(mode=0o755)
    fields = {
        "Package": package.name,
        "Version": package.version,
        "Architecture": "amd64",
        "Maintainer": "node test <node-test@localhost>",
        "Depends": package.depends,
        "Description": package.description,
    }
    (folder / "control").write_text("".join(f"{name}: {value}\n" for name, value in fields.items() if value))
    for name, script in package.scripts.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    if package.conffiles:
        (folder / "conffiles").write_text("".join(f"{name}\n" for name in package.conffiles))
