#!/usr/bin/python
"""Debian packages at one exact version, held, and really there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.apt_get import AptGet
from ..module_utils.apt_source import Source
from ..module_utils.proxied import OPTION, use_proxy

DOCUMENTATION = r"""
module: deb_pinned
short_description: Packages at one exact version in one transaction; held; broken installs repaired
description:
  - Resolves an upstream version (C(1.35.8)) to the exact package version the repositories offer (C(1.35.8-1.1))
    before anything is installed; an installed revision of the same version is kept.
  - Finishes what an interrupted dpkg left behind.
  - Reinstalls a package that dpkg calls installed while one of its O(packages[].files) is missing.
  - Installs everything in one transaction, once more with fresh indexes where that fails, and holds what is to be held.
  - Refuses to change an installed version unless O(upgrade=true).
options:
  packages:
    description: The packages.
    type: list
    elements: dict
    required: true
    suboptions:
      name: {description: Name., type: str, required: true}
      version: {description: Upstream or exact version; empty for any., type: str, default: ""}
      hold: {description: Hold it at this version., type: bool, default: true}
      files: {description: Files without which it does not count as installed., type: list, elements: str, default: []}
  source:
    description: The flat apt repository that has them; known, with its key and a fresh index, before anything else.
    type: dict
    suboptions:
      name: {description: Name of the source and of its key file., type: str, required: true}
      uri: {description: The repository., type: str, required: true}
      key: {description: URL of the key; relative to O(source.uri) unless absolute., type: str, required: true}
      fingerprint: {description: The primary key's fingerprint (40 hexadecimal digits); empty accepts any key.,
                    type: str, default: ""}
  also: {description: Packages taken along at any version and not held., type: list, elements: str, default: []}
  also_held: {description: Packages taken along at any version and held at it., type: list, elements: str, default: []}
  upgrade: {description: Change versions that are installed and held., type: bool, default: false}
  lock_timeout_s: {description: Seconds to wait for another apt or dpkg., type: int, default: 120}
  proxy: {description: "http_proxy, https_proxy and no_proxy of the environment; never shown.", type: dict, default: {}}
  state: {description: Whether the packages are there; C(absent) removes them with their configuration., type: str,
          choices: [present, absent], default: present}
author: [the project]
"""

EXAMPLES = r"""
- name: Install CRI-O
  deb_pinned:
    source: {name: cri-o, uri: "https://mirror.example/crio/", key: Release.key}
    packages: [{name: cri-o, version: 1.35.6, files: [/usr/bin/crio]}]
"""

RETURN = r"""
installed: {description: Packages installed or reinstalled now as name=version., type: list, elements: str,
            returned: always}
held: {description: Packages put on hold now., type: list, elements: str, returned: always}
versions: {description: The version of every package after the run (in check mode before it)., type: dict,
           returned: always}
