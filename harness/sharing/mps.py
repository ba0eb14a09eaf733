"""MPS: the mode, and the daemon of our own on this machine.

A process whose pipe directory has no MPS daemon runs beside MPS without a word, so the daemon's own list of clients is asked.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from harness.errors import BackendError, Issue, IssueLevel, ReasonCode, counted
from harness.metrics.nvml import VISIBLE, GpuFacts
from harness.sharing.mode import Attribution, Object, SharingMode, SharingSetup, ThisMachine, gpu_config, refusal
from harness.sharing.node import GPU_COUNT_LABEL, labels, name
from harness.spec import ExperimentSpec, MpsLimits, Sharing

CONTROL = "nvidia-cuda-mps-control"
START_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 10.0
QUIT_TIMEOUT_S = 2.0
POLL_S = 0.05
STATIC_PARTITIONS_SINCE = "590.44.01"
MEMORY_LABEL = "nvidia.com/gpu.memory"
"""GPU feature discovery's: MiB of one GPU."""
GPUS_OF_THE_DRIVER = Path("/proc/driver/nvidia/gpus")
DEVICE_NODE = "/dev/nvidia{minor}"
_PREFIX = "harness-mps-"
_ROUNDING = 1.005


class Mps(SharingMode):
    """The kernels of all processes run side by side, as clients of one server."""

    sharing = Sharing.MPS
    meaning = "replicas use a GPU at the same time"
    attribution = Attribution.REQUESTS
    caution = "Under mps a replica that crashes can end all others on its GPU."
    switch_command = "harness node sharing mps --replicas N"
    concurrent = True
    most_processes = 48
    plugin_section = strategy_label = gke_strategy = "mps"
    gke_refusal = "GKE's MPS, for pods that share the node's IPC; replicas, which keep to `restricted`, do not"
    compute_mode = "Exclusive_Process"

    def check_gpus(self, experiment: ExperimentSpec, gpus: Sequence[GpuFacts]) -> Iterator[Issue]:
        """Whether a daemon can be started for these GPUs, and whether they have what the limits promise."""
        used = gpus[: experiment.gpus]
        if shutil.which(CONTROL) is None:
            yield refusal(f"there is no {CONTROL} on this machine.", "Install the driver's compute utilities.")
        else:
            daemons = self.running([gpu.uuid for gpu in used])
            if daemons:
                message = f"an MPS daemon runs already (process {daemons[0]}); its clients would share the GPU with ours unseen."
                yield refusal(message, "End it: echo quit | nvidia-cuda-mps-control")
            if experiment.mps is not None:
                yield from _check_limits(experiment.mps, experiment.replicas_per_gpu, used)
            if experiment.mps is not None and experiment.mps.static_partitions:
                yield _no_static_partitions(used[0].driver)
        yield from super().check_gpus(experiment, gpus)

    def set_up(
        self, host: ThisMachine, *, gpus: Sequence[str], limits: MpsLimits | None, replicas_per_gpu: int
    ) -> SharingSetup:
        """A daemon for each GPU, so that what breaks on one stays there."""
        return MpsSetup(host, gpus, limits_environment(limits, replicas_per_gpu))

    def running(self, gpus: Sequence[str]) -> list[int]:
        """Process ids of the daemons and servers that may serve one of these GPUs."""
        return [
            process.pid
            for process in psutil.process_iter(["name"])
            if str(process.info["name"]).startswith("nvidia-cuda-mps")  # as much of the name as the kernel keeps
            and _may_serve(process, gpus)
        ]

    def sweep(self, name: str) -> None:
        """Remove the pipe directories."""
        for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}{name}-*"):
            shutil.rmtree(folder, ignore_errors=True)

    def check_slices(self, experiment: ExperimentSpec, nodes: Sequence[tuple[Object, int | None]]) -> Iterator[Issue]:
        """Whether the limits are within the part of a GPU that the device plugin gives each slice."""
        if experiment.mps is not None:
            yield from _check_number(experiment, experiment.mps, [node for node, _ in nodes])
            for node, slices in nodes:
                yield from _check_node(experiment, experiment.mps, node, slices)

    def pod_environment(self, experiment: ExperimentSpec) -> dict[str, str]:
        """What lowers the part of a GPU that a slice has."""
        return limits_environment(experiment.mps, experiment.replicas_per_gpu)

    def claim_parameters(self, experiment: ExperimentSpec) -> dict[str, Any]:
        """MPS, with the limits as the driver writes them: whole percents; the pod has the exact share."""
        limits = experiment.mps or MpsLimits()
        percentage, memory_gb = limits.percentage(experiment.replicas_per_gpu), limits.pinned_memory_gb
        settings: dict[str, Any] = {}
        if percentage is not None:
            settings["defaultActiveThreadPercentage"] = math.ceil(percentage)
        if memory_gb is not None:
            settings["defaultPinnedDeviceMemoryLimit"] = f"{math.ceil(memory_gb * 1e9 / 2**20)}Mi"
        return gpu_config("MPS", mpsConfig=settings)


