"""What would keep a layer from being between the measured replicas and the machine, without anyone noticing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from harness.backends.supervised import CAMPAIGN_VARIABLE
from harness.errors import Issue, IssueLevel
from harness.spec import ExperimentSpec, LayerSpec
from harness.spec.replica import VARIABLES

_CHECK = "layer"
_OWN = VARIABLES | {"PYTHONPATH", CAMPAIGN_VARIABLE}
"""Variables that the harness gives a replica, or that mean nothing beside those."""
_ELF = b"\x7fELF"


_OF_A_POD = frozenset({"HOME", "USER"})


def check_layer_of_image(experiment: ExperimentSpec) -> Iterator[Issue]:
    """The same for a replica in a pod: what the image holds is seen when one runs."""
    for where, layer in _layer(experiment):
        yield from _taken(where, layer, _OWN | _OF_A_POD)
        if layer.preload is not None and not layer.preload.startswith("/"):
            message = f"{where} preloads {layer.preload}, and on a cluster that is a library of the replicas' image."
            yield Issue(IssueLevel.ERROR, _CHECK, message, "Give its whole path there, or in `preload_image`.")


def check_layer(experiment: ExperimentSpec) -> Iterator[Issue]:
    """Findings on the layer of one experiment's condition; none where it has none."""
    for where, layer in _layer(experiment):
        yield from _check(where, layer)


def _layer(experiment: ExperimentSpec) -> Iterator[tuple[str, LayerSpec]]:
    condition = experiment.condition
    if condition is not None and condition.layer is not None:
        yield f"the layer of condition {condition.name}", condition.layer


def _check(where: str, layer: LayerSpec) -> Iterator[Issue]:
    if layer.prefix and shutil.which(layer.prefix[0]) is None:
        message = f"{where} starts with {layer.prefix[0]}, and there is no such command."
        yield Issue(IssueLevel.ERROR, _CHECK, message, "Install it, or give its path.")
    yield from _taken(where, layer, _OWN)
    if layer.preload is not None and not _is_library(Path(layer.preload)):
        message = f"{where} preloads {layer.preload}, and that is no shared library."
        advice = "Give the path of a .so file, from where the harness is started. The loader would start without it."
        yield Issue(IssueLevel.ERROR, _CHECK, message, advice)


def _taken(where: str, layer: LayerSpec, own: frozenset[str]) -> Iterator[Issue]:
    taken = sorted(layer.environment.keys() & own)
    if taken:
        message = f"{where} sets {', '.join(taken)}, which the harness sets itself."
        yield Issue(IssueLevel.ERROR, _CHECK, message, "Say it with the workload's own fields, or leave it out.")


def _is_library(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_ELF)) == _ELF
    except OSError:
        return False
