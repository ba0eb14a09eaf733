"""What a sharing mode is: what it means for replicas, how it is checked, set up, observed and put back.

A mode knows no backend: it is handed GPUs, a way to start processes, or the API of a cluster.
"""

from __future__ import annotations

import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from harness.errors import Issue, IssueLevel, counted
from harness.metrics.nvml import GpuFacts
from harness.spec import Device, ExperimentSpec, KubernetesSpec, MpsLimits, Sharing

if TYPE_CHECKING:
    from harness.sharing.switch import Switch

Object = Mapping[str, Any]
Notify = Callable[[str], None]
"""Takes a sentence for whoever watches the campaign."""


class Attribution(StrEnum):
    """How what a shared GPU did is divided among its replicas."""

    REQUESTS = "by requests"
    """As the requests that each served; for replicas of one workload, whose requests are the same work."""


def unheard(_sentence: str) -> None:
    """Nobody watches."""


class Processes(Protocol):
    """Starts processes that do not outlive the harness, and ends them with all below them."""

    def start(self, command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Raises OSError."""
        ...

    def end(self, process: subprocess.Popen[bytes]) -> int:
        """Its exit code."""
        ...


@dataclass(frozen=True, slots=True)
class ThisMachine:
    """Where a mode is set up on this machine."""

    name: str
    """Of the campaign, for the names of temporary files."""
    processes: Processes
    marks: Mapping[str, str]
    """Environment by which a later harness recognises the campaign's processes."""
    logs: Path
    """Folder for what is started; must not exist."""


class SharingSetup:
    """What a mode has set up on this machine for one experiment: by itself nothing."""

    seen_on_gpu = False
    """``require_clients`` has shown that every replica is on a GPU."""

    def environment(self, position: int) -> dict[str, str]:  # noqa: ARG002 - see MpsSetup
        """What the replica at ``position`` needs, neighbours counted after the measured ones."""
        return {}

    def require_clients(self, replicas: Sequence[tuple[str, Collection[int]]]) -> None:
        """Raise BackendError when a replica, told by its name and process ids, does not run under the mode."""

    def put_back(self) -> Sequence[str]:
        """End what was started; a sentence for what went wrong. Idempotent."""
        return ()


class SharingMode:
    """One way to share GPUs; what differs from mode to mode is asked of it."""

    sharing: ClassVar[Sharing]
    meaning: ClassVar[str]
    """What it does to replicas, in a few words for somebody who has never heard of it."""
    caution: ClassVar[str] = ""
    """A sentence that no figure of a comparison shows."""
    switch_command: ClassVar[str] = ""
    """Puts a cluster's GPUs under it; empty: nothing does, it is what was found."""
    needs_gpu: ClassVar[bool] = True
    own_gpu: ClassVar[bool] = False
    """Each replica has a GPU of its own."""
    own_instance: ClassVar[bool] = False
    """Each replica has an instance of a divided GPU."""
    takes_turns: ClassVar[bool] = False
    """Processes have the GPU one after another; a slice does not limit what each gets."""
    concurrent: ClassVar[bool] = False
    """Processes are on the GPU at the same time, as clients of a daemon that may limit them."""
    own_multiprocessors: ClassVar[bool] = False
    """Each replica has multiprocessors to itself, as many as the driver gives: no setting says how many."""
    attribution: ClassVar[Attribution | None] = None
    """How a GPU's energy and SM activity are divided among its replicas: only ways that were within 10% of planted loads."""
    unattributed: ClassVar[str] = "no way to divide them was measured to be within 10% under this sharing mode"
    """Why they are not."""
    most_processes: ClassVar[int | None] = None
    """On one GPU, by NVIDIA's documentation."""
    plugin_section: ClassVar[str] = ""
    """Of the device plugin's configuration."""
    strategy_label: ClassVar[str] = ""
    """Value of GPU feature discovery's label of a node."""
    gke_strategy: ClassVar[str] = ""
    """Value of the label of Google's clusters."""
    gke_refusal: ClassVar[str] = ""
    """Why replicas cannot use it on Google's clusters."""
    compute_mode: ClassVar[str] = "Default"
    """Of a node's GPUs while the device plugin lends them so."""

    @property
    def each_its_own(self) -> bool:
        """No replica shares its GPU, or its instance of one, with another."""
        return self.own_gpu or self.own_instance

    @property
    def shares_gpu(self) -> bool:
        """Several processes compute on one GPU."""
        return self.takes_turns or self.concurrent

    @property
    def takes_limits(self) -> bool:
        """What each replica may use of a GPU is the campaign's to say; without that it may use all of it."""
        return self.concurrent and not self.own_multiprocessors

    def check(self, experiment: ExperimentSpec, gpus: Sequence[GpuFacts], why_none: str) -> Iterator[Issue]:
        """What keeps replicas of an experiment from sharing this machine's GPUs so; nothing is changed."""
        if not gpus:
            if self.needs_gpu:
                yield refusal(
                    f"sharing {self.sharing.value} needs a GPU, and there is none here ({why_none}).",
                    "Leave `sharing` out, and replicas run on the CPU; where there is an NVIDIA GPU, install its driver until nvidia-smi lists it.",
                )
            return
        if experiment.workload.device is Device.CPU:
            if self.needs_gpu:
                message = (
                    f"{experiment.workload.name} runs on the CPU, where sharing {self.sharing.value} means nothing."
                )
                yield refusal(message, "Set device: auto or cuda.")
            return
        if len(gpus) < experiment.gpus:
            message = f"the campaign uses {counted(experiment.gpus, 'GPU')}, and the machine has {len(gpus)}."
            yield refusal(message, "Lower `gpus`.")
        used = gpus[: experiment.gpus]
        if "prohibited" in {gpu.compute_mode for gpu in used}:
            yield refusal("the GPU's compute mode is prohibited.", "Set it back: nvidia-smi -c DEFAULT")
        pids = sorted({pid for gpu in used for pid in gpu.processes})
        if pids:
            message = f"other processes compute on the GPU: {', '.join(map(str, pids))}."
            severity = IssueLevel.ERROR if self.own_gpu else IssueLevel.WARNING
            yield Issue(severity, "sharing", message, "End them, for numbers that mean what they say.")
        yield from self.check_gpus(experiment, gpus)

    def check_gpus(self, experiment: ExperimentSpec, gpus: Sequence[GpuFacts]) -> Iterator[Issue]:
        """What speaks against these GPUs, of which the experiment uses the first."""
        if any(gpu.mig for gpu in gpus[: experiment.gpus]):
            message = f"the GPU is divided (MIG is on), and sharing {self.sharing.value} would use one instance of it."
            yield refusal(message, "Turn MIG off (nvidia-smi -mig 0), or use sharing mig.")

    def set_up(
        self,
        host: ThisMachine,  # noqa: ARG002 - see Mps
        *,
        gpus: Sequence[str],  # noqa: ARG002
        limits: MpsLimits | None,  # noqa: ARG002
        replicas_per_gpu: int,  # noqa: ARG002
    ) -> SharingSetup:
        """Start what the mode needs on this machine; nothing is left running where that fails. Raises BackendError.

        ``gpus``: UUIDs of those that replicas take in turn; none: every one that is seen.
        """
        return SharingSetup()

    def running(self, gpus: Sequence[str]) -> list[int]:  # noqa: ARG002 - see Mps
        """Process ids of what somebody else has set up for these GPUs, by UUID, on this machine."""
        return []

    def sweep(self, name: str) -> None:
        """Remove what a killed harness left of the campaign of this name; its processes are ended already."""

    def check_slices(
        self,
        experiment: ExperimentSpec,  # noqa: ARG002 - see Mps
        nodes: Sequence[tuple[Object, int | None]],  # noqa: ARG002
    ) -> Iterator[Issue]:
        """Whether the slices of each node's GPUs give a replica what it asks for; None: the node does not show them."""
        yield from ()

    def pod_environment(self, experiment: ExperimentSpec) -> dict[str, str]:  # noqa: ARG002 - see Mps
        """What a pod's container needs of its own to be within the limits."""
        return {}

    def claim_parameters(self, experiment: ExperimentSpec) -> dict[str, Any] | None:  # noqa: ARG002 - see Mps
        """What NVIDIA's DRA driver is told of a GPU; None: a plain claim is the mode already."""
        return None

    def contradiction(self, status: Object) -> str:
        """What a replica says of itself that is not so under this mode; empty: nothing."""
        under = status.get("mps_pipe_directory")  # an image of before does not tell
        if under is not None and bool(under) is not self.concurrent:
            return f"runs {'under' if under else 'without'} MPS"
        if self.concurrent and status.get("mps_pipe_closed"):
            return f"does not reach the MPS daemon: {status['mps_pipe_closed']}"
        device = str(status.get("device_name") or "")
        on_instance = " MIG " in device
        if status.get("device") == "cuda" and device and (self.own_gpu if on_instance else self.own_instance):
            return f"computes on {device}, {'one instance of a GPU' if on_instance else 'a whole GPU'}"
        return ""


class ClusterApi(Protocol):
    """What sharing needs of a cluster's API server; every call raises ClusterError."""

    def get(self, path: str) -> dict[str, Any]:
        """One object."""
        ...

    def find(self, path: str) -> dict[str, Any] | None:
        """The same; None where there is none."""
        ...

    def list(self, path: str, *, fields: str = "") -> list[dict[str, Any]]:
        """The objects of a collection."""
        ...

    def patch(self, path: str, body: Mapping[str, Any]) -> Object:
        """Merge ``body`` into an object."""
        ...


class PodSharing(NamedTuple):
    """How a pod is seen to have its GPU: the mode in words, slices of each GPU of its node, its claim; empty: not shown.

    ``denied``: what says otherwise of its node.
    """

    mode: str = ""
    slices: int | None = None
    claim: str = ""
    denied: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """For the manifest."""
        some = {"claim": self.claim, "sharing_denied": list(self.denied)}
        return {"sharing": self.mode, "gpu_slices": self.slices, **{key: value for key, value in some.items() if value}}


@dataclass(slots=True)
class ClusterSharing(ABC):
    """What brings the GPUs of a cluster under the mode of an experiment; ``campaign_id``: whose own pods are in nobody's way."""

    spec: KubernetesSpec
    campaign_id: str = ""

    fixed_slices: ClassVar[bool] = False
    """What the nodes lend has to be enough as it is."""
    log_advice: ClassVar[str] = ""
    """Where to read why a replica is under another mode."""

    @abstractmethod
    def check(self, api: ClusterApi, nodes: Sequence[Object], experiments: Sequence[ExperimentSpec]) -> Iterable[Issue]:
        """What keeps the experiments from sharing the GPUs of usable nodes so. Raises ClusterError."""

    @abstractmethod
    def observe(
        self,
        api: ClusterApi,
        experiment: ExperimentSpec,
        nodes: Sequence[Object],
        pods: Sequence[Object],
        statuses: Sequence[Object],
    ) -> list[PodSharing]:
        """How each pod, by its node, its claim or its own status, is seen to share its GPU.

        Raises BackendError where it shows another mode than the experiment's; ``nodes`` are those that may be read.
        """

    def switch(
        self,
        api: ClusterApi,  # noqa: ARG002 - by itself nothing: the nodes stay as they are
        experiment: ExperimentSpec,  # noqa: ARG002
        abort: threading.Event,  # noqa: ARG002
        notice: Notify = unheard,  # noqa: ARG002
    ) -> Switch | None:
        """Bring the nodes under the mode; ``notice`` is told what is waited for. None: they were. Raises BackendError."""
        return None

    def restore(self, api: ClusterApi) -> list[str]:  # noqa: ARG002 - see SwitchedPlugin
        """Put back what was changed, also by a killed harness; a sentence for each node."""
        return []

    def collections(self) -> dict[str, str]:
        """Paths of the kinds that are made for each attempt, by kind."""
        return {}

    def claims(self, experiment: ExperimentSpec, name: str, labels: Mapping[str, str]) -> list[dict[str, Any]]:  # noqa: ARG002 - see Dra
        """What the pods of an attempt of this name have their GPUs by, in the order of the GPUs; none: by the device plugin."""
        return []


def refusal(message: str, advice: str) -> Issue:
    """What keeps an experiment from running."""
    return Issue(IssueLevel.ERROR, "sharing", message, advice)


def gpu_config(strategy: str, **settings: Any) -> dict[str, Any]:
    """The DRA driver's configuration of a shared GPU."""
    sharing = {"strategy": strategy, **{name: value for name, value in settings.items() if value}}
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}
