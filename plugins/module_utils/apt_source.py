# ruff: noqa: INP001 - Ansible loads this folder by its own rules, without a package
"""One apt repository: its key, its deb822 source, and the index of that source alone.

apt itself takes an index only where the key of the fingerprint that Signed-By names has signed it. Key and index are fetched when the
source changed, or when apt has none of it, as after a run that was killed in between; one source takes seconds less than a full update.
"""

from __future__ import annotations

import base64
import re
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from .apt_get import AptGet

SOURCES = Path("/etc/apt/sources.list.d")
KEYRINGS = Path("/etc/apt/keyrings")
LISTS = Path("/var/lib/apt/lists")
TIMEOUT_S = 20


def dearmoured(data: bytes) -> bytes:
    """The binary key of an ASCII-armoured one; a binary key comes back as it is."""
    if not data.lstrip().startswith(b"-----BEGIN"):
        return data
    _, _, body = data.replace(b"\r\n", b"\n").partition(b"\n\n")
    lines = body.split(b"-----END", 1)[0].split(b"\n")
    return base64.b64decode(b"".join(line for line in lines if line and not line.startswith(b"=")))


def deb822(uri: str, keyring: Path, fingerprint: str) -> str:
    """The source, a flat repository, in deb822 form; any key of the keyring where no fingerprint is given."""
    return f"Types: deb\nURIs: {uri}\nSuites: /\nSigned-By: {f'{keyring} {fingerprint}'.strip()}\n"


def list_prefix(uri: str) -> str:
    """How apt names the index files of a repository."""
    parts = urlsplit(uri)
    place = (parts.netloc.rpartition("@")[2] + parts.path).rstrip("/")
    return "".join(f"%{ord(char):02x}" if char in '\\|{}[]<>"^~_=!@#$%&*' else char for char in place).replace("/", "_")


def indexed(uri: str) -> bool:
    """Whether apt has an index of this repository."""
    wanted = list_prefix(uri)
    return any(re.fullmatch(re.escape(wanted) + r"_.*Packages\S*", path.name) for path in LISTS.glob("*Packages*"))


class Source:
    """The files of one repository and what is to be done to them."""

    def __init__(self, module: Any, options: dict[str, Any], apt: AptGet) -> None:
        self.module = module
        self.options = options
        self.apt = apt
        self.uri = str(self.options["uri"]).rstrip("/") + "/"
        self.keyring = KEYRINGS / f"{self.options['name']}.gpg"
        self.source = SOURCES / f"{self.options['name']}.sources"

    def key(self) -> bytes:
        """The repository's key as it is served."""
        from ansible.module_utils.urls import fetch_url  # takes longer to import than a run without news takes

        url = urljoin(self.uri, self.options["key"])
        response, info = fetch_url(self.module, url, timeout=TIMEOUT_S)
        if info["status"] != 200:
            self.module.fail_json(
                msg=f"{self.options['name']}: the repository key could not be fetched from {url} ({info['msg']}). Check that the"
                " machine reaches this address, or name a mirror in inventory/group_vars/all/mirrors.yml."
            )
        return dearmoured(response.read())

    def put(self, path: Path, data: bytes) -> None:
        """Writes a file in one step unless it already says this."""
        if path.exists() and path.read_bytes() == data:
            return
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.module.tmpdir, delete=False) as new:
            new.write(data)
        self.module.atomic_move(new.name, str(path))
        path.chmod(0o644)  # apt reads its keys and sources as another user

    def refresh(self) -> None:
        """Fetches the index of this source alone."""
        settings = (
            f"Dir::Etc::sourcelist={self.source}",
            "Dir::Etc::sourceparts=-",
            "APT::Get::List-Cleanup=0",
            "APT::Update::Error-Mode=any",
        )
        self.apt.run("update", settings=settings)

    def renew(self) -> None:
        """Fetches the key again: one that was extended has the same fingerprint, and apt takes no index that is signed past its old end."""
        self.put(self.keyring, self.key())

    def apply(self) -> bool:
        """Brings key, source and index up to date; whether any was not."""
        fingerprint = self.options["fingerprint"].replace(" ", "").upper()
        text = deb822(self.uri, self.keyring, fingerprint).encode()
        known = self.source.exists() and self.source.read_bytes() == text
        if known and self.keyring.exists() and indexed(self.uri):
            return False
        # In check mode nothing is fetched: a mirror may be served only once the run is real.
        if not self.module.check_mode:
            self.renew()
            self.put(self.source, text)
            self.refresh()
        return True