class MpsSetup(SharingSetup):
    """One daemon for each GPU, which replicas take in turn."""

    seen_on_gpu = True

    def __init__(self, host: ThisMachine, gpus: Sequence[str], limits: Mapping[str, str]) -> None:
        self._limits = limits
        self._daemons: list[MpsDaemon] = []
        try:
            for index, served in enumerate([[gpu] for gpu in gpus] or [[]]):
                logs = host.logs / f"gpu{index}" if len(gpus) > 1 else host.logs
                self._daemons.append(MpsDaemon(host, logs, served))
        except BaseException:
            self.put_back()
            raise

    def environment(self, position: int) -> dict[str, str]:
        """What makes a replica a client of its GPU's daemon, within the limits."""
        return {**self._daemons[position % len(self._daemons)].environment, **self._limits}

    def require_clients(self, replicas: Sequence[tuple[str, Collection[int]]]) -> None:
        """Raise BackendError when a replica has no process that runs under its GPU's daemon."""
        for index, daemon in enumerate(self._daemons):
            daemon.require_clients(replicas[index :: len(self._daemons)])

    def put_back(self) -> Sequence[str]:
        """End the daemons."""
        problems = [problem for daemon in self._daemons for problem in daemon.stop()]
        self._daemons = []
        return problems


class MpsDaemon:
    """A running control daemon; its server starts with the first client. Raises BackendError when it does not start.

    ``gpus``: UUIDs of those that it serves, none: all; a number would mean another GPU to the clients of one that serves some.
    """

    def __init__(self, host: ThisMachine, logs: Path, gpus: Sequence[str]) -> None:
        self._processes = host.processes
        self._logs = logs
        self._guard: subprocess.Popen[bytes] | None = None
        logs.mkdir(parents=True)
        # Below the temporary folder: the path of a socket may hold 107 characters, results may lie deep.
        self._pipes = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{host.name}-"))
        self.environment = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._pipes),
            "CUDA_MPS_LOG_DIRECTORY": str(logs),
            **host.marks,
        }
        own = {**self.environment, VISIBLE: ",".join(gpus)} if gpus else self.environment
        try:
            self._guard = self._processes.start([CONTROL, "-f"], log=logs / "daemon.log", environment=own)
            self._wait_until_it_answers(self._guard)
        except BaseException:
            self.stop()
            raise

    def require_clients(self, replicas: Sequence[tuple[str, Collection[int]]]) -> None:
        """Raise BackendError when a replica has no process that runs under this daemon."""
        clients = {
            client for server in self._ask("get_server_list") for client in self._ask(f"get_client_list {server}")
        }
        beside = [name for name, pids in replicas if clients.isdisjoint(pids)]
        if beside:
            raise BackendError(
                f"{beside[0]} runs beside MPS and not under it: the daemon's clients are {sorted(clients)}.",
                advice=f"See {self._logs}; a replica on the CPU can be no client.",
            )

    def stop(self) -> Sequence[str]:
        """End daemon and server; a sentence when the daemon had ended by itself. Idempotent."""
        guard, self._guard = self._guard, None
        problems = []
        if guard is not None:
            if guard.poll() is not None:
                problems.append(f"the MPS daemon ended by itself with {guard.returncode}; see {self._logs.name}/.")
            else:
                with contextlib.suppress(BackendError):  # whoever does not listen is ended by the guard
                    self._control(f"quit -t {QUIT_TIMEOUT_S:g}")
                self._processes.end(guard)  # it ends the server, too
        shutil.rmtree(self._pipes, ignore_errors=True)
        return problems

    def _wait_until_it_answers(self, guard: subprocess.Popen[bytes]) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            done = self._control("get_server_list")
            if done.returncode == 0:
                return
            ended = guard.poll()
            if ended is not None or time.monotonic() > deadline_s:
                said = " ".join((self._logs / "daemon.log").read_text(encoding="utf-8", errors="replace").split())
                how = "does not answer" if ended is None else f"ended with {ended}"
                raise BackendError(
                    f"the MPS daemon {how}: {said or done.stderr.strip() or 'it printed nothing'}.",
                    advice=f"See {self._logs}/control.log; MPS needs a GPU in compute mode default or exclusive-process.",
                )
            time.sleep(POLL_S)

    def _ask(self, question: str) -> list[int]:
        done = self._control(question)
        if done.returncode != 0:
            raise BackendError(
                f"the MPS daemon does not answer {question!r}: {(done.stderr or done.stdout).strip()}.",
                advice=f"See {self._logs}/control.log.",
            )
        return [int(word) for word in done.stdout.split()]

    def _control(self, command: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [CONTROL],
                input=f"{command}\n",
                env={**os.environ, **self.environment},
                capture_output=True,
                text=True,
                timeout=ANSWER_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BackendError(
                f"{CONTROL} cannot be asked: {error}.", advice="Install the NVIDIA driver's tools."
            ) from error


def limits_environment(limits: MpsLimits | None, replicas: int) -> dict[str, str]:
    """The variables by which a client of MPS limits itself, as one of ``replicas`` on a GPU."""
    environment = {}
    percentage = limits.percentage(replicas) if limits else None
    if percentage is not None:
        environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{percentage:g}"
    if limits and limits.pinned_memory_gb is not None:
        environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={round(limits.pinned_memory_gb * 1000)}M"
    return environment


def _may_serve(process: psutil.Process, gpus: Sequence[str]) -> bool:
    try:
        environment = process.environ()
        if not environment:  # it may be about to end: then its memory is gone, and it serves nobody
            time.sleep(POLL_S)
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                return False
            environment = process.environ()
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True
    served = environment.get(VISIBLE, "")
    names = [name.strip() for name in served.split(",")]
    by_number = not all(name.startswith("GPU-") for name in names)
    return any(_can_open(process, uuid) for uuid in gpus if by_number or any(uuid.startswith(name) for name in names))


def _can_open(process: psutil.Process, uuid: str) -> bool:
    """Whether the process sees the GPU's device node: a container has those of its own GPUs alone."""
    minor = _minor(uuid)
    if minor is None:
        return True
    try:
        return Path(f"/proc/{process.pid}/root{DEVICE_NODE.format(minor=minor)}").exists()
    except OSError:
        return True


def _minor(uuid: str) -> str | None:
    """The number in the name of a GPU's device node, as the driver tells it; None: it does not."""
    for path in GPUS_OF_THE_DRIVER.glob("*/information"):
        with contextlib.suppress(OSError):
            facts = dict(line.partition(":")[::2] for line in path.read_text(errors="replace").splitlines())
            if facts.get("GPU UUID", "").strip() == uuid:
                return facts.get("Device Minor", "").strip() or None
    return None


def _check_limits(limits: MpsLimits, replicas: int, gpus: Sequence[GpuFacts]) -> Iterator[Issue]:
    percentage = limits.percentage(replicas)
    if percentage is not None and percentage * replicas > 100.5:
        total = f"{percentage * replicas:g}%"
        message = f"{replicas} replicas of {percentage:g}% of the multiprocessors add up to {total}: they overlap."
        advice = "Give each 1/N (`mps: {share: 1/N}`) for parts that add up to one GPU."
        yield Issue(IssueLevel.WARNING, "sharing", message, advice)
    smallest_gb = min((gpu.total_bytes for gpu in gpus if gpu.total_bytes is not None), default=math.inf) / 1e9
    if limits.pinned_memory_gb is not None and limits.pinned_memory_gb * replicas > smallest_gb:
        wanted = f"{counted(replicas, 'replica')} of {limits.pinned_memory_gb:g} GB"
        message = f"{wanted} cannot fit into {smallest_gb:.1f} GB of GPU memory."
        advice = "Lower mps.pinned_memory_gb, or use fewer replicas."
        yield Issue(IssueLevel.ERROR, "sharing", message, advice, ReasonCode.OUT_OF_MEMORY)


def _no_static_partitions(driver: str) -> Issue:
    major = driver.partition(".")[0]
    why = (
        f"need driver {STATIC_PARTITIONS_SINCE} or newer, which has CUDA 13.1"
        if major.isdigit() and int(major) < int(STATIC_PARTITIONS_SINCE.partition(".")[0])
        else f"are not measured: no driver that has them ({STATIC_PARTITIONS_SINCE} or newer) was there to try them"
    )
    message = f"static partitions of MPS {why}; this machine has {driver or 'a driver that does not say its version'}."
    return refusal(
        message, "Use sharing green-contexts for multiprocessors of each replica's own, or `mps: {share: 1/N}`."
    )


def _check_number(experiment: ExperimentSpec, limits: MpsLimits, nodes: Sequence[Object]) -> Iterator[Issue]:
    """Whether a part of N replicas is reckoned with as many GPUs as the device plugin will spread them over."""
    counts = [str(labels(node).get(GPU_COUNT_LABEL, "")) for node in nodes]
    gpus, replicas = sum(int(count) for count in counts if count.isdigit()), experiment.cell.processes
    if limits.of_replicas and all(count.isdigit() for count in counts) and min(gpus, replicas) > experiment.gpus:
        message = (
            f"`mps.share: {limits.share}` is reckoned with {counted(experiment.replicas_per_gpu, 'replica')} on a GPU (`gpus: {experiment.gpus}`), "
            f"and the device plugin spreads {replicas} over {gpus} GPUs."
        )
        advice = f"Say `gpus: {gpus}`, or keep the replicas to fewer GPUs (`kubernetes.node_selector`)."
        yield Issue(IssueLevel.WARNING, "sharing", message, advice)


def _check_node(experiment: ExperimentSpec, limits: MpsLimits, node: Object, slices: int | None) -> Iterator[Issue]:
    if not slices:
        message = f"node {name(node)} does not show how many slices a GPU has: that each has {limits.in_words()} is taken on trust."
        yield Issue(IssueLevel.WARNING, "sharing", message)
        return
    asked_percent, most = limits.percentage(experiment.replicas_per_gpu) or 100.0, 100 // slices
    lends = f"the device plugin gives each of {slices} slices of node {name(node)}"
    if asked_percent > most:
        verb = "is" if experiment.replicas == 1 else "are"
        yield refusal(
            f"{counted(experiment.replicas, 'replica')} of {experiment.workload.name} {verb} to have {asked_percent:g}% of a GPU's "
            f"multiprocessors each, and {lends} {most}%: it rounds down.",
            f"A client of MPS can only lower its share: request less (`mps.share: {most}`), configure fewer slices, or remove `mps` to use "
            "the plugin's part.",
        )
    memory = str(labels(node).get(MEMORY_LABEL, ""))
    part_gb = int(memory) * 2**20 / 1e9 / slices if memory.isdigit() else None
    if limits.pinned_memory_gb is not None and part_gb is not None and limits.pinned_memory_gb > part_gb * _ROUNDING:
        message = (
            f"`mps.pinned_memory_gb` of {limits.pinned_memory_gb:g} is more than the {part_gb:.3g} GB that {lends}."
        )
        yield refusal(message, "A client of MPS can only lower its limit: request less, or configure fewer slices.")
