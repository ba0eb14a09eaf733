"""From a name to a workload: the built-in ones, and anybody's own as ``module:factory``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast

from harness.replica.errors import CannotBeMetError
from harness.replica.settings import Settings
from harness.spec.model import nearest
from harness.spec.workload import BUILTIN_WORKLOADS, HOSTILE_WORKLOADS

_MADE_BY = {
    "notebook": "resnet50:Notebook",
    "resnet50-training": "resnet50:make_training",
    "bert-training": "distilbert:make_training",
    "mnist-training": "mnist:make_training",
    "data-parallel-training": "data_parallel_training:make",
}
BUILTIN = {name: f"harness.replica.models.{_MADE_BY.get(name, f'{name}:make')}" for name in BUILTIN_WORKLOADS}
HOSTILE = dict.fromkeys(HOSTILE_WORKLOADS, "harness.replica.hostile:make")


class Workload(Protocol):
    """What a replica runs.

    More methods are called where they exist: ``describe() -> dict``, facts for ``replica.json`` (device,
    device_name, parameters, ...); ``outcome() -> dict``, facts for it about what was served; ``published()``, what
    ``/metrics`` shows besides (see ``harness.replica.custom_metrics``); ``think_s() -> float``, a pause before the next
    request, which is not latency; ``serve_up_to()``, which returns what serves any number of inputs up to the batch
    size in one pass, for dynamic batching; ``begin_up_to()``, which returns what begins such a pass and returns what waits
    for it, or None; ``load(metrics)``, the frontend that asks a server of the workload's own; ``serving()``, a context that is
    entered once around all requests; and ``close()``, after the last request.
    """

    name: str

    def infer(self) -> int:
        """Serve one request: make or take the input, compute, have the result on the host.

        Returns the number of inputs served. Whatever it raises ends the replica.
        """
        ...


Factory = Callable[[Settings], Workload]


def load(settings: Settings) -> Workload:
    """Import what ``settings.workload`` names and make the workload; imports torch only when that does."""
    workload = find_factory(settings.workload)(settings)
    if not callable(getattr(workload, "infer", None)):
        raise CannotBeMetError(
            f"{settings.workload} returned a {type(workload).__name__} that has no infer() method; see docs/workloads.md."
        )
    return workload


def find_factory(target: str, setting: str = "WORKLOAD") -> Factory:
    """Return the factory that ``target`` names. Raises CannotBeMetError with what was looked for, and by which setting."""
    known = BUILTIN | HOSTILE
    path = known.get(target, target)
    if not all(path.partition(":")):
        raise CannotBeMetError(
            f"{setting}: {target!r} is neither a built-in workload nor of the form module:factory; {nearest(target, known)}"
        )
    return cast("Factory", find_function(path, setting))


def find_function(path: str, setting: str) -> Callable[..., Any]:
    """Return what ``path``, a ``module:function``, names. Raises CannotBeMetError with what was looked for, and by which setting."""
    module_name, _, attribute = path.partition(":")
    module = _import(module_name, setting)
    function = getattr(module, attribute, None)
    if not callable(function):
        functions = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        raise CannotBeMetError(
            f"{setting}: module {module_name} ({module.__file__}) has no callable {attribute!r}; {nearest(attribute, functions)}"
        )
    return cast("Callable[..., Any]", function)


def _import(name: str, setting: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise  # the module was found; something that it imports was not
        raise CannotBeMetError(
            f"{setting}: there is no module {missing!r} to import, looked for from {Path.cwd()} and in PYTHONPATH; "
            f"start in the folder that holds it."
        ) from error
