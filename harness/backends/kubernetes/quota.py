"""Preflight: do the quotas and limits of the namespace let in what an experiment makes, as it is?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from harness.backends.base import Finding, Severity
from harness.backends.kubernetes.objects import CAMPAIGN_LABEL, Workload, pods_path
from harness.backends.kubernetes.quantity import amount, in_words
from harness.backends.kubernetes.rbac import Api

Object = Mapping[str, Any]
Amounts = dict[str, Decimal]

_OF_BYTES = ("memory", "ephemeral-storage")
_COMPUTE = ("cpu", *_OF_BYTES)
"""Of these a quota counts requests and limits; of everything else that pods ask for, requests."""
_TO_BE_STATED = ("cpu", "memory")
"""A quota that counts one of these refuses pods that do not state it."""
_COUNTED = {
    "Deployment": ("count/deployments.apps", "count/replicasets.apps"),
    "Job": ("count/jobs.batch",),
    "ConfigMap": ("configmaps", "count/configmaps"),
    "ResourceClaim": ("count/resourceclaims.resource.k8s.io",),
    "ResourceClaimTemplate": ("count/resourceclaimtemplates.resource.k8s.io",),
}
"""The keys by which a quota counts objects; a Deployment makes a ReplicaSet."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a container, or a pod, asks for and is limited to, with what the namespace adds."""

    name: str
    requests: Amounts
    limits: Amounts


def check_quota(
    api: Api, namespace: str, planned: Callable[[], Sequence[Sequence[Workload]]], campaign_id: str
) -> Iterator[Finding]:
    """What would refuse an object of ours, or give a pod of ours a limit.

    Args:
        api: of the cluster.
        namespace: of the campaign.
        planned: what each experiment makes, all of it at once; asked where the namespace has a quota or a limit.
        campaign_id: whose leftovers are deleted before anything is made.
    """
    place = f"/api/v1/namespaces/{namespace}"
    ranges = api.list(f"{place}/limitranges")
    quotas = api.list(f"{place}/resourcequotas")
    experiments = planned() if ranges or quotas else []
    bounds = [limit for one in ranges for limit in one["spec"].get("limits") or []]
    for one in ranges:
        yield from _check_range(one, bounds, [made for each in experiments for made in each])
    for quota in quotas:
        counted = [[made for made in each if _in_scope(made, quota["spec"], bounds)] for each in experiments]
        yield from _check_stated(quota, bounds, [made for each in counted for made in each])
        needed: Amounts = {}
        for each in counted:  # one experiment at a time
            for key, count in _needed(each, bounds).items():
                needed[key] = max(count, needed.get(key, Decimal()))
        yield from _check_room(api, quota, needed, f"{CAMPAIGN_LABEL}={campaign_id}", pods_path(namespace))


def _check_range(one: Object, bounds: Sequence[Object], made: Sequence[Workload]) -> Iterator[Finding]:
    """What one LimitRange refuses, and what it limits."""
    name, limits = one["metadata"]["name"], one["spec"].get("limits") or []
    given, _ = _defaults(limits)
    if given:
        said = ", ".join(f"{key} {value}" for key, value in given.items())
        message = f"the LimitRange {name} limits every replica ({said}): that would be measured, too."
        yield Finding(Severity.WARNING, "quota", message, "Use a namespace without default limits.")
    for each in made:
        pod, containers = _pod(each, bounds)
        for limit in limits:
            for unit in {"Pod": [pod], "Container": containers}.get(str(limit.get("type")), []):
                if why := _broken(limit, unit):
                    whose = each.labels["app.kubernetes.io/name"]
                    message = f"the LimitRange {name} refuses the {unit.name} of {whose}: {why}."
                    yield Finding(Severity.ERROR, "quota", message, "Have it raised, or use another namespace.")


def _check_stated(quota: Object, bounds: Sequence[Object], made: Sequence[Workload]) -> Iterator[Finding]:
    """What pods have to state for one quota, and do not."""
    containers = [one for each in made for one in _pod(each, bounds)[1]]
    states = {
        **{resource: [one.requests for one in containers] for resource in _TO_BE_STATED},
        **{f"requests.{resource}": [one.requests for one in containers] for resource in _TO_BE_STATED},
        **{f"limits.{resource}": [one.limits for one in containers] for resource in _TO_BE_STATED},
    }
    hard = quota["spec"].get("hard") or {}
    unstated = sorted(
        key for key in hard.keys() & states if not all(key.rpartition(".")[2] in stated for stated in states[key])
    )
    if unstated:
        yield Finding(
            Severity.ERROR,
            "quota",
            f"the quota {quota['metadata']['name']} counts {', '.join(unstated)}, and so refuses pods without; replicas have none, so that "
            "nothing throttles them.",
            "Use a namespace whose quota counts GPUs and pods alone.",
        )


def _check_room(api: Api, quota: Object, needed: Amounts, own: str, pods: str) -> Iterator[Finding]:
    """What does not fit into one quota, beside what others use of it."""
    name, hard = quota["metadata"]["name"], quota["spec"].get("hard") or {}
    used = (quota.get("status") or {}).get("used") or {}
    for key, count in needed.items():
        most, others = amount(hard.get(key)), amount(used.get(key)) or Decimal()
        if most is None or count + others <= most:
            continue
        alone = count > most
        mine = not alone and bool(api.list(pods, labels=own))
        needs = in_words(count, of_bytes=key.endswith(_OF_BYTES))
        yield Finding(
            Severity.WARNING if mine else Severity.ERROR,
            "quota",
            f"the quota {name} allows {key}: {hard[key]}, of which {used.get(key, 0)} are used, and the campaign needs {needs}.",
            "Use fewer replicas, or have it raised."
            if alone
            else "End what uses it, use fewer replicas, or have it raised.",
            away=not alone,
        )


