"""Container images from their registries into one folder (OCI image layout), with nothing but http.

Every blob is checked against its digest and kept once, however many images share it. ``skopeo copy
oci:FOLDER:IMAGE docker://MIRROR/IMAGE`` brings an image into a registry.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from harness.node.download import FetchError, fetch_file, get, write_whole

_REFERENCE = re.compile(
    r"^(?P<host>[^/]+)/(?P<name>[^:@]+)(?::(?P<tag>[\w.-]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?$"
)
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
_HOSTS = {"docker.io": "registry-1.docker.io"}
_REF_NAME = "org.opencontainers.image.ref.name"
_UNAUTHORISED = 401
T = TypeVar("T")
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class _Manifest:
    data: bytes
    media_type: str

    @property
    def digest(self) -> str:
        return f"sha256:{hashlib.sha256(self.data).hexdigest()}"

    @property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.data)
        return body


class ImageFolder:
    """An OCI image layout that images are fetched into.

    Args:
        folder: made where it is missing; an earlier one is continued.
        architecture: which of an image's variants, with ``os`` linux.
        insecure: speak http with the registries.
    """

    def __init__(self, folder: Path, *, architecture: str = "amd64", insecure: bool = False) -> None:
        self._folder = folder
        self._architecture = architecture
        self._scheme = "http" if insecure else "https"
        self._index = self._read_index()

    @property
    def images(self) -> list[str]:
        """Names of the images that are whole."""
        return sorted(entry["annotations"][_REF_NAME] for entry in self._index["manifests"])

    def fetch(self, source: str, name: str, say: Callable[[str], None]) -> None:
        """Bring the image at ``source`` into the folder under ``name``. Raises FetchError, StorageError."""
        match = _REFERENCE.match(source)
        if match is None:
            raise FetchError(f"{source} is no full image name.", advice="Write host/name:tag.")
        host = _HOSTS.get(match["host"], match["host"])
        repository = _Repository(f"{self._scheme}://{host}/v2/{match['name']}", source)
        manifest = self._choose(repository, repository.manifest(match["digest"] or match["tag"] or "latest"), source)
        blobs = [manifest.body["config"], *manifest.body["layers"]]
        new = sum([self._blob(repository, blob["digest"]) for blob in blobs])
        write_whole(self._path(manifest.digest), manifest.data)
        self._enter(manifest, name)
        say(f"image {name}: {new} of {len(blobs)} blobs fetched")

    def _choose(self, repository: _Repository, manifest: _Manifest, source: str) -> _Manifest:
        """The variant for our platform, where the image has several."""
        if manifest.media_type in _MANIFESTS:
            return manifest
        for entry in manifest.body.get("manifests", []):
            platform = entry.get("platform", {})
            if platform.get("os") == "linux" and platform.get("architecture") == self._architecture:
                return repository.manifest(entry["digest"])
        raise FetchError(f"{source} has no variant for linux/{self._architecture}.", advice="Choose another version.")

    def _blob(self, repository: _Repository, digest: str) -> bool:
        path, sha256 = self._path(digest), digest.partition(":")[2]
        return repository.retry(lambda token: fetch_file(repository.blob_url(digest), path, sha256, token=token))

    def _path(self, digest: str) -> Path:
        algorithm, _, value = digest.partition(":")
        if algorithm != "sha256" or not re.fullmatch("[0-9a-f]{64}", value):
            raise FetchError(f"{digest!r} is no SHA-256 digest.", advice="The registry's answer is not to be trusted.")
        return self._folder / "blobs" / algorithm / value

    def _enter(self, manifest: _Manifest, name: str) -> None:
        entry = {
            "mediaType": manifest.media_type,
            "digest": manifest.digest,
            "size": len(manifest.data),
            "annotations": {_REF_NAME: name},
        }
        others = [each for each in self._index["manifests"] if each["annotations"][_REF_NAME] != name]
        self._index["manifests"] = sorted([*others, entry], key=lambda each: each["annotations"][_REF_NAME])
        write_whole(self._folder / "oci-layout", b'{"imageLayoutVersion": "1.0.0"}\n')
        write_whole(self._folder / "index.json", json.dumps(self._index, indent=1).encode())

    def _read_index(self) -> dict[str, Any]:
        try:
            index: dict[str, Any] = json.loads((self._folder / "index.json").read_bytes())
        except FileNotFoundError:
            return {"schemaVersion": 2, "mediaType": _INDEXES[0], "manifests": []}
        except ValueError as error:
            raise FetchError(f"{self._folder}/index.json is not JSON.", advice="Remove that folder.") from error
        return index


class _Repository:
    """One image's repository in its registry, with the token it asks for."""

    def __init__(self, url: str, source: str) -> None:
        self.token = ""
        self._url = url
        self._source = source

    def blob_url(self, digest: str) -> str:
        return f"{self._url}/blobs/{digest}"

    def manifest(self, reference: str) -> _Manifest:
        """A manifest or index, checked against the digest it was asked by."""
        url = f"{self._url}/manifests/{reference}"
        headers = {"Accept": ", ".join([*_INDEXES, *_MANIFESTS])}
        answer = self.retry(lambda token: get(url, headers=headers, token=token))
        manifest = _Manifest(answer.data, answer.media_type)
        if reference.startswith("sha256:") and manifest.digest != reference:
            raise FetchError(
                f"{url} has the digest {manifest.digest}.", advice="It was changed or cut off: run it again."
            )
        if manifest.media_type not in (*_INDEXES, *_MANIFESTS):
            raise FetchError(
                f"{url} answered with {manifest.media_type}, which is no image.", advice="Check the image's name."
            )
        return manifest

    def retry(self, ask: Callable[[str], T]) -> T:
        """Ask with the token there is, and once more with a new one: tokens are short-lived."""
        try:
            return ask(self.token)
        except FetchError as error:
            if error.status != _UNAUTHORISED:
                raise
            self.token = self._authorise(error)
        return ask(self.token)

    def _authorise(self, refusal: FetchError) -> str:
        """A token for reading, from where the registry's refusal points to; anonymous."""
        cause = refusal.__cause__
        challenge = dict(_CHALLENGE.findall(getattr(cause, "headers", {}).get("WWW-Authenticate", "")))
        if "realm" not in challenge:
            raise FetchError(f"{self._source} may not be read.", advice="Use a mirror (mirror_images).") from refusal
        query = urlencode({key: challenge[key] for key in ("service", "scope") if key in challenge})
        answer = json.loads(get(f"{challenge['realm']}?{query}").data)
        return str(answer.get("token") or answer.get("access_token") or "")
