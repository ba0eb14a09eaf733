"""Preflight: do the quotas and limits of the namespace let the replicas in, as they are?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from harness.backends.base import Finding, Severity
from harness.backends.kubernetes.rbac import Api
from harness.config import KubernetesSpec, WorkloadKind

_STATED = frozenset(
    f"{kind}{resource}" for kind in ("", "requests.", "limits.") for resource in ("cpu", "memory", "ephemeral-storage")
)


def check_quota(api: Api, spec: KubernetesSpec, replicas: int, owners: int = 1) -> Iterator[Finding]:
    """What would refuse a pod of ours, or give it a limit.

    Args:
        api: of the cluster.
        spec: the namespace, and what a replica asks for.
        replicas: the most at once.
        owners: Deployments or Jobs at once, the most: one for each workload of an experiment.
    """
    collection = f"/api/v1/namespaces/{spec.namespace}"
    given = set()
    for one in api.list(f"{collection}/limitranges"):
        for limit in one["spec"].get("limits") or []:
            if limit.get("type") != "Container":
                continue
            # A default limit is a default request, too.
            given |= {f"{kind}{key}" for key in limit.get("default") or {} for kind in ("", "requests.", "limits.")}
            given |= {f"{kind}{key}" for key in limit.get("defaultRequest") or {} for kind in ("", "requests.")}
            if limit.get("default"):
                said = ", ".join(f"{key} {value}" for key, value in limit["default"].items())
                message = f"the LimitRange {one['metadata']['name']} limits every replica ({said}): that would be measured, too."
                yield Finding(Severity.WARNING, "quota", message, "Use a namespace without default limits.")
    for one in api.list(f"{collection}/resourcequotas"):
        if not (one["spec"].get("scopes") or one["spec"].get("scopeSelector")):  # it may be for other pods
            yield from _check(one, spec, replicas, owners, given)


def _check(
    quota: Mapping[str, Any], spec: KubernetesSpec, replicas: int, owners: int, given: set[str]
) -> Iterator[Finding]:
    name, hard = quota["metadata"]["name"], quota["spec"].get("hard") or {}
    used = (quota.get("status") or {}).get("used") or {}
    owner = "jobs.batch" if spec.kind is WorkloadKind.JOB else "deployments.apps"
    wanted = {"pods": replicas, "count/pods": replicas, f"count/{owner}": owners}
    if spec.gpus_per_replica and not spec.by_claims:
        wanted[f"requests.{spec.gpu_resource}"] = replicas * spec.gpus_per_replica
    for key, count in wanted.items():
        most, others = _whole(hard.get(key)), _whole(used.get(key)) or 0
        if most is not None and count + others > most:
            yield Finding(
                Severity.ERROR if count > most else Severity.WARNING,
                "quota",
                f"the quota {name} allows {key}: {most}, of which {others} are used, and the campaign needs {count}.",
                "Use fewer replicas, or have it raised.",
            )
    if unstated := sorted((hard.keys() & _STATED) - given):
        yield Finding(
            Severity.ERROR,
            "quota",
            f"the quota {name} counts {', '.join(unstated)}, and so refuses pods without; replicas have none, so that "
            "nothing throttles them.",
            "Use a namespace whose quota counts GPUs and pods alone.",
        )


def _whole(quantity: object) -> int | None:
    """A plain number; of other quantities nobody knows here."""
    return int(str(quantity)) if re.fullmatch(r"\d+", str(quantity)) else None
