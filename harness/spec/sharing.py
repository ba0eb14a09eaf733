"""How replicas share GPUs."""

from __future__ import annotations

import functools
import itertools
import re
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from harness.spec.model import KUBERNETES, Apart, Lacking, OneOrSeveral, Positive, StrictModel


class Sharing(StrEnum):
    """How replicas share one GPU."""

    EXCLUSIVE = "exclusive"
    """Each replica has a GPU of its own."""
    TIME_SLICING = "time-slicing"
    """The driver gives the GPU to one process after another."""
    MPS = "mps"
    """NVIDIA's Multi-Process Service runs the kernels of all processes side by side."""
    GREEN_CONTEXTS = "green-contexts"
    """Each replica has multiprocessors of its own, as a CUDA green context under MPS."""
    MIG = "mig"
    """Each replica has a hardware partition of its own, one that exists already."""
    AS_FOUND = "as-found"
    """Servers that ran already: how they share a GPU is left alone, and nothing is said of it."""


Modes = Annotated[
    list[Sharing],
    Apart,
    Lacking(
        KUBERNETES,
        "neither NVIDIA's device plugin nor its DRA driver gives a pod multiprocessors of its own without dividing the GPU",
        "Say mps, or measure it with `backend: local`.",
        value=Sharing.GREEN_CONTEXTS,
        label="with green-contexts",
    ),
]
"""Of a campaign, each once."""


ON_CPU = "CPU"
"""What tables and sentences call the mode of replicas that share no GPU."""


def mode_in_words(sharing: str, mps_limits: str, time_slice: str = "") -> str:
    """A sharing mode with what MPS allows each replica, or how long a turn is, e.g. ``mps (1/N)``, ``time-slicing (short)``."""
    setting = mps_limits or time_slice
    return f"{sharing} ({setting})" if setting else sharing


SM_GROUP = "REPLICA_SM_GROUP"
"""Variable of a replica under green contexts: which group of its GPU's multiprocessors it takes, of how many, e.g. ``0/3``."""
ALL = "all"
_OF_REPLICAS = re.compile(r"(?P<times>[0-9]+(\.[0-9]+)?) ?/ ?N")


def _share(given: float | str) -> float | str:
    """As it is written everywhere: ``all``, ``2/N``, or a percentage below 100."""
    if isinstance(given, str):
        matched = _OF_REPLICAS.fullmatch(given)
        if given != ALL and not (matched and float(matched["times"]) > 0):
            raise ValueError("a share is `all`, a number of percent, or a part of the N replicas, e.g. 1/N or 2/N.")
        return f"{float(matched['times']):g}/N" if matched else given
    if not 0 < given <= 100:
        raise ValueError("a share in percent is above 0 and at most 100.")
    return ALL if given == 100 else given


Share = Annotated[float | str, Field(union_mode="left_to_right"), AfterValidator(_share)]
"""Of a GPU's multiprocessors, for each replica."""


class _Limits(StrictModel):
    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, given: Any) -> Any:
        """The share had two fields once, of which one was set."""
        if not isinstance(given, dict) or not given.keys() & {"equal_share", "active_thread_percentage"}:
            return given
        rest = dict(given)
        equal, percentage = rest.pop("equal_share", False), rest.pop("active_thread_percentage", None)
        shares = [share for share in ("1/N" if equal else None, percentage, rest.get("share")) if share is not None]
        if len(shares) > 1:
            raise ValueError("`equal_share`, `active_thread_percentage` and `share` set the same: keep `share`.")
        return {**rest, "share": shares[0]} if shares else rest


