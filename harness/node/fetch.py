"""Fetch everything on an offline list into one folder that mirrors can be served from.

``apt/<repository>/``: flat apt repositories, signatures kept as they are, so that apt on the node verifies them;
``files/``: files under their places; ``images/``: an OCI image layout; ``mirrors.yml``: the variables to set.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.node.download import FetchError, fetch_file, get, write_whole
from harness.node.oci import ImageFolder
from harness.node.offline import OfflineList, Package, Repository

_INDEXES = ("Packages", "Packages.gz")
_SIGNATURES = ("InRelease", "Release.gpg")
_NOT_FOUND = 404
# Which wheels fit is for the base image's own Python to choose.
_PIP = """\
# With the Python of the workload image's base: pip download --only-binary :all: --dest wheels --requirement requirements.txt
# Then serve the wheels as an index, or as a folder: workload_image_pip: {find-links: http://MIRROR/wheels, no-index: true}
mirror_pip: http://MIRROR/simple"""


def fetch_all(wanted: OfflineList, folder: Path, *, say: Callable[[str], None]) -> None:
    """Fetch what is missing; what is there and has its checksum is kept. Raises FetchError, StorageError."""
    for repository in wanted.repositories:
        members = [package for package in wanted.packages if package.repository == repository.name]
        fetch_repository(repository, members, folder / "apt" / repository.name, wanted.architecture, say=say)
    for file in wanted.files:
        new = fetch_file(file.url, folder / "files" / file.path, file.sha256)
        say(f"file {file.path}: {'fetched' if new else 'was there'}")
    if wanted.images:
        images = ImageFolder(folder / "images", architecture=wanted.architecture, insecure=wanted.images_insecure)
        for image in wanted.images:
            images.fetch(wanted.image_sources[image], image, say)
    if wanted.requirements:
        write_whole(folder / "requirements.txt", ("\n".join(wanted.requirements) + "\n").encode())
        say(f"{len(wanted.requirements)} Python packages are not fetched; {folder / 'mirrors.yml'} says how to")
    write_whole(folder / "mirrors.yml", _mirror_variables(wanted).encode())


def fetch_repository(
    repository: Repository, packages: list[Package], folder: Path, architecture: str, *, say: Callable[[str], None]
) -> None:
    """The part of a flat apt repository that holds these packages.

    The chain is Release (whose signature apt verifies on the node) -> sums of the indexes -> sums of the packages.
    """
    release = get(f"{repository.url}Release").data
    signatures = {name: data for name in _SIGNATURES if (data := _optional(f"{repository.url}{name}")) is not None}
    if not signatures:
        raise FetchError(f"{repository.url} is not signed.", advice="Use the original repository, or sign the mirror.")
    key = get(repository.key_url).data
    index = _fetch_indexes(repository, release_sums(release.decode()), folder)
    for package in packages:
        stanza = choose(index, package, architecture)
        new = fetch_file(f"{repository.url}{stanza['Filename']}", folder / stanza["Filename"], stanza["SHA256"])
        say(f"package {package.name}={stanza['Version']}: {'fetched' if new else 'was there'}")
    for name, data in {"Release": release, repository.key_name: key, **signatures}.items():
        write_whole(folder / name, data)


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
    found = [
        stanza
        for stanza in stanzas(index)
        if stanza.get("Package") == package.name and stanza.get("Architecture") in (architecture, "all")
    ]
    matching = [s for s in found if s["Version"] == package.version or s["Version"].startswith(f"{package.version}-")]
    if not matching:
        versions = ", ".join(sorted({stanza["Version"] for stanza in found})[-5:]) or "none"
        raise FetchError(
            f"The repository {package.repository} has no {package.name} {package.version} for {architecture}; it has {versions}.",
            advice="Correct the version in inventory/group_vars/all/versions.yml.",
        )
    best = max(matching, key=lambda stanza: _natural(stanza["Version"]))
    if ".." in Path(best["Filename"]).parts or best["Filename"].startswith("/"):
        raise FetchError(f"{best['Filename']} points out of its repository.", advice="Do not trust that repository.")
    return {**best, "Filename": best["Filename"].removeprefix("./")}


def _fetch_indexes(repository: Repository, sums: dict[str, str], folder: Path) -> str:
    present = [name for name in _INDEXES if name in sums]
    if not present:
        raise FetchError(f"{repository.url}Release names no Packages.", advice="It is no flat apt repository.")
    text = ""
    for name in present:
        fetch_file(f"{repository.url}{name}", folder / name, sums[name])
        data = (folder / name).read_bytes()
        text = (gzip.decompress(data) if name.endswith(".gz") else data).decode()
    return text


def _optional(url: str) -> bytes | None:
    try:
        return get(url).data
    except FetchError as error:
        if error.status == _NOT_FOUND:
            return None
        raise


def _natural(version: str) -> list[tuple[int, str]]:
    """Numbers by value: revision 10 after revision 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", version)]


def _mirror_variables(wanted: OfflineList) -> str:
    lines = ["# Serve this folder over http, put the images into a registry, and set these in the inventory."]
    lines += [f"mirror_apt_{each.name}: http://MIRROR/apt/{each.name}/" for each in wanted.repositories]
    lines += ["mirror_files: http://MIRROR/files"] if wanted.files else []
    lines += (
        ["mirror_images: REGISTRY  # skopeo copy oci:images:IMAGE docker://REGISTRY/IMAGE"] if wanted.images else []
    )
    lines += [_PIP] if wanted.requirements else []
    return "\n".join(lines) + "\n"
