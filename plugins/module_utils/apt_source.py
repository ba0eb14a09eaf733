# ruff: noqa: INP001 - Ansible loads this folder by its own rules, without a package
"""One apt repository: its key, checked by fingerprint, its deb822 source, and the index of that source alone.

The index is fetched when the key or the source changed, or when apt has none of it, as after a run that was killed in
between; fetching one source takes seconds less than a full update.
"""

from __future__ import annotations

import base64
import hashlib
import re
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from .apt_get import AptGet

SOURCES = Path("/etc/apt/sources.list.d")
KEYRINGS = Path("/etc/apt/keyrings")
LISTS = Path("/var/lib/apt/lists")
PUBLIC_KEY_TAG = 6
NEW_FORMAT = 0x40
ONE_OCTET, TWO_OCTETS, FIVE_OCTETS = 192, 224, 255


def dearmoured(data: bytes) -> bytes:
    """The binary key of an ASCII-armoured one; a binary key comes back as it is."""
    if not data.lstrip().startswith(b"-----BEGIN"):
        return data
    _, _, body = data.replace(b"\r\n", b"\n").partition(b"\n\n")
    lines = body.split(b"-----END", 1)[0].split(b"\n")
    return base64.b64decode(b"".join(line for line in lines if line and not line.startswith(b"=")))


def header(data: bytes) -> tuple[int, int, int]:
    """Tag, header length and body length of the first OpenPGP packet (RFC 4880, section 4.2)."""
    first = data[0]
    if first & NEW_FORMAT:
        octet = data[1]
        if octet < ONE_OCTET:
            return first & 0x3F, 2, octet
        if octet < TWO_OCTETS:
            return first & 0x3F, 3, ((octet - ONE_OCTET) << 8) + data[2] + ONE_OCTET
        return first & 0x3F, 6, int.from_bytes(data[2:6], "big")
    size = 1 << (first & 0x03)
    return (first >> 2) & 0x0F, 1 + size, int.from_bytes(data[1 : 1 + size], "big")


def fingerprint(key: bytes) -> str:
    """The version 4 fingerprint of the primary key, 40 hexadecimal digits.

    Raises:
        ValueError: the data does not begin with a public key.
    """
    try:
        tag, start, length = header(key)
    except IndexError:
        raise ValueError("it is empty or cut short") from None
    body = key[start : start + length]
    if tag != PUBLIC_KEY_TAG or len(body) != length or body[:1] != b"\x04":
        raise ValueError("it does not begin with an OpenPGP version 4 public key")
    framed = b"\x99" + len(body).to_bytes(2, "big") + body
    return hashlib.sha1(framed).hexdigest().upper()  # noqa: S324 - the fingerprint is defined as SHA-1


def deb822(uri: str, suite: str, components: list[str], keyring: Path) -> str:
    """The source in deb822 form."""
    lines = ["Types: deb", f"URIs: {uri}", f"Suites: {suite}"]
    if components:
        lines.append("Components: " + " ".join(components))
    return "\n".join([*lines, f"Signed-By: {keyring}", ""])


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

    def fail(self, what: str, advice: str) -> None:
        """Ends the module with reason and next step."""
        self.module.fail_json(msg=f"{self.options['name']}: {what}. {advice}")

    def key(self) -> bytes:
        """The repository's key, fetched and checked."""
        from ansible.module_utils.urls import fetch_url  # takes longer to import than a run without news takes

        url = urljoin(self.uri, self.options["key"])
        response, info = fetch_url(self.module, url, timeout=self.options["timeout_s"])
        if info["status"] != 200:
            self.fail(
                f"the repository key could not be fetched from {url} ({info['msg']})",
                "Check that the machine reaches this address, or name a mirror in inventory/group_vars/all/mirrors.yml.",
            )
        data = dearmoured(response.read())
        self.check(data, url)
        return data

    def check(self, data: bytes, url: str) -> None:
        """Ends the module unless the key is the expected one."""
        wanted = self.options["fingerprint"].replace(" ", "").upper()
        try:
            found = fingerprint(data)
        except ValueError as error:
            self.fail(f"what {url} serves is no signing key: {error}", "Check the address and any proxy in between.")
        if wanted and found != wanted:
            self.fail(
                f"the key at {url} has the fingerprint {found}, expected {wanted}",
                "If the repository announced a new key, put its fingerprint into inventory/group_vars/all/versions.yml.",
            )

    def known_key(self) -> bool:
        """Whether the key on disk is already an expected one: then nothing is fetched."""
        wanted = self.options["fingerprint"].replace(" ", "").upper()
        try:
            return fingerprint(self.keyring.read_bytes()) == wanted or not wanted
        except (OSError, ValueError):
            return False

    def put(self, path: Path, data: bytes) -> bool:
        """Writes a file in one step unless it already says this; whether it had to."""
        if path.exists() and path.read_bytes() == data:
            return False
        if not self.module.check_mode:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.module.tmpdir, delete=False) as new:
                new.write(data)
            self.module.atomic_move(new.name, str(path))
            path.chmod(0o644)  # apt reads its keys and sources as another user
        return True

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
        text = deb822(self.uri, self.options["suite"], self.options["components"], self.keyring)
        stale = not (self.known_key() and indexed(self.uri))
        changed = False
        # A stale index takes a fresh key with it, as one that was extended looks like the one that is known.
        # In check mode nothing is fetched: a mirror may be served only once the run is real.
        if stale and not self.module.check_mode:
            changed = self.put(self.keyring, self.key())
        changed = self.put(self.source, text.encode()) or changed
        refresh = changed or stale
        if refresh and not self.module.check_mode:
            self.refresh()
        return refresh
