"""A sweep of a workload's load: rates or resident requests, as an axis of the campaign; each load is a workload of its own name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from harness.spec.model import KUBERNETES, Apart, Lacking, Load, StrictModel, UpTo4096, checked
from harness.spec.scenario import ScenarioKind
from harness.spec.workload import RATE_IS_OF, WorkloadSpec


class Per(StrEnum):
    """Whose load it is."""

    REPLICA = "replica"
    GPU = "gpu"


class SweepKind(StrEnum):
    """What a load is counted in."""

    RATE = "rate"
    CONCURRENCY = "concurrency"


_UNITS = {SweepKind.RATE: "requests/s", SweepKind.CONCURRENCY: "resident requests"}
_OWNERS = {Per.REPLICA: "replica", Per.GPU: "GPU"}


class SweptLoad(StrictModel):
    """One load of a sweep."""

    kind: SweepKind
    value: Load
    per: Per

    @property
    def unit(self) -> str:
        """E.g. ``resident requests per GPU``."""
        return f"{_UNITS[self.kind]} per {_OWNERS[self.per]}"

    @property
    def in_words(self) -> str:
        """E.g. ``16 resident requests per GPU``."""
        return f"{self.value:g} {self.unit}"

    def per_replica(self, replicas: int, gpus: int) -> float:
        """The part of each replica, where they are spread evenly over the GPUs."""
        return self.value if self.per is Per.REPLICA else self.value * min(gpus, replicas) / replicas

    def at(self, workload: WorkloadSpec, replicas: int, gpus: int) -> WorkloadSpec:
        """The workload under its part of this load, named after the load. Raises ValueError where it cannot have one."""
        part = self.per_replica(replicas, gpus)
        loaded = workload.at_rate(part) if self.kind is SweepKind.RATE else workload.at_concurrency(max(int(part), 1))
        own = f"{'c' if self.kind is SweepKind.CONCURRENCY else 'rate-'}{self.value:g}"
        name = f"{workload.name}-{own}".replace(".", "-").replace("+", "") + ("-per-gpu" if self.per is Per.GPU else "")
        model = workload.model if workload.own else workload.target
        return loaded.model_copy(update={"name": name, "model": model, "variant_of": workload.name})


class SweepSpec(StrictModel):
    """The loads under which every configuration is measured."""

    rate: Annotated[list[Load], Apart] = Field([], description="Open loop: requests per second, e.g. [2, 4, 8].")
    concurrency: Annotated[list[UpTo4096], Apart] = Field(
        [], description="Closed loop of a `server`: resident requests, e.g. [4, 8, 16, 32]."
    )
    per: Per = Field(
        Per.REPLICA,
        description="Load of each replica, or of each gpu, divided evenly among its replicas.",
    )
    one_start: Annotated[
        bool,
        Lacking(
            KUBERNETES, "each load has pods of its own", "Remove it: every load is then measured in a start of its own."
        ),
    ] = Field(
        False,
        description="Start the replicas once per repeat; they serve all loads in random order.",
    )

    @checked
    def _one_kind(self) -> Iterator[str]:
        if bool(self.rate) is bool(self.concurrency):
            yield "a sweep needs either `rate` or `concurrency`."

    def loads(self) -> list[SweptLoad]:
        """Every load, as listed."""
        rates = [SweptLoad(kind=SweepKind.RATE, value=value, per=self.per) for value in self.rate]
        return rates + [SweptLoad(kind=SweepKind.CONCURRENCY, value=value, per=self.per) for value in self.concurrency]

    def only(self, loads: Collection[SweptLoad]) -> SweepSpec:
        """The same sweep of these of its loads."""
        values = {load.value for load in loads}
        kept = {name: [value for value in getattr(self, name) if value in values] for name in ("rate", "concurrency")}
        return self.model_copy(update=kept)

    def faults(self, workload: WorkloadSpec, replicas: int, gpus: int) -> Iterator[str]:
        """Why some load cannot be had by so many replicas."""
        if self.rate and not workload.has_rate:
            yield f"the workload {workload.name} has no rate to sweep: {RATE_IS_OF}"
        if self.concurrency and not workload.has_concurrency:
            yield f"the workload {workload.name} has no concurrency to sweep: a `server` without `rate` and `trace` has one."
        if self.one_start and workload.scenario is not None and workload.scenario.kind is not ScenarioKind.HTTP:
            yield f"`one_start`: the LoadGen that asks {workload.name} serves one load a process: use scenario http, or remove it."
        if self.per is Per.GPU and replicas % min(gpus, replicas):
            yield f"{replicas} replicas do not divide evenly among {gpus} GPUs: say `per: replica`, or change `replicas`."
        odd = [load for load in self.loads() if load.per_replica(replicas, gpus) % 1] if self.concurrency else []
        if odd:
            yield f"{odd[0].in_words} do not divide evenly among {replicas} replicas on {min(gpus, replicas)}: use multiples."
