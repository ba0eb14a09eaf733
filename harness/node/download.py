"""Downloads that end whole or not at all: into a temporary file, checked, then renamed; tried again when cut off."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from harness.errors import NodeError, StorageError

TIMEOUT_S = 30.0
_ATTEMPTS = 3
_PAUSE_S = 1.0
_CHUNK_BYTES = 1 << 20
_CLIENT_ERRORS = range(400, 500)
_BUSY = 429


class FetchError(NodeError):
    """Something could not be fetched, or is not what it should be. ``status``: of the answer, if there was one."""

    def __init__(self, message: str, *, advice: str = "", status: int | None = None) -> None:
        super().__init__(message, advice=advice)
        self.status = status


def open_url(url: str, *, headers: Mapping[str, str] | None = None, token: str = "") -> HTTPResponse:
    """Open an http(s) address; the token is not sent along to where it redirects. Raises FetchError."""
    if not url.startswith(("http://", "https://")):
        raise FetchError(f"{url} is no http address.", advice="Mirrors are served over http or https.")
    request = Request(url, headers=dict(headers or {}))  # noqa: S310 - the scheme is checked above
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        response: HTTPResponse = urlopen(request, timeout=TIMEOUT_S)  # noqa: S310 - the scheme is checked above
    except HTTPError as error:
        error.close()
        raise FetchError(
            f"{url} answered {error.code} {error.reason}.",
            advice="Check that the version exists there, or set the mirror's variable (inventory/group_vars/all/mirrors.yml).",
            status=error.code,
        ) from error
    except (URLError, HTTPException, OSError) as error:
        why = error.reason if isinstance(error, URLError) else error
        raise FetchError(
            f"{url} could not be reached: {getattr(why, 'strerror', None) or why}.",
            advice="Check the network, then run it again.",
        ) from error
    return response


@dataclass(frozen=True, slots=True)
class Answer:
    """The whole body of a small answer."""

    data: bytes
    media_type: str


def get(url: str, *, headers: Mapping[str, str] | None = None, token: str = "") -> Answer:
    """A small answer. Raises FetchError."""
    with open_url(url, headers=headers, token=token) as response:
        try:
            return Answer(response.read(), response.headers.get_content_type())
        except (HTTPException, OSError) as error:
            raise FetchError(f"{url} was cut off: {error}", advice="Run it again.") from error


def fetch_file(url: str, path: Path, sha256: str, *, token: str = "") -> bool:
    """Bring a file to ``path``; False when it was there already.

    Raises FetchError where it cannot be had in three attempts or has another sum, StorageError where it cannot be
    written.
    """
    if path.is_file() and sum_of(path) == sha256:
        return False
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            _fetch_once(url, path, sha256, token)
        except FetchError as error:
            final = error.status in _CLIENT_ERRORS and error.status != _BUSY
            if final or attempt == _ATTEMPTS:
                raise
            time.sleep(_PAUSE_S * attempt)
        else:
            break
    return True


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file in one step. Raises StorageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            file.write(data)
        Path(file.name).chmod(0o644)
        Path(file.name).replace(path)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error}", advice="Free space, or name another folder."
        ) from error


def sum_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch_once(url: str, path: Path, sha256: str, token: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error}", advice="Name another folder.") from error
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file, open_url(url, token=token) as response:
            _copy(response, file.fileno(), url)
        found = sum_of(temporary)
        if found != sha256:
            raise FetchError(
                f"{url} has the SHA-256 {found} and not {sha256}.",
                advice="It was changed or cut off: run it again, and if it stays so, trust neither.",
            )
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _copy(response: HTTPResponse, descriptor: int, url: str) -> None:
    while True:
        try:
            chunk = response.read(_CHUNK_BYTES)
        except (HTTPException, OSError) as error:
            raise FetchError(f"{url} was cut off: {error}", advice="Run it again: it continues.") from error
        if not chunk:
            return
        _write(descriptor, chunk)


def _write(descriptor: int, chunk: bytes) -> None:
    try:
        while chunk:
            chunk = chunk[os.write(descriptor, chunk) :]
    except OSError as error:
        raise StorageError(f"The disk took no more: {error}", advice="Free space, then run it again.") from error
