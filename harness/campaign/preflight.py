"""What is looked at before an hour is spent: disk, results folder, backend; and by the doctor: what can be measured here, and why not."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import ValidationError

from harness.backends.base import IMAGE, Backend, make_backend
from harness.backends.devices import measured_on
from harness.campaign.folder import CampaignFolder, create
from harness.campaign.plan import at_most_gb, certain, check_limits, estimate, expand, most
from harness.campaign.source import CampaignSource, read_source
from harness.cgroup import Cgroup
from harness.clock import SystemClock
from harness.errors import AwayError, ImageError, Issue, IssueLevel, PreflightError, ReasonCode, UsageError
from harness.extras import EXTRA_OF, absent, advice_on
from harness.host import WAIT_S, DeviceLocks
from harness.metrics.nvml import gpu_facts
from harness.spec import CampaignSpec, ExperimentSpec, KubernetesSpec
from harness.spec.model import LOCAL

DISK_RESERVE_BYTES = 200_000_000


def check(experiments: Sequence[ExperimentSpec], results: Path, backend: Backend | None) -> list[Issue]:
    """Everything that speaks against running ``experiments`` into ``results``; nothing is started or written. None: their replicas run already."""
    of_backend = backend.check(experiments) if backend else ()
    return [*_check_folder(results), *_check_disk(experiments, results), *of_backend]


def refuse_errors(issues: Sequence[Issue], *, under_way: bool = False) -> None:
    """Raise PreflightError when one of them is an error; names all of them.

    Of a campaign under way it costs one experiment: AwayError where all may come back by themselves, ImageError for an image.
    """
    errors = [issue for issue in issues if issue.severity is IssueLevel.ERROR]
    if not errors:
        return
    message = " ".join(issue.message for issue in errors)
    advice = " ".join(dict.fromkeys(issue.advice for issue in errors if issue.advice))
    if under_way and all(issue.away for issue in errors):
        raise AwayError(message, advice=advice)
    if under_way and any(issue.check == IMAGE for issue in errors):
        raise ImageError(message, advice=advice)
    code = min((issue.code for issue in errors), key=[ReasonCode.OUT_OF_MEMORY, ReasonCode.REFUSED].index)
    raise PreflightError(message, advice=advice, code=code)


def existing_parent(path: Path) -> Path:
    """The nearest folder above ``path`` (or itself) that exists."""
    path = path.absolute()
    return next(parent for parent in [path, *path.parents] if parent.exists())


def _check_folder(results: Path) -> list[Issue]:
    parent = existing_parent(results)
    if not parent.is_dir():
        message = f"the results folder {results} cannot be made: {parent} is a file."
    elif not os.access(parent, os.W_OK | os.X_OK):
        message = f"the results folder {results} cannot be written: no write access to {parent}."
    else:
        return []
    return [Issue(IssueLevel.ERROR, "results", message, "Choose another folder with --results.")]


def _check_disk(experiments: Sequence[ExperimentSpec], results: Path) -> list[Issue]:
    needed = estimate(experiments).disk_bytes + DISK_RESERVE_BYTES
    free = shutil.disk_usage(existing_parent(results)).free
    if free >= needed:
        return []
    # The upper estimate may be far above the truth; only the next experiment's share is refused outright.
    largest = max((estimate([experiment]).disk_bytes for experiment in experiments), default=0) + DISK_RESERVE_BYTES
    severity = IssueLevel.ERROR if free < largest else IssueLevel.WARNING
    message = (
        f"{free / 1e9:.1f} GB are free for {results}: the plan may write up to {at_most_gb(needed - DISK_RESERVE_BYTES)}, "
        f"and {at_most_gb(DISK_RESERVE_BYTES)} have to stay free."
    )
    return [Issue(severity, "disk", message, "Free some space, or choose another disk with --results.")]


def prepare(
    source: CampaignSource, results: Path, *, force: bool, say: Callable[[str], None], wait_s: float = WAIT_S
) -> CampaignFolder:
    """Look at everything that speaks against a campaign, ``say`` it, and make its folder below ``results``; ``force``: despite errors.

    Raises UsageError (larger than it may be), DeviceInUseError (after ``wait_s``: what another harness does on the GPU is no
    fault of the machine), PreflightError (not on this machine) and StorageError.
    """
    check_limits(source.spec, most(source.spec))
    with alone(source.spec, say, wait_s):
        issues = check(certain(source.spec), results, make_backend(source.spec, campaign_id="preflight"))
        for issue in issues:
            if force or issue.severity is not IssueLevel.ERROR:
                say(f"{issue.severity.value}: {issue.message} {issue.advice}".rstrip())
        if not force:
            refuse_errors(issues)
        return create(results, source.spec, text=source.text, source=source.origin)


@contextmanager
def alone(spec: CampaignSpec, say: Callable[[str], None], wait_s: float) -> Iterator[None]:
    """Look at this machine while no other harness measures on the campaign's GPUs. Raises DeviceInUseError."""
    locks = DeviceLocks(measured_on(expand(spec)) if spec.backend == LOCAL else [])
    try:
        locks.take(SystemClock(), threading.Event(), say, wait_s)
        yield
    finally:
        locks.release()


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. ``required``: without it nothing can be run; otherwise only some metrics are absent."""

    name: str
    ok: bool
    required: bool
    found: str
    advice: str = ""


def examine() -> list[Check]:
    """Every check of this machine, in the order a reader wants them. Starts nothing."""
    return [check() for check in (_python, _packages, _cpus, _memory, _gpu, _pressure, _swap, _load)]


def examine_cluster(spec: KubernetesSpec, experiments: Sequence[ExperimentSpec]) -> tuple[list[Check], str]:
    """Every check of a cluster (true of every campaign, and of ``experiments``), and the YAML to apply where access lacks. Changes nothing."""
    from harness.backends.kubernetes import monitoring, preflight, rights
    from harness.backends.kubernetes.backend import KubernetesBackend

    backend = KubernetesBackend(spec, campaign_id="doctor")
    findings = list(backend.check(experiments))
    if any(finding.check == "cluster" for finding in findings):
        return [_of_cluster("API server", ["cluster"], "", findings)], ""
    findings += [*rights.check_looks(backend.api, spec), *preflight.check_pod_security(backend.api, spec)]
    if monitor := monitoring.wanted_pod_monitor(backend.api, spec):
        message = (
            f"the Prometheus Operator is there, and no PodMonitor that it heeds names replicas in {spec.namespace}."
        )
        advice = "Apply the one below, if yours is the operator's Prometheus and scrapes no pods by annotation."
        findings.append(Issue(IssueLevel.WARNING, "pod monitor", message, advice))
    lends = f"advertise {spec.slice_resource}" if spec.slice_resource else "fit"
    lends = "have GPUs for claims" if spec.by_claims else lends
    rows = {
        "API server": (["cluster", "version"], backend.api.url),
        "servers": (["server"], "can be asked"),
        "namespace": (["namespace"], spec.namespace),
        "pod security": (["pod security"], "restricted"),
        "rights": (["rights"], "all"),
        "runtime class": (["runtime class"], spec.gpu_runtime_class or "none asked for"),
        "quota": (["quota", "admission", "priority class", "queue"], "lets the replicas in"),
        "nodes": (["nodes", "pressure", "image", "gpus", "room", "busy", "sharing", "claims"], lends),
        "prometheus": (["prometheus", "targets", "metrics", "scrape interval", "retention", "disk"], "answers"),
        "pod monitor": (["pod monitor"], "none is missing"),
        "clock": (["clock"], "the API server's agrees with this machine's"),
        "token": (["token"], "lasts"),
        "grafana": (["grafana"], "does not disturb"),
    }
    checks = [_of_cluster(name, kinds, state, findings) for name, (kinds, state) in rows.items()]
    lacking = any(finding.check in {"namespace", "pod security", "rights", "pod monitor"} for finding in findings)
    return checks, rights.manifest(spec, *([monitor] if monitor else [])) if lacking else ""


def of_campaign(file: str | None, namespace: str | None) -> tuple[KubernetesSpec, list[ExperimentSpec]]:
    """What to look at on a cluster: of a campaign file or its name, else every default. Raises UsageError."""
    spec, experiments = KubernetesSpec(), list[ExperimentSpec]()
    if file is not None:
        campaign = read_source(file).spec
        if campaign.kubernetes is None:
            raise UsageError(f"the campaign {campaign.name} runs on this machine.", advice="Leave --kubernetes out.")
        spec, experiments = campaign.kubernetes, certain(campaign)
    if namespace is None:
        return spec, experiments
    try:
        return spec.model_copy(update={"namespace": KubernetesSpec(namespace=namespace).namespace}), experiments
    except ValidationError as error:
        raise UsageError(
            f"{namespace!r} is not a valid name of a namespace.", advice="E.g. --namespace inference"
        ) from error


def _of_cluster(name: str, kinds: Collection[str], state: str, findings: Sequence[Issue]) -> Check:
    own = [finding for finding in findings if finding.check in kinds]
    messages = " ".join(finding.message for finding in own)
    advice = " ".join(dict.fromkeys(finding.advice for finding in own if finding.advice))
    return Check(name, not own, any(finding.severity is IssueLevel.ERROR for finding in own), messages or state, advice)


_RAISE = "The kernel stops what uses more. Raise the quota (docker --cpus, limits of the pod, CPUQuota of the unit)."


def _python() -> Check:
    ok = sys.version_info >= (3, 11)
    return Check("python", ok, True, platform.python_version(), "" if ok else "Use Python 3.11 or newer.")


def _packages() -> Check:
    missing = absent(*EXTRA_OF)
    state = f"missing: {', '.join(missing)}" if missing else "all there"
    advice = " or ".join(dict.fromkeys(advice_on(name) for name in missing))
    return Check("packages", not missing, False, state, advice)


def _cpus() -> Check:
    usable, quota = len(os.sched_getaffinity(0)), Cgroup().limits().cpus
    limited = quota is not None and quota < usable
    enough = min(usable, quota or usable) >= 4
    state = f"{quota:g} of {usable} CPUs by the cgroup's quota" if limited else f"{usable} usable"
    advice = "" if enough else "Replicas on the CPU will compete with each other and with the recorder."
    return Check("cpus", enough and not limited, False, state, advice or (_RAISE if limited else ""))


def _memory() -> Check:
    free, group = psutil.virtual_memory().available, Cgroup()
    left, limit = group.memory_free_bytes(), group.limits().memory_bytes
    limited = left is not None and limit is not None and left < free
    free = left if limited and left is not None else free
    of_limit = f" of the cgroup's limit of {(limit or 0) / 1e9:.1f} GB" if limited else ""
    state = f"{free / 1e9:.1f} GB available{of_limit}"
    return Check("memory", free > 4e9, False, state, "" if free > 4e9 else "Large models may not fit.")


def _gpu() -> Check:
    gpus, reason = gpu_facts()
    if not gpus:
        advice = (
            "Replicas run on the CPU, and gpu_* metrics are absent with this reason. Where there is an NVIDIA GPU, install its "
            "driver until nvidia-smi lists it."
        )
        return Check("gpu", False, False, f"none ({reason})", advice)
    states = [
        f"{gpu.name} ({gpu.free_bytes / 1e9:.0f} of {gpu.total_bytes / 1e9:.0f} GB free)"
        if gpu.free_bytes is not None and gpu.total_bytes is not None
        else f"{gpu.name} (memory not said)"
        for gpu in gpus
    ]
    advice = "Reset or replace the broken GPU (nvidia-smi -r); the others are used." if reason else ""
    return Check("gpu", not reason, False, ", ".join(filter(None, (*states, reason))), advice)


def _pressure() -> Check:
    try:
        for name in ("cpu", "memory", "io"):
            Path("/proc/pressure", name).read_bytes()
    except OSError as error:
        advice = "Boot with psi=1 (kernel 4.20 or newer); until then *_psi metrics are absent with this reason."
        return Check("psi", False, False, f"{error.filename} cannot be read", advice)
    return Check("psi", True, False, "/proc/pressure is there")


def _swap() -> Check:
    size = psutil.swap_memory().total
    advice = "Swapping distorts latencies; swapoff -a, or the node playbook." if size else ""
    return Check("swap", not size, False, f"{size / 1e9:.1f} GB on" if size else "off", advice)


def _load() -> Check:
    load_1min, usable = os.getloadavg()[0], len(os.sched_getaffinity(0))
    busy = load_1min > 0.5 * usable
    advice = "Other work runs here and will be measured with yours." if busy else ""
    return Check("load", not busy, False, f"{load_1min:.1f} on {usable} CPUs", advice)
