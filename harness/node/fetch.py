"""Fetch everything on an offline list into one folder that mirrors can be served from.

``apt/<repository>/``: flat apt repositories, signatures kept as they are, so that apt on the node verifies them;
``files/``: files under their places; ``images/``: an OCI image layout, made by skopeo; ``mirrors.yml``: the variables to set.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from harness.errors import NodeError, UsageError
from harness.node.offline import OfflineList, Package, Repository
from harness.results.files import atomic_write, sha256_of, storage_errors, sync_file, whole_file

_TIMEOUT_S = 30.0
_ATTEMPTS = 3
_PAUSE_S = 1.0
_CHUNK_BYTES = 1 << 20
_CLIENT_ERRORS = range(400, 500)
_BUSY, _NOT_FOUND = 429, 404
_REF_NAME = "org.opencontainers.image.ref.name"
_INDEXES = ("Packages", "Packages.gz")
_SIGNATURES = ("InRelease", "Release.gpg")
# Which wheels fit is for the base image's own Python to choose.
_PIP = """\
# With the Python of the workload image's base: pip download --only-binary :all: --dest wheels --requirement requirements.txt
# Then serve the wheels as an index, or as a folder: workload_image_pip: {find-links: http://MIRROR/wheels, no-index: true}
mirror_pip: http://MIRROR/simple"""


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
    """Bring a file to ``path``, whole and with this sum or not at all; False when it was there already.

    Raises FetchError where it cannot be had in three attempts or has another sum, StorageError where it cannot be
    written.
    """
    with storage_errors(path):
        if path.is_file() and sha256_of(path) == sha256:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _fetch_once(url, path, sha256)
        except FetchError as error:
            final = error.status in _CLIENT_ERRORS and error.status != _BUSY
            if final or attempt == _ATTEMPTS:
                raise
            time.sleep(_PAUSE_S * attempt)
        else:
            break
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
        raise FetchError(f"{url} is no http address.", advice="Mirrors are served over http or https.")
    with _reaching(url), urlopen(url, timeout=_TIMEOUT_S) as response:  # noqa: S310 - the scheme is checked above
        while chunk := response.read(_CHUNK_BYTES):
            yield chunk
        if response.length:
            raise IncompleteRead(b"", response.length)


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """Turn what can happen between here and a server into a FetchError."""
    try:
        yield
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
        raise FetchError(f"{digest!r} is no SHA-256 digest.", advice="The registry's answer is not to be trusted.")
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
    matching = [
        s for s in candidates if s["Version"] == package.version or s["Version"].startswith(f"{package.version}-")
    ]
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
        return b"".join(_body(url))
    except FetchError as error:
        if error.status == _NOT_FOUND:
            return None
        raise


def _natural(version: str) -> list[tuple[int, str]]:
    """Numbers by value: revision 10 after revision 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", version)]


def _mirror_variables(wanted: OfflineList) -> str:
    lines = ["# Serve this folder over http, put the images into a registry, and set these in the inventory."]
    lines += [
        f"mirror_apt_{repository.name}: http://MIRROR/apt/{repository.name}/" for repository in wanted.repositories
    ]
    lines += ["mirror_files: http://MIRROR/files"] if wanted.files else []
    lines += (
        ["mirror_images: REGISTRY  # skopeo copy oci:images:IMAGE docker://REGISTRY/IMAGE"] if wanted.images else []
    )
    lines += [_PIP] if wanted.requirements else []
    return "\n".join(lines) + "\n"