class MpsLimits(_Limits):
    """What MPS allows each replica of one experiment."""

    share: Share = ALL
    pinned_memory_gb: Positive | None = None
    static_partitions: bool = False
    swept: bool = Field(False, description="The campaign has several, so that ids name them.")

    def _said(self, of_share: str = "", of_memory: str = "") -> str:
        """The limits that there are, each with what is said of it."""
        share = self.share if isinstance(self.share, str) else f"{self.share:g}%"
        memory = "" if self.pinned_memory_gb is None else f"{self.pinned_memory_gb:g} GB{of_memory}"
        return ", ".join(filter(None, ("" if share == ALL else f"{share}{of_share}", memory)))

    @property
    def label(self) -> str:
        """In a few words, e.g. ``2/N, 10 GB`` or ``25%``; empty without any limit."""
        return self._said()

    @property
    def identity(self) -> str:
        """The label as a part of an experiment's id, e.g. ``2-over-n-10gb``; empty where the campaign has one for all."""
        words = {"%": "pct", "/N": "-over-n", " GB": "gb", ", ": "-"}
        return functools.reduce(lambda text, word: text.replace(*word), words.items(), self.label) if self.swept else ""

    def in_words(self) -> str:
        """E.g. ``1/N of the multiprocessors, 10 GB of GPU memory``; "no limit" without any."""
        return self._said(" of the multiprocessors", " of GPU memory") or "no limit"

    def among(self, replicas: int) -> MpsLimits:
        """The same with its share as a percentage, for whoever does not see all of ``replicas``."""
        return self.model_copy(update={"share": self.percentage(replicas) or ALL})

    @property
    def of_replicas(self) -> bool:
        """Whether the share depends on how many replicas are on a GPU."""
        return isinstance(self.share, str) and self.share != ALL

    def percentage(self, replicas: int) -> float | None:
        """Percent of the multiprocessors for each of ``replicas`` on one GPU; None: all of them."""
        if self.share == ALL:
            return None
        if not isinstance(self.share, str):
            return self.share
        return min(100.0, 100.0 * float(self.share.removesuffix("/N")) / replicas)


class MpsSpec(_Limits):
    """Limits of each replica under MPS; every combination of several values is measured."""

    share: Annotated[list[Share], OneOrSeveral, Apart] = Field(
        [ALL],
        min_length=1,
        description="Share of the SMs that each replica may use, one or several: all, a percentage, or a part of the N "
        "replicas on a GPU, e.g. [all, 2/N, 1/N] or [100, 25, 12.5].",
    )
    pinned_memory_gb: Annotated[list[Positive | None], OneOrSeveral, Apart] = Field(
        [None],
        min_length=1,
        description="GPU memory that each replica may allocate, one or several; null means no limit.",
    )
    static_partitions: Annotated[
        bool,
        Lacking(KUBERNETES, "the device plugin starts its MPS daemon without them", "Use `mps: {share: 1/N}`."),
    ] = Field(
        False,
        description="SMs that no other replica uses (NVIDIA's static SM partitioning). Refused: not tested with a driver that "
        "has it.",
    )

    def limits(self) -> list[MpsLimits]:
        """Every combination, in the order of the shares."""
        pairs = list(itertools.product(self.share, self.pinned_memory_gb))
        return [
            MpsLimits(
                share=share,
                pinned_memory_gb=memory,
                static_partitions=self.static_partitions,
                swept=len(pairs) > 1,
            )
            for share, memory in pairs
        ]


Interval = Literal["default", "short", "medium", "long"]
"""How long a process has the GPU before the next one, in the words of NVIDIA's driver."""


class TimeSlice(StrictModel):
    """How long the turns of one experiment are."""

    interval: Interval
    swept: bool = Field(False, description="The campaign has several, so that ids name them.")


Setting = tuple[MpsLimits | None, TimeSlice | None]
Mode = tuple[Sharing, *Setting]


def settings_under(sharing: Sharing, mps: MpsSpec | None, intervals: list[Interval]) -> list[Setting]:
    """What MPS allows each replica, or how long a turn is, one after another; other modes have one cell, without."""
    if mps is not None and sharing is Sharing.MPS:
        return [(limits, None) for limits in mps.limits()]
    if intervals and sharing is Sharing.TIME_SLICING:
        return [(None, TimeSlice(interval=interval, swept=len(intervals) > 1)) for interval in intervals]
    return [(None, None)]
