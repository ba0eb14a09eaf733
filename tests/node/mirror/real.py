"""The mirrors with packages and images that somebody has really built, in the place of the stand-ins.

A folder of them has: crio/ and kubernetes/ with .deb files; registry/v2/ with the answers of an image registry, each as a file
(NAME/manifests/TAG, NAME/manifests/DIGEST, NAME/blobs/DIGEST); versions.yml with what differs from the rows of the table of
versions, by minor. A minor that it does not name is not there.

For the steps in which GPUs are shared it has as well: nvidia/ with the .deb files of NVIDIA's container toolkit; in the registry the images
of the device plugin and of the CUDA sample (one that exits 0 will do: nothing runs on these GPUs); nvml/libnvidia-ml.so.VERSION, a library
that answers as NVML does, without settings and in the device plugin's image too (mocknvml of NVIDIA/k8s-test-infra), VERSION being the
driver's that it tells.
"""

import shutil
from pathlib import Path
from typing import Any

import yaml

from tests.node.machine import gpu
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
        built = any((self._built / "nvidia").glob("*.deb"))
        toolkit = [] if built else packages.nvidia(self.table["versions_common"]["nvidia_toolkit"])
        return {"crio": [packages.builder()], "kubernetes": [], "nvidia": toolkit}

    def ready_made(self, repository: str, folder: Path) -> list[Path]:
        return [Path(shutil.copy(path, folder)) for path in sorted((self._built / repository).glob("*.deb"))]

    @property
    def nvml(self) -> Path | None:
        """The library that answers as NVML does, where the folder has one."""
        return gpu.library_in(self._built / "nvml")

    def lacks_for_gpus(self) -> list[str]:
        """What the folder has not of what the steps about GPUs need."""
        images = self.table["versions_common"]["images"]
        names = [images[name].rpartition(":") for name in ("device_plugin", "cuda_sample")]
        needed = {
            "nvml/libnvidia-ml.so.VERSION": self.nvml,
            "nvidia/*.deb": any((self._built / "nvidia").glob("*.deb")),
        } | {
            f"the image {name}:{tag}": (self.site.registry / "v2" / name / "manifests" / tag).exists()
            for name, _, tag in names
        }
        return [name for name, there in needed.items() if not there]

    def variables(self) -> dict[str, Any]:
        return super().variables() | {
            "mirror_images": f"{MIRROR}:80",
            "versions_by_minor": self.table["versions_by_minor"],
        }