"""

FIELDS = "${Package}\t${db:Status-Want}\t${db:Status-Status}\t${Version}\n"


def matches(version: str, wanted: str) -> bool:
    """Whether a package version is the wanted one: the same, or a Debian revision of the same upstream version."""
    return not wanted or version == wanted or version.rpartition("-")[0] == wanted


def offered(madison: str) -> dict[str, list[str]]:
    """The versions each package is offered at, newest first, from apt-cache madison."""
    found: dict[str, list[str]] = {}
    for line in madison.splitlines():
        columns = [column.strip() for column in line.split("|")]
        if len(columns) == 3 and "Packages" in columns[2]:
            versions = found.setdefault(columns[0], [])
            if columns[1] not in versions:
                versions.append(columns[1])
    return found


def fitting(package: dict[str, Any], offers: dict[str, list[str]]) -> list[str]:
    """The offered versions that are the wanted one."""
    return [version for version in offers.get(package["name"], []) if matches(version, package["version"])]


class Packages:
    """The wanted packages against what dpkg has."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        also = [
            {"name": name, "version": "", "hold": hold, "files": []}
            for option, hold in (("also", False), ("also_held", True))
            for name in module.params.get(option) or []
        ]
        self.wanted: list[dict[str, Any]] = module.params["packages"] + also
        self.names = [package["name"] for package in self.wanted]
        self.apt = AptGet(module, module.params["lock_timeout_s"])
        asked = module.params["source"]
        self.source = Source(module, asked, self.apt) if asked else None
        self.installed: list[str] = []
        self.held: list[str] = []

    def run(self, *command: str) -> tuple[int, str, str]:
        """Runs a command: exit status, stdout, stderr."""
        code, out, err = self.module.run_command(list(command))
        return int(code), str(out), str(err)

    def status(self) -> dict[str, tuple[str, str, str]]:
        """By package: want, status and version; nothing for what dpkg does not know."""
        _, out, _ = self.run("dpkg-query", "--show", "--showformat", FIELDS, *self.names)
        rows = [line.split("\t") for line in out.splitlines()]
        return {name: (want, status, version) for name, want, status, version in rows}

    def finish_interrupted(self) -> bool:
        """Configures what an interrupted dpkg left unpacked; whether there was anything."""
        _, out, _ = self.run("dpkg", "--audit")
        if not out.strip():
            return False
        if not self.module.check_mode:
            # Whatever dpkg cannot configure (a package in pieces) is put right by the installation that follows.
            self.run("dpkg", "--configure", "-a", "--force-confdef", "--force-confold")
            self.apt.run("install", "--fix-broken", "--allow-change-held-packages")
        return True

    def todo(self) -> tuple[list[dict[str, Any]], list[str]]:
        """What to install (missing, broken or at another version), and which of it dpkg calls installed."""
        status = self.status()
        install, reinstall = [], []
        for package in self.wanted:
            name = package["name"]
            _, state, version = status.get(name, ("", "", ""))
            whole = state == "installed" and all(Path(path).exists() for path in package["files"])
            if whole and matches(version, package["version"]):
                continue
            if state == "installed" and not matches(version, package["version"]) and not self.module.params["upgrade"]:
                self.module.fail_json(
                    msg=f"{name} is installed at {version}, the table of versions says {package['version']}."
                    f" Run playbooks/upgrade.yml to change it, or put {version} back into the table."
                )
            install.append(package)
            if state == "installed":
                reinstall.append(name)
        return install, reinstall

    def offers(self, packages: list[dict[str, Any]]) -> dict[str, list[str]]:
        """The versions that the repositories offer of each package, newest first."""
        _, out, _ = self.run("apt-cache", "madison", *(package["name"] for package in packages))
        return offered(out)

    def resolve(self, packages: list[dict[str, Any]]) -> list[str]:
        """The exact name=version of each; ends the module when a version is not offered.

        What is not offered by the index on this machine is asked for once more with a fresh one, and a fresh key.
        """
        offers = self.offers(packages)
        if not all(fitting(package, offers) for package in packages):
            if self.source:
                self.source.renew()
            self.apt.run("update")
            offers = self.offers(packages)
        for package in packages:
            if not fitting(package, offers):
                self.fail_unknown(package["name"], package["version"], offers.get(package["name"], []))
        return [
            f"{package['name']}={fitting(package, offers)[0]}" if package["version"] else str(package["name"])
            for package in packages
        ]

    def fail_unknown(self, name: str, wanted: str, offers: list[str]) -> None:
        """Ends the module: no repository offers this version."""
        others = f"offered are {', '.join(offers[:8])}" if offers else "no repository offers this package"
        self.module.fail_json(
            msg=f"{name} {wanted or '(any version)'} does not exist in the apt repositories of this machine: {others}."
            " Correct inventory/group_vars/all/versions.yml or the mirror, then run again; nothing was installed."
        )

    def install(self) -> bool:
        """Installs what is missing, broken or at another version; whether there was anything."""
        packages, reinstall = self.todo()
        if not packages:
            return False
        if self.module.check_mode:
            # A virgin machine has no index of these repositories yet: say what would be asked for.
            self.installed = ["=".join(filter(None, (package["name"], package["version"]))) for package in packages]
            return True
        self.installed = self.resolve(packages)
        flags = ["--allow-change-held-packages", "--allow-downgrades"]
        # A file that was deleted by hand comes back only when dpkg is told so, should it be a configuration file.
        flags += ["--reinstall"] if reinstall else []
        settings = ("Dpkg::Options::=--force-confmiss",) if reinstall else ()
        self.apt.install(*flags, *self.installed, settings=settings)
        self.verify(packages)
        return True

    def verify(self, packages: list[dict[str, Any]]) -> None:
        """Ends the module when a package is still not whole after its installation."""
        for package in packages:
            missing = [path for path in package["files"] if not Path(path).exists()]
            if missing:
                self.module.fail_json(
                    msg=f"{package['name']} was installed and still lacks {', '.join(missing)}."
                    " The package of this mirror is damaged or made for another layout: compare it with upstream's."
                )

    def hold(self) -> bool:
        """Holds what is to be held; whether anything was not."""
        status = self.status()
        loose = [p["name"] for p in self.wanted if p["hold"] and status.get(p["name"], ("",))[0] != "hold"]
        if loose and not self.module.check_mode:
            code, out, err = self.run("apt-mark", "hold", *loose)
            if code != 0:
                self.module.fail_json(msg=f"apt-mark hold {' '.join(loose)} failed: {(err or out).strip()}")
        self.held = loose
        return bool(loose)

    def remove(self) -> bool:
        """Removes the packages with their configuration; whether any was there."""
        there = [name for name, (_, state, _) in self.status().items() if state != "not-installed"]
        if there and not self.module.check_mode:
            self.apt.run("purge", "--allow-change-held-packages", *there)
        return bool(there)

    def present(self) -> bool:
        """Brings the repository and every package to its version; whether anything changed."""
        known = self.source is not None and self.source.apply()
        finished = self.finish_interrupted()
        installed = self.install()
        held = self.hold()
        return known or finished or installed or held


def main() -> None:
    """Runs the module."""
    package = {
        "name": {"type": "str", "required": True},
        "version": {"type": "str", "default": ""},
        "hold": {"type": "bool", "default": True},
        "files": {"type": "list", "elements": "str", "default": []},
    }
    source = {
        "name": {"type": "str", "required": True},
        "uri": {"type": "str", "required": True},
        "key": {"type": "str", "required": True, "no_log": False},
        "fingerprint": {"type": "str", "default": ""},
    }
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "list", "elements": "dict", "required": True, "options": package},
            "source": {"type": "dict", "options": source},
            "also": {"type": "list", "elements": "str", "default": []},
            "also_held": {"type": "list", "elements": "str", "default": []},
            "upgrade": {"type": "bool", "default": False},
            "lock_timeout_s": {"type": "int", "default": 120},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            **OPTION,
        },
        supports_check_mode=True,
    )
    use_proxy(module)
    module.run_command_environ_update = {"LC_ALL": "C", "LANG": "C", "DEBIAN_FRONTEND": "noninteractive"}
    packages = Packages(module)
    changed = packages.present() if module.params["state"] == "present" else packages.remove()
    versions = {name: version for name, (_, _, version) in packages.status().items()}
    module.exit_json(changed=changed, installed=packages.installed, held=packages.held, versions=versions)


if __name__ == "__main__":
    main()
