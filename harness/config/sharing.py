"""How replicas share GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field, model_validator

from harness.config.model import StrictModel


class Sharing(StrEnum):
    """How replicas share one GPU."""

    EXCLUSIVE = "exclusive"
    """Each replica has a GPU of its own."""
    TIME_SLICING = "time-slicing"
    """The driver gives the GPU to one process after another."""
    MPS = "mps"
    """NVIDIA's Multi-Process Service runs the kernels of all processes side by side."""
    MIG = "mig"
    """Each replica has a hardware partition of its own, one that exists already."""
    AS_FOUND = "as-found"
    """Servers that ran already: how they share a GPU is left alone, and nothing is said of it."""

    @property
    def traits(self) -> Traits:
        """What sets it apart."""
        return _TRAITS[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What sets one sharing mode apart. Everything that differs by mode asks for a trait, and nothing for a mode.

    Attributes:
        switch: the command that puts a cluster's GPUs under it; empty: nothing does, it is what was found.
        needs_gpu: it means nothing without a GPU.
        own_gpu: each replica has a GPU of its own.
        turns: processes take turns on the GPU, and a slice says nothing of what each gets.
        daemon: the processes are clients of MPS's daemon, which `mps` may limit.
        instances: the GPU is divided into instances, one for each replica.
        most_processes: on one GPU, by NVIDIA's documentation; None: no such bound.
        plugin: the section of the device plugin's configuration that sets it; empty: that sets none.
        label: value of the node label by which GPU feature discovery shows it; empty: it does not.
        gke: value of the node label by which Google's clusters show it; likewise.
    """

    switch: str
    needs_gpu: bool = True
    own_gpu: bool = False
    turns: bool = False
    daemon: bool = False
    instances: bool = False
    most_processes: int | None = None
    plugin: str = ""
    label: str = ""
    gke: str = ""


_TRAITS: Mapping[Sharing, Traits] = {
    Sharing.EXCLUSIVE: Traits(switch="harness sharing exclusive", own_gpu=True, label="none"),
    Sharing.TIME_SLICING: Traits(
        switch="harness sharing time-slicing --replicas N",
        needs_gpu=False,
        turns=True,
        plugin="timeSlicing",
        label="time-slicing",
        gke="time-sharing",
    ),
    Sharing.MPS: Traits(
        switch="harness sharing mps --replicas N", daemon=True, most_processes=48, plugin="mps", label="mps", gke="mps"
    ),
    Sharing.MIG: Traits(switch="harness sharing exclusive --mig PROFILES", instances=True),
    Sharing.AS_FOUND: Traits(switch="", needs_gpu=False),
}
ANYWHERE = next(mode for mode in Sharing if not mode.traits.needs_gpu)
WHOLE = next(mode for mode in Sharing if mode.traits.own_gpu)
DIVIDED = next(mode for mode in Sharing if mode.traits.instances)
"""The modes of a machine that may have no GPU, and of GPUs that nobody shares: whole ones, and instances."""
FOUND = next(mode for mode in Sharing if not mode.traits.switch)
"""Of what the harness does not start."""


class MpsSpec(StrictModel):
    """What MPS allows each replica."""

    active_thread_percentage: float | None = Field(
        default=None,
        gt=0,
        le=100,
        description="Share of the GPU's multiprocessors each replica may use, percent; null means all.",
    )
    equal_share: bool = Field(
        default=False, description="Give each replica 100 % divided by their number, so that the shares do not overlap."
    )
    pinned_memory_gb: float | None = Field(
        default=None, gt=0, description="GPU memory each replica may allocate, GB; null means no limit."
    )

    @model_validator(mode="after")
    def _one_share(self) -> MpsSpec:
        if self.equal_share and self.active_thread_percentage is not None:
            raise ValueError("`equal_share` and `active_thread_percentage` both set the share: keep one of them.")
        return self

    def in_words(self) -> str:
        """The limits of a replica, e.g. ``an equal share of the multiprocessors, 10 GB``; "no limit" without any."""
        share = self.active_thread_percentage
        told = [
            "an equal share of the multiprocessors" if self.equal_share else "",
            f"{share:g} % of the multiprocessors" if share is not None else "",
            f"{self.pinned_memory_gb:g} GB of GPU memory" if self.pinned_memory_gb is not None else "",
        ]
        return ", ".join(each for each in told if each) or "no limit"

    def percentage(self, replicas: int) -> float | None:
        """Percent of the multiprocessors for one of ``replicas``; None: all of them."""
        return 100.0 / replicas if self.equal_share else self.active_thread_percentage
