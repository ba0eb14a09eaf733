#!/usr/bin/python
"""Debian packages at one exact version, held, and really there; and the repository that has them."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from ..module_utils.documented import documented
from ..module_utils.node_files import write_file

DOCUMENTATION = r"""
{"module": "deb_pinned", "author": ["the project"],
 "short_description": "Packages at one exact version in one transaction; held; broken installs repaired",
 "description": [
  "Resolves an upstream version (C(1.35.8)) to the exact package version the repositories offer (C(1.35.8-1.1)) before anything is installed.",
  "Finishes what an interrupted dpkg left behind, and reinstalls a package that lacks one of its O(packages[].files).",
  "Installs everything in one transaction, once more with fresh indexes where that fails. Refuses to change an installed version unless O(upgrade=true).",
  "apt itself takes an index only where the key of O(source.fingerprint) has signed it.",
  "In check mode nothing is fetched, for a mirror may be served only once the run is real.",
  "Unlike ansible.builtin.apt and deb822_repository it needs no Python package on the machine, and shows the proxy's password on no command line.",
  "Returns installed (name=version of what was installed) and held (names put on hold now)."],
 "options": {
  "packages": {"type": "list", "elements": "dict", "required": true, "description": "The packages, each held at its version.", "suboptions": {
    "name": {"type": "str", "required": true, "description": "Name."},
    "version": {"type": "str", "default": "", "description": "Upstream or exact version; empty for any."},
    "files": {"type": "list", "elements": "str", "default": [], "description": "Files without which it does not count as installed."}}},
  "source": {"type": "dict", "description": "The flat apt repository that has them.", "suboptions": {
    "name": {"type": "str", "required": true, "description": "Name of the source and of its key file."},
    "uri": {"type": "str", "required": true, "description": "The repository."},
    "key": {"type": "str", "required": true, "no_log": false, "description": "URL of the key; relative to O(source.uri) unless absolute."},
    "fingerprint": {"type": "str", "default": "", "description": "The primary key's fingerprint (40 hexadecimal digits); empty accepts any key."}}},
  "also": {"type": "list", "elements": "str", "default": [], "description": "Packages taken along at any version and not held."},
  "upgrade": {"type": "bool", "default": false, "description": "Change versions that are installed and held."},
  "lock_timeout_s": {"type": "int", "default": 120, "description": "Seconds to wait for another apt or dpkg, for its index lock too."},
  "proxy": {"type": "dict", "default": {}, "no_log": true, "description": "http_proxy, https_proxy and no_proxy of the environment; never shown."},
  "state": {"type": "str", "choices": ["present", "absent"], "default": "present",
    "description": "Whether the packages are there; V(absent) removes them with their configuration."}}}
