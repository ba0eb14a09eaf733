"""How replicas share GPUs."""

from __future__ import annotations

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
