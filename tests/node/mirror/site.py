"""All of the local mirrors in one: repositories, manifests, Debian; and the variables that point the roles at them."""

import hashlib
import shutil
from pathlib import Path
from typing import Any, Self

import yaml

from tests.node.machine.deps import Tools
from tests.node.machine.image import GATEWAY
from tests.node.mirror import manifests, packages
from tests.node.mirror.debs import Package, build
from tests.node.mirror.repository import Signer, write_index
from tests.node.mirror.server import Server, Site

VERSIONS = Path(__file__).parents[3] / "inventory/group_vars/all/versions.yml"


class Mirror:
    """Serves everything that site.yml fetches, from loopback; close() ends it.

    folder: scratch space that is removed again. url: how a machine of these tests reaches it.
    """

    def __init__(self, tools: Tools, folder: Path) -> None:
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        self.table: dict[str, Any] = yaml.safe_load(VERSIONS.read_text())
        self.signer = Signer(folder / "keys")
        site = folder / "site"
        self.repositories = {
            "crio": [packages.builder(), *(one for row in self._rows() for one in packages.crio(row["crio"]))],
            "kubernetes": self._kubernetes(),
            "nvidia": packages.nvidia(self.table["versions_common"]["nvidia_toolkit"]),
        }
        for name, contents in self.repositories.items():
            self._publish(site / name, name, contents)
        manifests.write(site / "files", self.table)
        upstreams = {"debian": tools.debian_mirror, "debian-security": tools.security_mirror}
        self.site = Site(site, upstreams, tools.cache / "debian")
        self._server = Server(self.site)
        self.url = f"http://{GATEWAY}:{self._server.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving and remove the scratch space."""
        self._server.close()
        self.signer.close()
        shutil.rmtree(self._folder, ignore_errors=True)

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
        key = {"key": "Release.key", "fingerprint": self.signer.fingerprint}
        return {
            "mirror_apt_crio": f"{self.url}/crio/",
            "mirror_apt_kubernetes": f"{self.url}/kubernetes/",
            "mirror_apt_nvidia": f"{self.url}/nvidia/",
            "mirror_files": f"{self.url}/files",
            "mirror_images": f"{GATEWAY}:5000",
            "mirror_images_insecure": True,
            "versions_apt_keys": dict.fromkeys(self.repositories, key),
            "versions_calico": self._calico(),
        }

    def debian_sources(self, suite: str) -> str:
        """What belongs into the machine's sources.list: Debian by way of this mirror."""
        lines = [f"deb {self.url}/debian {suite} main", f"deb {self.url}/debian-security {suite}-security main"]
        return "\n".join(lines) + "\n"

    def _rows(self) -> list[dict[str, Any]]:
        return list(self.table["versions_by_minor"].values())

    def _kubernetes(self) -> list[Package]:
        """Every row's packages, and a later patch release than any row asks for: a pin has to hold against it."""
        found = {one.file_name: one for row in self._rows() for one in packages.kubernetes(row)}
        major, minor, patch = self.row()["kubernetes"].split(".")
        later = self.row() | {"kubernetes": f"{major}.{minor}.{int(patch) + 1}"}
        return list((found | {one.file_name: one for one in packages.kubernetes(later)}).values())

    def _publish(self, folder: Path, name: str, contents: list[Package]) -> None:
        folder.mkdir(parents=True)
        write_index(folder, self.signer, f"node test {name}", [build(package, folder) for package in contents])

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
