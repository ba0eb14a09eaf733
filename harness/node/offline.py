"""Everything that ``site.yml`` fetches, read from the same table that the roles read.

A mirror that holds these things is all the roles need: packages in flat apt repositories, files below
``<component>/<version>/<name>``, images under their full names, Python packages in an index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from harness.errors import PlaybookError, UsageError
from harness.node.runner import resolve

TABLE = Path("inventory/group_vars/all/versions.yml")
REQUIREMENTS = Path("roles/workload_image/files/requirements.txt")
KINDS = ("packages", "files", "images", "requirements")
_MIRRORS = (
    "mirror_apt_crio",
    "mirror_apt_kubernetes",
    "mirror_apt_nvidia",
    "mirror_files",
    "mirror_images",
    "mirror_images_insecure",
    "mirror_pip",
    "workload_image_requirements",
)


@dataclass(frozen=True, slots=True)
class Package:
    """A Debian package at an upstream version; any Debian revision of it will do."""

    name: str
    version: str
    repository: str


@dataclass(frozen=True, slots=True)
class Repository:
    """A flat apt repository: where it is, its signing key, and where a mirror of it keeps that key."""

    name: str
    url: str
    key_url: str
    key_name: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file with its checksum. ``path`` is its place below a mirror's folder."""

    path: str
    url: str
    sha256: str


@dataclass(frozen=True, slots=True)
class OfflineList:
    """What a mirror has to hold.

    Attributes:
        distribution_packages: names in the distribution's own archive; which versions is the distribution's matter.
        image_sources: image -> where it is fetched from: itself, or its place in a mirror.
        requirements: what pip installs into the workload image, one requirement each.
        architecture: of packages and images, as Debian calls it.
        index: where pip finds it; empty: where it is told on the machine, or upstream.
    """

    repositories: tuple[Repository, ...]
    packages: tuple[Package, ...]
    distribution_packages: tuple[str, ...]
    files: tuple[RemoteFile, ...]
    images: tuple[str, ...]
    image_sources: Mapping[str, str]
    images_insecure: bool = False
    requirements: tuple[str, ...] = ()
    index: str = ""
    architecture: str = "amd64"

    def lines(self) -> list[str]:
        """One line per thing, the kind first: made for reading and for grep."""
        repositories = {repository.name: repository for repository in self.repositories}
        return [
            *(f"package {entry.name}={entry.version} {repositories[entry.repository].url}" for entry in self.packages),
            *(f"package {name} (distribution)" for name in self.distribution_packages),
            *(f"key {entry.key_url} {entry.fingerprint}" for entry in self.repositories),
            *(f"file {entry.url} sha256:{entry.sha256} {entry.path}" for entry in self.files),
            *(f"image {image}" for image in self.images),
            *(f"requirement {entry} {self.index or '(Python index)'}" for entry in self.requirements),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def collect(project: Path, *, inventory: Path | None = None, kinds: Sequence[str] = ()) -> OfflineList:
    """The list for the versions that this inventory chooses.

    Raises UsageError for an unknown kind, NodeError where the inventory or the table is wrong.
    """
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise UsageError(f"There is nothing called {', '.join(unknown)}.", advice=f"Choose from {', '.join(KINDS)}.")
    table = _table_names(project / TABLE)
    values = resolve(project, [*table, *_MIRRORS], inventory=inventory)
    ours = (project / REQUIREMENTS).read_text(encoding="utf-8")
    chosen = [
        from_variables(entry | {"workload_image_requirements": entry["workload_image_requirements"] or ours})
        for entry in values.values()
    ]
    if any(other != chosen[0] for other in chosen):
        raise PlaybookError(
            "The nodes of this inventory have different versions.",
            advice="List them one by one, with an inventory each.",
        )
    return _only(chosen[0], kinds or KINDS)


def from_variables(variables: Mapping[str, Any]) -> OfflineList:
    """The list that resolved variables stand for."""
    versions = variables["versions"]
    repositories = tuple(_repository(name, variables) for name in variables["versions_packages"])
    packages = tuple(
        Package(package["name"], str(versions[package["version"]]), name)
        for name, members in variables["versions_packages"].items()
        for package in members
    )
    files: list[RemoteFile] = []
    images: list[str] = list(versions["images"].values())
    for component, row in _component_rows(variables).items():
        files += [_file(component, entry, variables) for entry in row.get("files", ())]
        images += row.get("images", {}).values()
    images = sorted(set(images))
    mirror = str(variables.get("mirror_images") or "").rstrip("/")
    return OfflineList(
        repositories=repositories,
        packages=packages,
        distribution_packages=(
            *variables["versions_packages_distribution"],
            *variables.get("versions_packages_build", ()),
        ),
        files=tuple(files),
        images=tuple(images),
        image_sources={image: f"{mirror}/{image}" if mirror else image for image in images},
        images_insecure=bool(mirror and variables.get("mirror_images_insecure")),
        requirements=_requirements(str(variables.get("workload_image_requirements") or "")),
        index=str(variables.get("mirror_pip") or ""),
        architecture=variables["versions_architectures"][variables["versions_architecture"]],
    )


def _table_names(path: Path) -> list[str]:
    """Names of the table's variables; their values are Ansible's to resolve."""
    try:
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise PlaybookError(f"The table of versions cannot be read: {error}", advice=f"Restore {path}.") from error
    return list(table)


def _repository(name: str, variables: Mapping[str, Any]) -> Repository:
    mirror = str(variables.get(f"mirror_apt_{name}") or "")
    key = variables["versions_apt_keys"][name]
    key_name = str(key["key"]).rpartition("/")[2]
    url = (mirror or variables["versions"][f"apt_{name}"]).rstrip("/") + "/"
    key_url = key["key"] if "://" in key["key"] and not mirror else f"{url}{key_name}"
    return Repository(name, url, key_url, key_name, key["fingerprint"])


def _component_rows(variables: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """``component/version`` -> its row, for every table ``versions_<component>`` that is keyed by versions."""
    rows = {}
    for name, table in variables.items():
        component = name.removeprefix("versions_")
        version = str(variables["versions"].get(component, ""))
        if component != name and version and isinstance(table, Mapping) and version in table:
            rows[f"{component}/{version}"] = table[version]
    return rows


def _file(component: str, entry: Mapping[str, str], variables: Mapping[str, Any]) -> RemoteFile:
    path = f"{component}/{entry['name']}"
    mirror = str(variables.get("mirror_files") or "").rstrip("/")
    return RemoteFile(path, f"{mirror}/{path}" if mirror else entry["url"], entry["sha256"])


def _requirements(text: str) -> tuple[str, ...]:
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(line for line in lines if line)


def _only(everything: OfflineList, kinds: Sequence[str]) -> OfflineList:
    packages, files, images, requirements = (kind in kinds for kind in KINDS)
    return replace(
        everything,
        repositories=everything.repositories if packages else (),
        packages=everything.packages if packages else (),
        distribution_packages=everything.distribution_packages if packages else (),
        files=everything.files if files else (),
        images=everything.images if images else (),
        image_sources=everything.image_sources if images else {},
        requirements=everything.requirements if requirements else (),
    )