"""

SOURCES, KEYRINGS = Path("/etc/apt/sources.list.d"), Path("/etc/apt/keyrings")
FIELDS = "${Package}\t${db:Status-Want}\t${db:Status-Status}\t${Version}\n"
FETCH_TIMEOUT_S, POLL_S = 30, 3.0
LOCKED = re.compile(
    r"(?:Could not get lock|Unable to acquire the dpkg frontend lock)(?:.*held by process (\d+)(?: \(([^)]+)\))?)?",
    re.DOTALL,
)
MIRRORS = "name another mirror in inventory/group_vars/all/mirrors.yml"
# What apt says, and what to do about it.
ADVICE = (
    (
        "is not signed",
        "met a repository that is not signed by the key of the fingerprint that inventory/group_vars/all/versions.yml names. If it announced a new key, put its fingerprint there",
    ),
    ("No space left|enough free space", "ran out of disk space. Free some (apt-get clean) and run again"),
    (
        "Failed to fetch|Could not connect|Unable to connect",
        f"could not fetch what it needs. Check that the machine reaches the address and that the mirror holds this, or {MIRRORS}",
    ),
    ("", "failed. Fix what it names and run again; finished packages are kept"),
)


def advice(verb: str, words: str, waited_s: float) -> str:
    """What went wrong and what to do next, by what apt said."""
    if lock := LOCKED.search(words):
        holder = f"process {lock[1]} ({lock[2] or 'unknown'})" if lock[1] else "another process"
        return f"{holder} held the package lock for more than {waited_s:.0f} s. Let it finish and run again: {words}"
    return f"apt-get {verb} {next(text for pattern, text in ADVICE if re.search(pattern, words))}: {words}"


def matches(version: str, wanted: str) -> bool:
    """Whether a package version is the wanted one: the same, or a Debian revision of the same upstream version."""
    return not wanted or version == wanted or version.rpartition("-")[0] == wanted


def armoured(key: bytes) -> bool:
    """Whether a key is text."""
    return key.lstrip().startswith(b"-----BEGIN")


class Packages:
    """The wanted packages, and their repository, against what apt and dpkg have."""

    def __init__(self, module: Any) -> None:
        self.module, asked = module, module.params
        also = [{"name": name, "version": "", "files": []} for name in asked["also"]]
        self.wanted: list[dict[str, Any]] = [*asked["packages"], *also]
        self.source: dict[str, Any] = asked["source"] or {}
        self.installed: list[str] = []
        self.held: list[str] = []

    def apt(self, verb: str, *arguments: str, settings: tuple[str, ...] = ()) -> str:
        """One apt-get verb, without questions; what it said where it failed. Whoever holds a lock is waited for."""
        limit_s = self.module.params["lock_timeout_s"]
        every = [f"DPkg::Lock::Timeout={limit_s}", "Dpkg::Options::=--force-confdef", "Dpkg::Options::=--force-confold"]
        every += ["APT::Install-Recommends=false", "Acquire::Retries=2"]
        every += [f"Acquire::{kind}::Timeout={FETCH_TIMEOUT_S}" for kind in ("http", "https")]
        options = [part for setting in (*every, *settings) for part in ("-o", setting)]
        deadline_s = time.monotonic() + limit_s
        while True:
            code, out, err = self.module.run_command(["apt-get", "--yes", "--quiet=2", *options, verb, *arguments])
            words = str(err or out).strip() or f"it ended with {code}"
            if code == 0 or not LOCKED.search(words) or time.monotonic() > deadline_s:
                return "" if code == 0 else words
            time.sleep(POLL_S)

    def demand(self, verb: str, *arguments: str, settings: tuple[str, ...] = ()) -> None:
        """The same; ends the module with reason and next step where it failed."""
        if words := self.apt(verb, *arguments, settings=settings):
            self.module.fail_json(msg=advice(verb, words, self.module.params["lock_timeout_s"]))

    def status(self) -> dict[str, tuple[str, str, str]]:
        """By package: want, status and version; nothing for what dpkg does not know."""
        names = [package["name"] for package in self.wanted]
        _, out, _ = self.module.run_command(["dpkg-query", "--show", "--showformat", FIELDS, *names])
        rows = [line.split("\t") for line in out.splitlines()]
        return {name: (want, status, version) for name, want, status, version in rows}

    def key(self) -> bytes:
        """The repository's key as it is served."""
        from ansible.module_utils.urls import fetch_url  # takes longer to import than a run without news takes

        url = urljoin(self.source["uri"].rstrip("/") + "/", self.source["key"])
        response, info = fetch_url(self.module, url, timeout=FETCH_TIMEOUT_S)
        if info["status"] != 200:
            self.module.fail_json(
                msg=f"{self.source['name']}: the repository key could not be fetched from {url} ({info['msg']}). Check that the machine"
                f" reaches this address, or {MIRRORS}."
            )
        key = bytes(response.read())
        # apt knows the end of an armoured key's head by an empty line, which \r\n is not.
        return key.replace(b"\r\n", b"\n") if armoured(key) else key

    def deb822(self, ending: str) -> tuple[Path, str]:
        """The key's file with this ending, by which apt knows its form, and the source, a flat repository; any key of the file where no fingerprint is given."""
        keyring, fingerprint = (
            KEYRINGS / f"{self.source['name']}.{ending}",
            self.source["fingerprint"].replace(" ", "").upper(),
        )
        signed_by = f"{keyring} {fingerprint}".strip()
        return keyring, f"Types: deb\nURIs: {self.source['uri'].rstrip('/')}/\nSuites: /\nSigned-By: {signed_by}\n"

    def renew_source(self) -> None:
        """Writes key and source, also where both are known (a key that was extended has the same fingerprint), and fetches its index."""
        key = self.key()
        keyring, text = self.deb822("asc" if armoured(key) else "gpg")
        path = SOURCES / f"{self.source['name']}.sources"
        write_file(keyring, key)
        write_file(path, text.encode())
        # This one alone takes seconds less than all, and says why where it fails, which an update of all only warns of.
        only = (f"Dir::Etc::sourcelist={path}", "Dir::Etc::sourceparts=-", "APT::Get::List-Cleanup=0")
        self.demand("update", settings=(*only, "APT::Update::Error-Mode=any"))

    def add_source(self) -> bool:
        """Brings key, source and index of a source that is new up to date; whether it was not."""
        path = SOURCES / f"{self.source.get('name')}.sources"
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if not self.source or any(before == text and key.exists() for key, text in map(self.deb822, ("asc", "gpg"))):
            return False
        if not self.module.check_mode:
            self.renew_source()
        return True

    def finish_interrupted(self) -> bool:
        """Configures what an interrupted dpkg left unpacked; whether there was anything."""
        _, out, _ = self.module.run_command(["dpkg", "--audit"])
        if out.strip() and not self.module.check_mode:
            # Whatever dpkg cannot configure (a package in pieces) is put right by the installation that follows.
            self.module.run_command(["dpkg", "--configure", "-a", "--force-confdef", "--force-confold"])
            self.demand("install", "--fix-broken", "--allow-change-held-packages")
        return bool(out.strip())

    def todo(self) -> tuple[list[dict[str, Any]], list[str]]:
        """What to install (missing, broken or at another version), and which of it dpkg calls installed."""
        status = self.status()
        install, reinstall = [], []
        for package in self.wanted:
            name, wanted = package["name"], package["version"]
            _, state, version = status.get(name, ("", "", ""))
            there, right = state == "installed", matches(version, wanted)
            if there and right and all(Path(path).exists() for path in package["files"]):
                continue
            if there and not right and not self.module.params["upgrade"]:
                self.module.fail_json(
                    msg=f"{name} is installed at {version}, the table of versions says {wanted}."
                    f" Run playbooks/upgrade.yml to change it, or put {version} back into the table."
                )
            install.append(package)
            reinstall += [name] if there else []
        return install, reinstall

    def offers(self, packages: list[dict[str, Any]]) -> dict[str, list[str]]:
        """The versions that the repositories offer of each package, newest first."""
        found: dict[str, list[str]] = {package["name"]: [] for package in packages}
        _, out, _ = self.module.run_command(["apt-cache", "madison", *found])
        for line in out.splitlines():
            columns = [column.strip() for column in line.split("|")]
            # Of another architecture alone, a package has that behind its name.
            known = len(columns) == 3 and "Packages" in columns[2] and columns[0] in found
            if known and columns[1] not in found[columns[0]]:
                found[columns[0]].append(columns[1])
        return found

    def resolve(self, packages: list[dict[str, Any]]) -> list[str]:
        """The exact name=version of each; ends the module when a version is not offered, by a fresh index with a fresh key either."""
        fresh = False
        while True:
            offers = self.offers(packages)
            exact = [[v for v in offers[one["name"]] if matches(v, one["version"])][:1] for one in packages]
            if all(exact):
                pairs = zip(packages, exact, strict=True)
                return [f"{one['name']}={found[0]}" if one["version"] else str(one["name"]) for one, found in pairs]
            if fresh:
                break
            if self.source:
                self.renew_source()
            self.demand("update")
            fresh = True
        package = packages[exact.index([])]
        offered = ", ".join(offers[package["name"]][:8])
        self.module.fail_json(
            msg=f"{package['name']} {package['version'] or '(any version)'} does not exist in the apt repositories of this machine:"
            f" {f'offered are {offered}' if offered else 'no repository offers this package'}."
            " Correct inventory/group_vars/all/versions.yml or the mirror, then run again; nothing was installed."
        )
        return []

    def install(self) -> bool:
        """Installs what is missing, broken or at another version; whether there was anything."""
        packages, reinstall = self.todo()
        if not packages or self.module.check_mode:
            # A virgin machine has no index of these repositories yet: say what would be asked for.
            self.installed = ["=".join(filter(None, (package["name"], package["version"]))) for package in packages]
            return bool(packages)
        self.installed = self.resolve(packages)
        words = ["--allow-change-held-packages", "--allow-downgrades", *(["--reinstall"] if reinstall else [])]
        # A file that was deleted by hand comes back only when dpkg is told so, should it be a configuration file.
        settings = ("Dpkg::Options::=--force-confmiss",) if reinstall else ()
        failure = self.apt("install", *words, *self.installed, settings=settings)
        if failure and not LOCKED.search(failure):
            # A fresh machine has no index of the packages that these depend on, or one older than its archive.
            self.apt("update")
            failure = self.apt("install", *words, *self.installed, settings=settings)
        if failure:
            self.module.fail_json(msg=advice("install", failure, self.module.params["lock_timeout_s"]))
        for package in packages:
            if missing := [path for path in package["files"] if not Path(path).exists()]:
                self.module.fail_json(
                    msg=f"{package['name']} was installed and still lacks {', '.join(missing)}."
                    " The package of this mirror is damaged or made for another layout: compare it with upstream's."
                )
        return True

    def hold(self) -> bool:
        """Holds what is to be held; whether anything was not."""
        status = self.status()
        names = [one["name"] for one in self.module.params["packages"]]
        self.held = [name for name in names if status.get(name, ("",))[0] != "hold"]
        if self.held and not self.module.check_mode:
            code, out, err = self.module.run_command(["apt-mark", "hold", *self.held])
            if code != 0:
                self.module.fail_json(msg=f"apt-mark hold {' '.join(self.held)} failed: {(err or out).strip()}")
        return bool(self.held)

    def absent(self) -> bool:
        """Removes the packages with their configuration; whether any was there."""
        there = [name for name, (_, state, _) in self.status().items() if state != "not-installed"]
        if there and not self.module.check_mode:
            self.demand("purge", "--allow-change-held-packages", *there)
        return bool(there)

    def present(self) -> bool:
        """Brings the repository and every package to its version; whether anything changed."""
        return any([self.add_source(), self.finish_interrupted(), self.install(), self.hold()])


def main() -> None:
    """Runs the module."""
    module = documented(DOCUMENTATION)
    packages = Packages(module)
    changed = packages.present() if module.params["state"] == "present" else packages.absent()
    module.exit_json(changed=changed, installed=packages.installed, held=packages.held)


if __name__ == "__main__":
    main()
