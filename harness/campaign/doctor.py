"""What can be measured on this machine or on a cluster, what cannot, and why."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from pydantic import ValidationError

from harness.campaign.plan import certain
from harness.campaign.source import read_source
from harness.cgroup import Cgroup
from harness.errors import Issue, IssueLevel, UsageError
from harness.extras import EXTRA_OF, absent, advice_on
from harness.metrics.nvml import gpu_facts
from harness.spec import ExperimentSpec, KubernetesSpec


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at. ``required``: without it nothing can be run; otherwise only some metrics are absent."""

    name: str
    ok: bool
    required: bool
    found: str
    advice: str = ""


def examine() -> list[Check]:
    """Every check, in the order a reader wants them. Starts nothing."""
    checks: list[Callable[[], Check]] = [_python, _packages, _cpus, _memory, _gpu, _pressure, _swap, _load]
    return [check() for check in checks]


def examine_cluster(spec: KubernetesSpec, experiments: Sequence[ExperimentSpec]) -> tuple[list[Check], str]:
    """Every check of a cluster, and the YAML that an administrator applies where access lacks. Changes nothing.

    Without ``experiments`` only what is true of every campaign is checked.
    """
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
    lends = f"lend {spec.slice_resource}" if spec.slice_resource else "fit"
    if spec.by_claims:
        lends = "have GPUs for claims"
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
    """What to look at on a cluster: of a campaign file or its name, else every default and no experiment.

    ``namespace`` stands in place of the campaign's. Raises UsageError for a campaign of this machine, or no such name.
    """
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
        raise UsageError(f"{namespace!r} is no name of a namespace.", advice="E.g. --namespace inference") from error


def _of_cluster(name: str, kinds: Collection[str], state: str, findings: Sequence[Issue]) -> Check:
    own = [finding for finding in findings if finding.check in kinds]
    messages = " ".join(finding.message for finding in own)
    advice = " ".join(dict.fromkeys(finding.advice for finding in own if finding.advice))
    return Check(name, not own, any(finding.severity is IssueLevel.ERROR for finding in own), messages or state, advice)


_RAISE = "The kernel stops whoever uses more. Raise the quota (docker --cpus, limits of the pod, CPUQuota of the unit)."


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
    state = f"{free / 1e9:.1f} GB available" + (
        f" of the cgroup's limit of {(limit or 0) / 1e9:.1f} GB" if limited else ""
    )
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
    missing = [name for name in ("cpu", "memory", "io") if not _readable(Path("/proc/pressure") / name)]
    if missing:
        advice = "Boot with psi=1 (kernel 4.20 or newer); until then *_psi metrics are absent with this reason."
        return Check("psi", False, False, f"/proc/pressure/{missing[0]} cannot be read", advice)
    return Check("psi", True, False, "/proc/pressure is there")


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


def _swap() -> Check:
    swap = psutil.swap_memory()
    if swap.total == 0:
        return Check("swap", True, False, "off")
    advice = "Swapping distorts latencies; swapoff -a, or the node playbook."
    return Check("swap", False, False, f"{swap.total / 1e9:.1f} GB on", advice)


def _load() -> Check:
    load_1min, usable = os.getloadavg()[0], len(os.sched_getaffinity(0))
    busy = load_1min > 0.5 * usable
    advice = "Other work runs here and will be measured with yours." if busy else ""
    return Check("load", not busy, False, f"{load_1min:.1f} on {usable} CPUs", advice)