def _needed(made: Sequence[Workload], bounds: Sequence[Object]) -> Amounts:
    """What quotas count of all these, by their keys."""
    found: Amounts = defaultdict(Decimal)
    for each in made:
        replicas, (pod, _) = _replicas(each), _pod(each, bounds)
        for key in ("pods", "count/pods"):
            found[key] += replicas
        for resource, value in pod.requests.items():
            for key in (f"requests.{resource}", *([resource] if resource in _COMPUTE else [])):
                found[key] += value * replicas
        for resource in pod.limits.keys() & _COMPUTE:
            found[f"limits.{resource}"] += pod.limits[resource] * replicas
        for body in [each.body, *(one.body for one in each.beside)]:
            for key in _COUNTED[body["kind"]]:
                found[key] += 1
            for key, count in _of_claims(body, replicas).items():
                found[key] += count
    return found


def _of_claims(body: Object, replicas: int) -> dict[str, int]:
    """Devices by their class, and the claims that pods get from a template."""
    if not body["kind"].startswith("ResourceClaim"):
        return {}
    template = body["kind"] == "ResourceClaimTemplate"
    claims = replicas if template else 1
    requests = (body["spec"]["spec"] if template else body["spec"])["devices"]["requests"]
    devices = {
        f"{one['exactly']['deviceClassName']}.deviceclass.resource.k8s.io/devices": claims
        * one["exactly"].get("count", 1)
        for one in requests
    }
    return {**devices, **({_COUNTED["ResourceClaim"][0]: claims} if template else {})}


def _replicas(made: Workload) -> int:
    return int(made.body["spec"]["parallelism" if made.kind == "Job" else "replicas"])


def _defaults(limits: Sequence[Object]) -> tuple[dict[str, str], dict[str, str]]:
    """The limits and requests of containers that do not state them, as an API server completes them."""
    most: dict[str, str] = {}
    least: dict[str, str] = {}
    for one in limits:
        if one.get("type") == "Container":
            given = {**(one.get("max") or {}), **(one.get("default") or {})}
            most |= given
            least |= {**(one.get("min") or {}), **given, **(one.get("defaultRequest") or {})}
    return most, least


def _pod(made: Workload, bounds: Sequence[Object]) -> tuple[_Asked, list[_Asked]]:
    """What a pod of it asks for in all, and its containers."""
    spec, (most, least) = made.body["spec"]["template"]["spec"], _defaults(bounds)

    def asked(container: Object) -> _Asked:
        stated = container.get("resources") or {}
        limits, requests = stated.get("limits") or {}, stated.get("requests") or {}
        return _Asked(
            f"container {container['name']}", _amounts({**least, **limits, **requests}), _amounts({**most, **limits})
        )

    together = [asked(one) for one in spec["containers"]]
    before = [asked(one) for one in spec.get("initContainers") or []]
    requests = _total([one.requests for one in together], [one.requests for one in before])
    limits = _total([one.limits for one in together], [one.limits for one in before])
    return _Asked("pod", requests, limits), [*together, *before]


def _total(together: Sequence[Amounts], before: Sequence[Amounts]) -> Amounts:
    """Containers run side by side, those before them one after another."""
    found: Amounts = defaultdict(Decimal)
    for one in together:
        for key, value in one.items():
            found[key] += value
    for one in before:
        for key, value in one.items():
            found[key] = max(found[key], value)
    return found


def _broken(limit: Object, unit: _Asked) -> str:
    """Which bound something breaks, in words; empty: none."""
    for key, bound in (limit.get("max") or {}).items():
        given, most = unit.limits.get(key), amount(bound)
        if given is None:
            return f"it allows at most {bound} of {key}, and no limit is stated"
        if most is not None and given > most:
            return f"it allows at most {bound} of {key}, and {in_words(given, of_bytes=key in _OF_BYTES)} are asked for"
    for key, bound in (limit.get("min") or {}).items():
        given, fewest = unit.requests.get(key, Decimal()), amount(bound)
        if fewest is not None and given < fewest:
            return f"it wants at least {bound} of {key}, and {in_words(given, of_bytes=key in _OF_BYTES)} are asked for"
    for key, value in unit.requests.items():
        if value > unit.limits.get(key, value):
            asked, limited = (in_words(one, of_bytes=key in _OF_BYTES) for one in (value, unit.limits[key]))
            return f"it limits {key} to {limited}, and {asked} are asked for"
    return ""


def _in_scope(made: Workload, spec: Object, bounds: Sequence[Object]) -> bool:
    """Whether a quota is for these pods."""
    pod, _ = _pod(made, bounds)
    named = made.body["spec"]["template"]["spec"].get("priorityClassName")
    best_effort = not {"cpu", "memory"} & {*pod.requests, *pod.limits}
    fits = {"NotTerminating": True, "BestEffort": best_effort, "NotBestEffort": not best_effort}
    whole = [{"scopeName": scope, "operator": "Exists"} for scope in spec.get("scopes") or []]
    for one in [*whole, *((spec.get("scopeSelector") or {}).get("matchExpressions") or [])]:
        if one["scopeName"] == "PriorityClass":
            among = named in (one.get("values") or [])
            fit = {"Exists": bool(named), "DoesNotExist": not named, "In": among, "NotIn": not among}[one["operator"]]
        else:
            fit = fits.get(
                one["scopeName"], False
            )  # others are for pods that end by a deadline, or look across namespaces
        if not fit:
            return False
    return True


def _amounts(resources: Mapping[str, str]) -> Amounts:
    return {key: value for key, text in resources.items() if (value := amount(text)) is not None}
