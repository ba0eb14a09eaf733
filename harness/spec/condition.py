"""Under which conditions a workload is measured: alone, beside neighbours, under an interposed layer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from harness.spec.model import LOCAL, Apart, Lacking, StrictModel, Text, VariableName, checked
from harness.spec.pods import ImageReference
from harness.spec.scenario import ScenarioKind
from harness.spec.slo import SloSpec
from harness.spec.workload import CRASH, HOSTILE_WORKLOADS, MEMORY_HOG, WorkloadSpec

MAX_REPLICAS = 256
PRELOAD_VARIABLE = "LD_PRELOAD"
_IN_IMAGE = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9_.+@-]+)+")
"""A whole path that the loader and Kubernetes, who have signs of their own, both take as it is."""

Replicas = Annotated[int, Field(ge=1, le=MAX_REPLICAS)]


class NeighbourSpec(StrictModel):
    """A workload that runs beside the measured one, on the same machine and GPUs."""

    workload: WorkloadSpec = Field(description="The neighbour; all fields of a workload.")
    replicas: Replicas = Field(1, description="Its number of replicas.")
    slo: SloSpec | None = Field(None, description="Its own objective.")

    @checked
    def _limits_what_it_has(self) -> Iterator[str]:
        if self.slo and self.slo.of_tokens and not (self.workload.server and self.workload.server.streams):
            yield f"`slo` limits times of tokens, and answers of {self.name} are no streams."

    @property
    def name(self) -> str:
        """That of its workload."""
        return self.workload.name

    @property
    def in_words(self) -> str:
        """What it does, e.g. ``l2-hog fills the shared cache``, or ``2 replicas of whisper beside``."""
        wear = HOSTILE_WORKLOADS.get(self.workload.target)
        if wear:
            return f"{self.name}{f', {self.replicas} times,' if self.replicas > 1 else ''} {wear}"
        return f"{self.replicas} replica{'' if self.replicas == 1 else 's'} of {self.name} beside"

    @field_validator("workload")
    @classmethod
    def _works_by_itself(cls, workload: WorkloadSpec) -> WorkloadSpec:
        if workload.scenario is not None and workload.scenario.kind is ScenarioKind.HTTP:
            raise ValueError("a neighbour cannot have scenario http: the clients send to the measured replicas alone.")
        if workload.server is not None and not workload.server.of_this_machine:
            raise ValueError("a neighbour that is a server of your own needs a `command`: no `url` and no `image`.")
        return workload


class LayerSpec(StrictModel):
    """A layer between the measured replicas and the machine; neighbours run without it."""

    prefix: list[Text] = Field([], description="Command that starts the replica, e.g. [taskset, -c, 0-3].")
    environment: dict[VariableName, str] = Field({}, description="Environment variables of the replica.")
    preload: str | None = Field(None, description="Library to load first (LD_PRELOAD).")
    preload_image: Annotated[
        ImageReference | None,
        Lacking(LOCAL, "the harness starts no container on this machine", "Give the library's own path in `preload`."),
    ] = Field(
        None,
        description="On Kubernetes: image that has `preload`, with its registry; null: the replicas' own.",
    )

    def around(self, command: Sequence[str], *, here: bool = True) -> list[str]:
        """A replica's command under it, with the library for the replica alone; ``here``: that is a file of this machine, not of an image."""
        library = str(Path(self.preload).resolve()) if self.preload and here else self.preload
        inside = ["env", f"{PRELOAD_VARIABLE}={library}"] if library else []
        return [*self.prefix, *inside, *command]

    @property
    def in_words(self) -> str:
        """What is put between, e.g. ``started by taskset -c 0-3, with /opt/libhook.so loaded first``."""
        parts = [f"started by {' '.join(self.prefix)}"] if self.prefix else []
        parts += [f"with {self.preload} loaded first"] if self.preload else []
        parts += [f"with {', '.join(self.environment)} set"] if self.environment else []
        return ", ".join(parts)

    @checked
    def _says_something_once(self) -> Iterator[str]:
        if not (self.prefix or self.environment or self.preload):
            yield "a layer needs `prefix`, `environment` or `preload`; without one leave `layer` out."
        if self.preload and PRELOAD_VARIABLE in self.environment:
            yield f"`preload` sets {PRELOAD_VARIABLE}: keep one of them."
        if self.preload_image and not _IN_IMAGE.fullmatch(self.preload or ""):
            yield (
                f"`preload_image` needs `preload`, the library's whole path in it, e.g. /opt/lib/libhook.so (found {self.preload!r})."
            )


class ConditionSpec(StrictModel):
    """One condition, under which every configuration is run."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$", description="Part of the experiments' ids, e.g. alone.")
    neighbours: Annotated[list[NeighbourSpec], Apart] = Field(
        [], description="Workloads beside the measured one; their metrics are recorded too."
    )
    layer: LayerSpec | None = Field(None, description="Prefix, environment or library of the measured replicas.")

    @property
    def in_words(self) -> str:
        """What is unlike running alone, e.g. ``l2-hog fills the shared cache``; empty where nothing is."""
        parts = [neighbour.in_words for neighbour in self.neighbours] + ([self.layer.in_words] if self.layer else [])
        return ", ".join(parts)

    @property
    def deed(self) -> str:
        """What its hostile neighbours do, e.g. ``fill the shared cache``; empty where none is hostile."""
        targets = (neighbour.workload.target for neighbour in self.neighbours)
        deeds = [HOSTILE_WORKLOADS[target].partition(" ") for target in targets if target in HOSTILE_WORKLOADS]
        plain = (verb.removesuffix("es" if verb.endswith("shes") else "s") for verb, *_ in deeds)
        return " and ".join(f"{verb}{space}{what}" for verb, (_, space, what) in zip(plain, deeds, strict=True))

    @property
    def neighbour_replicas(self) -> int:
        """Replicas of all neighbours together."""
        return sum(neighbour.replicas for neighbour in self.neighbours)


def crashing(condition: ConditionSpec | None) -> frozenset[str]:
    """Neighbours, by name, whose death is wanted."""
    return _that_run(condition, {CRASH})


def waiting(condition: ConditionSpec | None) -> frozenset[str]:
    """Neighbours, by name, that do nothing until their time, and then something else than before."""
    return _that_run(condition, {CRASH, MEMORY_HOG})


def _that_run(condition: ConditionSpec | None, targets: set[str]) -> frozenset[str]:
    beside = condition.neighbours if condition else []
    return frozenset(neighbour.name for neighbour in beside if neighbour.workload.target in targets)
