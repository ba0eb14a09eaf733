"""Everything that ``site.yml`` fetches, read from the same table that the roles read; and how a mirror of it is fetched.

A mirror holds packages in flat apt repositories (``apt/<repository>/``, with the signatures that apt verifies on the node), files
below ``files/<component>/<version>/<name>``, images (``images/``, an OCI image layout), and ``mirrors.yml``: the variables to set.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import yaml

from harness.errors import NodeError, PlaybookError, UsageError
from harness.node.runner import resolve
from harness.results.files import atomic_write, sha256_of, storage_errors, sync_file, whole_file

TABLE = Path("inventory/group_vars/all/versions.yml")
REQUIREMENTS = Path("roles/workload_image/files/requirements.txt")
_OF_KIND = {
    "packages": ("repositories", "packages", "distribution_packages"),
    "files": ("files",),
    "images": ("images", "image_sources"),
    "requirements": ("requirements",),
}
KINDS = tuple(_OF_KIND)
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
_TIMEOUT_S, _ATTEMPTS, _PAUSE_S = 30.0, 3, 1.0
_CHUNK_BYTES = 1 << 20
_CLIENT_ERRORS, _BUSY, _NOT_FOUND = range(400, 500), 429, 404
_REF_NAME = "org.opencontainers.image.ref.name"
_INDEXES = ("Packages", "Packages.gz")
_SIGNATURES = ("InRelease", "Release.gpg")
_IMAGES = "mirror_images: REGISTRY  # skopeo copy oci:images:IMAGE docker://REGISTRY/IMAGE"
# Which wheels fit is for the base image's own Python to choose.
_PIP = """\
# With the Python of the workload image's base: pip download --only-binary :all: --dest wheels --requirement requirements.txt
# Then serve the wheels as an index, or as a folder: workload_image_pip: {find-links: http://MIRROR/wheels, no-index: true}
mirror_pip: http://MIRROR/simple"""


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
    """What a mirror has to hold; ``image_sources``: where each image is fetched from, ``index``: where pip finds requirements."""

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


def collect(project: Path, *, inventory: Path | None = None, kinds: Sequence[str] = ()) -> OfflineList:
    """The list for the versions that this inventory chooses. Raises UsageError for an unknown kind, else NodeError."""
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise UsageError(f"There is nothing called {', '.join(unknown)}.", advice=f"Choose from {', '.join(KINDS)}.")
    table = _table_names(project / TABLE)
    values = resolve(project, [*table, *_MIRRORS], inventory=inventory)
    ours = (project / REQUIREMENTS).read_text(encoding="utf-8")
    first, *others = (
        from_variables(entry | {"workload_image_requirements": entry["workload_image_requirements"] or ours})
        for entry in values.values()
    )
    if any(other != first for other in others):
        raise PlaybookError(
            "The nodes of this inventory have different versions.",
            advice="List them one by one, with an inventory each.",
        )
    left_out = [field for kind in set(KINDS).difference(kinds or KINDS) for field in _OF_KIND[kind]]
    return replace(first, **{field: type(getattr(first, field))() for field in left_out})


