"""All of the local mirrors in one: repositories, manifests, Debian; and the variables that point the roles at them."""

import hashlib
from pathlib import Path
from typing import Any, Self

import yaml

from tests.node.machine import deps
from tests.node.machine.deps import Tools
from tests.node.machine.network import MIRROR
from tests.node.mirror import driver, manifests, packages
from tests.node.mirror.debs import Package, build
from tests.node.mirror.repository import Signer, write_index
from tests.node.mirror.server import Server, Site

# Of the driver there is a repository for each distribution, below this folder.
DRIVER = "nvidia-driver"
VERSIONS = Path(__file__).parents[3] / "inventory/group_vars/all/versions.yml"


class Mirror:
    """Serves everything that site.yml fetches, from loopback; close() ends it.

    folder: where it is laid out, once: the mirrors of several workers of a session serve the same packages under the same
    key, each with its own list of requests and its own ways to misbehave. url: how a machine of these tests reaches it.
    """

    def __init__(self, tools: Tools, folder: Path) -> None:
        self._folder = folder
        self.table = self.read_table()
        site = folder / "site"
        self.repositories = self.stand_ins()
        folder.mkdir(parents=True, exist_ok=True)
        with deps.lock(folder / "lock"):
            fingerprint = folder / "fingerprint"
            if not fingerprint.exists():
                fingerprint.write_text(self._lay_out(site))
            self._fingerprint = fingerprint.read_text()
        upstreams = {"debian": tools.debian_mirror, "debian-security": tools.security_mirror}
        self.site = Site(site, upstreams, tools.cache / "debian")
        self._server = Server(self.site)
        self.port = self._server.port
        self.url = f"http://{MIRROR}"

    def read_table(self) -> dict[str, Any]:
        """The project's own table of versions."""
        table: dict[str, Any] = yaml.safe_load(VERSIONS.read_text())
        return table

    def stand_ins(self) -> dict[str, list[Package]]:
        """The packages that are made here, by repository."""
        repositories = {
            "crio": [packages.builder(), *(one for row in self._rows() for one in packages.crio(row["crio"]))],
            "kubernetes": self._kubernetes(),
            "nvidia": packages.nvidia(self.table["versions_common"]["nvidia_toolkit"]),
        }
        for row in self.table["versions_driver_repositories"].values():
            parts = driver.repository(self.table["versions_common"]["nvidia_driver"])
            repositories[f"{DRIVER}/{row['folder']}/x86_64"] = parts
        return repositories

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving."""
        self._server.close()

    def deb(self, name: str, upstream_version: str) -> Path:
        """The .deb of a package at an upstream version."""
        for repository, contents in self.repositories.items():
            for package in contents:
                if package.name == name and package.version.rpartition("-")[0] == upstream_version:
                    return self._folder / "site" / repository / package.file_name
        raise LookupError(f"no {name} {upstream_version} on the mirror")

    def row(self) -> dict[str, Any]:
        """The chosen row of the table of versions."""
        chosen: dict[str, Any] = self.table["versions_by_minor"][self.table["kubernetes_minor"]]
        return chosen

    def variables(self) -> dict[str, Any]:
        """Inventory variables: where the mirrors are, and the keys and sums of what they serve."""
        key = {"key": "Release.key", "fingerprint": self._fingerprint}
        return {
            "mirror_apt_crio": f"{self.url}/crio/",
            "mirror_apt_kubernetes": f"{self.url}/kubernetes/",
            "mirror_apt_nvidia": f"{self.url}/nvidia/",
            "mirror_apt_nvidia_driver": f"{self.url}/{DRIVER}/",
            "mirror_files": f"{self.url}/files",
            "mirror_images": f"{MIRROR}:5000",
            "mirror_images_insecure": True,
            "versions_apt_keys": dict.fromkeys(("crio", "kubernetes", "nvidia"), key),
            "versions_driver_repositories": {
                name: row | key for name, row in self.table["versions_driver_repositories"].items()
            },
            "versions_calico": self._calico(),
        }

    def debian_sources(self, suite: str) -> str:
        """What belongs into the machine's sources.list: Debian by way of this mirror."""
        lines = [f"deb {self.url}/debian {suite} main", f"deb {self.url}/debian-security {suite}-security main"]
        return "\n".join(lines) + "\n"

    def ready_made(self, repository: str, folder: Path) -> list[Path]:  # noqa: ARG002 - all of them are made here
        """Packages that somebody else has built, put into the repository's folder."""
        return []

    def _rows(self) -> list[dict[str, Any]]:
        return list(self.table["versions_by_minor"].values())

    def _kubernetes(self) -> list[Package]:
        """Every row's packages, and a later patch release than any row asks for: a pin has to hold against it."""
        found = {one.file_name: one for row in self._rows() for one in packages.kubernetes(row)}
        major, minor, patch = self.row()["kubernetes"].split(".")
        later = self.row() | {"kubernetes": f"{major}.{minor}.{int(patch) + 1}"}
        return list((found | {one.file_name: one for one in packages.kubernetes(later)}).values())

    def _lay_out(self, site: Path) -> str:
        """Build, index and sign everything; return the fingerprint of the key."""
        signer = Signer(self._folder / "keys")
        try:
            for name, contents in self.repositories.items():
                folder = site / name
                folder.mkdir(parents=True)
                debs = [*self.ready_made(name, folder), *(build(package, folder) for package in contents)]
                write_index(folder, signer, f"node test {name}", debs)
        finally:
            signer.close()
        manifests.write(site / "files", self.table)
        return signer.fingerprint

    def _calico(self) -> dict[str, Any]:
        """The table's rows with the sums of the files that stand in for the manifests."""
        rows: dict[str, Any] = {}
        for version, row in self.table["versions_calico"].items():
            files = []
            for file in row["files"]:
                content = (self.site.folder / "files/calico" / version / file["name"]).read_bytes()
                files.append(file | {"sha256": hashlib.sha256(content).hexdigest()})
            rows[version] = row | {"files": files}
        return rows
