"""Preflight: is the cluster new enough for the Jobs that a campaign makes?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from harness.backends.kubernetes.api import Api
from harness.errors import Finding, Severity
from harness.spec import ExperimentSpec, KubernetesSpec, ScenarioKind, WorkloadKind

LEAST = (1, 29)
"""From which version on a Job takes `backoffLimitPerIndex`."""


def makes_jobs(spec: KubernetesSpec, experiments: Sequence[ExperimentSpec]) -> bool:
    """Whether a campaign's replicas, or the pods that ask them or others, are a Job's."""
    return spec.kind is WorkloadKind.JOB or any(_asked_by_job(one) for one in experiments)


def _asked_by_job(experiment: ExperimentSpec) -> bool:
    scenario, server = experiment.workload.scenario, experiment.workload.server
    return (scenario is not None and scenario.kind is ScenarioKind.HTTP) or bool(server and server.url)


def check_version(api: Api) -> Iterator[Finding]:
    """Whether Jobs can be as the harness makes them. Raises ClusterError."""
    said = api.get("/version")
    name = said.get("gitVersion") or "of a version that it does not say"
    parts = [re.match(r"\d+", str(said.get(part) or "")) for part in ("major", "minor")]
    numbers = tuple(int(part[0]) for part in parts if part)
    if len(numbers) == len(LEAST) and numbers >= LEAST:
        return
    message = (
        f"the cluster is Kubernetes {name}, and the campaign makes Jobs with `backoffLimitPerIndex`, which Kubernetes knows from 1.29 on: "
        "without it one replica that ends takes all others along."
    )
    advice = "Upgrade the cluster; or take `kind: deployment`, no scenario http and no `server.url`."
    yield Finding(Severity.ERROR, "version", message, advice)