def from_variables(variables: Mapping[str, Any]) -> OfflineList:
    """The list that resolved variables stand for."""
    versions = variables["versions"]
    rows = _component_rows(variables)
    images = sorted(
        {*versions["images"].values(), *(image for row in rows.values() for image in row.get("images", {}).values())}
    )
    mirror = str(variables.get("mirror_images") or "").rstrip("/")
    requirements = str(variables.get("workload_image_requirements") or "")
    distribution = (variables["versions_packages_distribution"], variables.get("versions_packages_build", ()))
    return OfflineList(
        repositories=tuple(_repository(name, variables) for name in variables["versions_packages"]),
        packages=tuple(
            Package(package["name"], str(versions[package["version"]]), name)
            for name, members in variables["versions_packages"].items()
            for package in members
        ),
        distribution_packages=tuple(itertools.chain(*distribution)),
        files=tuple(
            _file(component, entry, variables) for component, row in rows.items() for entry in row.get("files", ())
        ),
        images=tuple(images),
        image_sources={image: f"{mirror}/{image}" if mirror else image for image in images},
        images_insecure=bool(mirror and variables.get("mirror_images_insecure")),
        requirements=tuple(line for line in map(_without_comment, requirements.splitlines()) if line),
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


def _without_comment(line: str) -> str:
    return line.partition("#")[0].strip()


class FetchError(NodeError):
    """Something could not be fetched, or is not what it should be. ``status``: of the answer, if there was one."""

    def __init__(self, message: str, *, advice: str = "", status: int | None = None) -> None:
        super().__init__(message, advice=advice)
        self.status = status


def fetch_all(wanted: OfflineList, folder: Path, *, say: Callable[[str], None]) -> None:
    """Fetch what is missing; what is there and has its checksum is kept. Raises FetchError, StorageError, UsageError."""
    if wanted.images and shutil.which("skopeo") is None:
        raise UsageError(
            "skopeo fetches the images, and is not installed here.",
            advice="apt-get install skopeo; or leave the images out: --only packages --only files",
        )
    for repository in wanted.repositories:
        members = [package for package in wanted.packages if package.repository == repository.name]
        _fetch_repository(repository, members, folder / "apt" / repository.name, wanted.architecture, say=say)
    for file in wanted.files:
        new = fetch_file(file.url, folder / "files" / file.path, file.sha256)
        say(f"file {file.path}: {'fetched' if new else 'was there'}")
    for image in wanted.images:
        _fetch_image(wanted, image, folder / "images")
        say(f"image {image}: fetched and checked")
    if wanted.requirements:
        _write(folder / "requirements.txt", "\n".join(wanted.requirements) + "\n")
        say(f"{len(wanted.requirements)} Python packages are not fetched; {folder / 'mirrors.yml'} says how to")
    _write(folder / "mirrors.yml", _mirror_variables(wanted))


def fetch_file(url: str, path: Path, sha256: str) -> bool:
    """Bring a file to ``path``, whole and with this sum or not at all; False when it was there. Raises FetchError and StorageError."""
    with storage_errors(path):
        if path.is_file() and sha256_of(path) == sha256:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _fetch_once(url, path, sha256)
            break
        except FetchError as error:
            final = error.status in _CLIENT_ERRORS and error.status != _BUSY
            if final or attempt == _ATTEMPTS:
                raise
            time.sleep(_PAUSE_S * attempt)
    return True


def _fetch_once(url: str, path: Path, sha256: str) -> None:
    with whole_file(path, replace=True) as partial:
        with partial.open("xb") as file:
            file.writelines(_body(url))
        if (actual := sha256_of(partial)) != sha256:
            raise FetchError(
                f"{url} has the SHA-256 {actual} and not {sha256}.",
                advice="It was changed or cut off: run it again, and if it stays so, trust neither.",
            )
        sync_file(partial)


def _body(url: str) -> Iterator[bytes]:
    """What an http(s) address answers, piece by piece. Raises FetchError."""
    if not url.startswith(("http://", "https://")):
        raise FetchError(f"{url} is not an http address.", advice="Mirrors are served over http or https.")
    try:
        with urlopen(url, timeout=_TIMEOUT_S) as response:  # noqa: S310 - the scheme is checked above
            while chunk := response.read(_CHUNK_BYTES):
                yield chunk
            if response.length:
                raise IncompleteRead(b"", response.length)
    except HTTPError as error:
        error.close()
        raise FetchError(
            f"{url} answered {error.code} {error.reason}.",
            advice="Check that the version exists there, or set the mirror's variable (inventory/group_vars/all/mirrors.yml).",
            status=error.code,
        ) from error
    except (HTTPException, OSError) as error:
        why = error.reason if isinstance(error, URLError) else error
        raise FetchError(
            f"{url} could not be reached: {getattr(why, 'strerror', None) or why}.",
            advice="Check the network, then run it again: it goes on where it was.",
        ) from error


def _write(path: Path, content: bytes | str) -> None:
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, content, replace=True)


