"""Which replica ran where: on which node, and on which of its GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from harness.analysis.campaign import Cell
from harness.results.manifest import Manifest

_SHORT = 12
"""Characters of a GPU's UUID that people tell it by: ``GPU-1a2b3c4d``."""


class Place(NamedTuple):
    """A GPU of a node; empty where the replica does not say: a CPU, or this machine."""

    node: str
    gpu: str


def places(manifest: Manifest) -> dict[Place, list[int]]:
    """Each place with its replicas, in the order of the replicas; empty where none says where it is."""
    places: dict[Place, list[int]] = {}
    for index, replica in enumerate(manifest.replicas):
        gpu = replica.get("gpu_uuid") or replica.get("device_uuid") or ""
        places.setdefault(Place(str(replica.get("node") or ""), str(gpu)), []).append(index)
    return places if any(place != Place("", "") for place in places) else {}


def several(manifests: Iterable[Manifest]) -> bool:
    """Whether replicas of any of these ran in more than one place."""
    return any(len(places(manifest)) > 1 for manifest in manifests)


def in_words(manifest: Manifest) -> str:
    """E.g. ``n1 GPU-1a2b3c4d: replicas 0, 2; n2 GPU-5e6f7a8b: replica 1``; empty where nobody says."""
    return "; ".join(
        f"{' '.join(filter(None, (place.node, place.gpu[:_SHORT])))}: replica{'s' if len(those) > 1 else ''} "
        f"{', '.join(map(str, those))}"
        for place, those in places(manifest).items()
    )


def of_cell(cell: Cell) -> str:
    """How many replicas each place had, in all repeats used: ``4 + 4 on 2 GPUs of 2 nodes``; each way once."""
    ways = [_counts(places(run.data.manifest)) for run in cell.used]
    return " or ".join(dict.fromkeys(filter(None, ways)))


def _counts(places: dict[Place, list[int]]) -> str:
    counts = " + ".join(str(len(those)) for those in sorted(places.values(), key=len, reverse=True))
    gpus, nodes = len({place for place in places if place.gpu}), len({place.node for place in places} - {""})
    where = [f"{count} {what}{'s' if count > 1 else ''}" for count, what in ((gpus, "GPU"), (nodes, "node")) if count]
    return f"{counts} on {' of '.join(where)}" if where else ""
