"""The mirrors with packages and images that somebody has really built, in the place of the stand-ins.

A folder of them has: crio/ and kubernetes/ with .deb files; registry/v2/ with the answers of an image registry, each as a file
(NAME/manifests/TAG, NAME/manifests/DIGEST, NAME/blobs/DIGEST); versions.yml with what differs from the rows of the table of
versions, by minor. A minor that it does not name is not there.
"""

import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.node.machine.deps import Tools
from tests.node.machine.network import MIRROR
from tests.node.mirror import packages
from tests.node.mirror.debs import Package
from tests.node.mirror.site import Mirror

VARIABLE = "NODE_TEST_PACKAGES"


class RealMirror(Mirror):
    """A Mirror of such a folder; what it has no package for (a GPU's toolkit) is a stand-in all the same."""

    def __init__(self, tools: Tools, folder: Path, built: Path) -> None:
        self._built = built
        super().__init__(tools, folder)
        self.site.registry = built / "registry"

    def read_table(self) -> dict[str, Any]:
        table = super().read_table()
        rows: dict[str, Any] = yaml.safe_load((self._built / "versions.yml").read_text())
        table["versions_by_minor"] = {
            minor: table["versions_by_minor"][minor]
            | row
            | {"images": table["versions_by_minor"][minor]["images"] | row["images"]}
            for minor, row in rows.items()
        }
        return table

    def stand_ins(self) -> dict[str, list[Package]]:
        toolkit = packages.nvidia(self.table["versions_common"]["nvidia_toolkit"])
        return {"crio": [packages.builder()], "kubernetes": [], "nvidia": toolkit}

    def ready_made(self, repository: str, folder: Path) -> list[Path]:
        return [Path(shutil.copy(path, folder)) for path in sorted((self._built / repository).glob("*.deb"))]

    def variables(self) -> dict[str, Any]:
        return super().variables() | {
            "mirror_images": f"{MIRROR}:80",
            "versions_by_minor": self.table["versions_by_minor"],
        }