def _fetch_image(wanted: OfflineList, image: str, folder: Path) -> None:
    """Have skopeo bring one image into the layout ``folder``, and check every blob of it. Raises FetchError."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [
            *("skopeo", "copy", "--override-os", "linux", "--override-arch", wanted.architecture, "--retry-times", "3"),
            *(["--src-tls-verify=false"] if wanted.images_insecure else []),
            *(f"docker://{wanted.image_sources[image]}", f"oci:{folder}:{image}"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"skopeo ended with exit code {done.returncode}"]
        raise FetchError(f"{image} was not fetched: {lines[-1]}", advice="Check its name and mirror_images.")
    index = json.loads((folder / "index.json").read_bytes())
    [digest] = [entry["digest"] for entry in index["manifests"] if entry.get("annotations", {}).get(_REF_NAME) == image]
    manifest = json.loads(_blob(folder, digest).read_bytes())
    for part in (manifest["config"], *manifest["layers"]):
        _blob(folder, part["digest"])


def _blob(folder: Path, digest: str) -> Path:
    """A blob of the layout that is what its digest says; another is removed, so that it is fetched again."""
    if not re.fullmatch("sha256:[0-9a-f]{64}", digest):
        raise FetchError(f"{digest!r} is not a SHA-256 digest.", advice="The registry's answer is not to be trusted.")
    path = folder / "blobs" / digest.replace(":", "/")
    with storage_errors(path, "read"):
        actual = sha256_of(path)
        if f"sha256:{actual}" != digest:
            path.unlink()
            raise FetchError(f"{path} has the SHA-256 {actual}.", advice="It was changed or cut off: run it again.")
    return path


def _fetch_repository(
    repository: Repository, packages: list[Package], folder: Path, architecture: str, *, say: Callable[[str], None]
) -> None:
    """The part of a flat apt repository that holds these packages.

    The chain is Release (whose signature apt verifies on the node) -> sums of the indexes -> sums of the packages.
    """
    release = b"".join(_body(f"{repository.url}Release"))
    signatures = {name: data for name in _SIGNATURES if (data := _optional(f"{repository.url}{name}")) is not None}
    if not signatures:
        raise FetchError(f"{repository.url} is not signed.", advice="Use the original repository, or sign the mirror.")
    key = b"".join(_body(repository.key_url))
    index = _fetch_indexes(repository, release_sums(release.decode()), folder)
    for package in packages:
        stanza = choose(index, package, architecture)
        new = fetch_file(f"{repository.url}{stanza['Filename']}", folder / stanza["Filename"], stanza["SHA256"])
        say(f"package {package.name}={stanza['Version']}: {'fetched' if new else 'was there'}")
    for name, data in {"Release": release, repository.key_name: key, **signatures}.items():
        _write(folder / name, data)


def release_sums(text: str) -> dict[str, str]:
    """File -> SHA-256, of a Release file."""
    sums: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        if not line.startswith(" "):
            section = line.partition(":")[0]
        elif section == "SHA256":
            value, _, name = line.split(maxsplit=2)
            sums[name.removeprefix("./")] = value
    return sums


def stanzas(text: str) -> Iterator[dict[str, str]]:
    """The packages of an index."""
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(" "))
        if fields:
            yield fields


def choose(index: str, package: Package, architecture: str) -> dict[str, str]:
    """The newest Debian revision of the wanted version. Raises FetchError where there is none."""
    candidates = [
        stanza
        for stanza in stanzas(index)
        if stanza.get("Package") == package.name and stanza.get("Architecture") in (architecture, "all")
    ]
    revision = re.compile(f"{re.escape(package.version)}(-.*)?")
    matching = [stanza for stanza in candidates if revision.fullmatch(stanza["Version"])]
    if not matching:
        versions = ", ".join(sorted({stanza["Version"] for stanza in candidates})[-5:]) or "none"
        raise FetchError(
            f"The repository {package.repository} has no {package.name} {package.version} for {architecture}; it has {versions}.",
            advice="Correct the version in inventory/group_vars/all/versions.yml.",
        )
    best = max(matching, key=lambda stanza: _natural(stanza["Version"]))
    if ".." in Path(best["Filename"]).parts or best["Filename"].startswith("/"):
        raise FetchError(f"{best['Filename']} points out of its repository.", advice="Do not trust that repository.")
    return {**best, "Filename": best["Filename"].removeprefix("./")}


def _fetch_indexes(repository: Repository, sums: dict[str, str], folder: Path) -> str:
    texts = []
    for name in (index for index in _INDEXES if index in sums):
        fetch_file(f"{repository.url}{name}", folder / name, sums[name])
        data = (folder / name).read_bytes()
        texts.append((gzip.decompress(data) if name.endswith(".gz") else data).decode())
    if not texts:
        raise FetchError(f"{repository.url}Release names no Packages.", advice="It is not a flat apt repository.")
    return texts[-1]


def _optional(url: str) -> bytes | None:
    try:
        return b"".join(_body(url))
    except FetchError as error:
        if error.status == _NOT_FOUND:
            return None
        raise


def _natural(version: str) -> list[tuple[int, str]]:
    """Numbers by value: revision 10 after revision 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", version)]


def _mirror_variables(wanted: OfflineList) -> str:
    names = [repository.name for repository in wanted.repositories]
    lines = [
        "# Serve this folder over http, put the images into a registry, and set these in the inventory.",
        *(f"mirror_apt_{name}: http://MIRROR/apt/{name}/" for name in names),
        *(["mirror_files: http://MIRROR/files"] if wanted.files else []),
        *([_IMAGES] if wanted.images else []),
        *([_PIP] if wanted.requirements else []),
    ]
    return "\n".join(lines) + "\n"
