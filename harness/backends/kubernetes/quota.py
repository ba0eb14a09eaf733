"""Preflight: do the quotas and limits of the namespace let in what an experiment makes, as it is?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal

from harness.backends.kubernetes.api import Api
from harness.backends.kubernetes.asked import COMPUTE, OF_BYTES, Amounts, Asked, Object, defaults, of_workload
from harness.backends.kubernetes.objects import CAMPAIGN_LABEL, Workload, pods_path
from harness.errors import Finding, Severity
from harness.spec.quantity import amount, in_words

_TO_BE_STATED = ("cpu", "memory")
"""A quota that counts one of these refuses pods that do not state it."""
_BROKEN_ADVICE = (
    "Fit `kubernetes.reserve` and `limit` to it (`client_reserve` and `client_limit` of what sends requests, a server's own "
    "`reserve` and `limit`), have it raised, or use another namespace."
)
_NAMED = 3
"""How many containers a sentence names."""
_COUNTED = {
    "Deployment": ("count/deployments.apps", "count/replicasets.apps"),
    "Job": ("count/jobs.batch",),
    "ConfigMap": ("configmaps", "count/configmaps"),
    "ResourceClaim": ("count/resourceclaims.resource.k8s.io",),
    "ResourceClaimTemplate": ("count/resourceclaimtemplates.resource.k8s.io",),
}
"""The keys by which a quota counts objects; a Deployment makes a ReplicaSet."""


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
    asked = [one for each in made for one in of_workload(each, ())[1]]
    given = {
        key: value
        for key, value in defaults(limits)[0].items()
        if not asked or not all(key in one.limits for one in asked)
    }
    if given:
        said = ", ".join(f"{key} {value}" for key, value in given.items())
        message = f"the LimitRange {name} limits every replica ({said}): that would be measured, too."
        advice = "Use a namespace without default limits, or set `kubernetes.limit` to more than a replica needs."
        yield Finding(Severity.WARNING, "quota", message, advice)
    for each in made:
        pod, containers = of_workload(each, bounds)
        for limit in limits:
            for unit in {"Pod": [pod], "Container": containers}.get(str(limit.get("type")), []):
                if why := _broken(limit, unit):
                    whose = each.labels["app.kubernetes.io/name"]
                    message = f"the LimitRange {name} refuses the {unit.name} of {whose}: {why}."
                    yield Finding(Severity.ERROR, "quota", message, _BROKEN_ADVICE)


def _check_stated(quota: Object, bounds: Sequence[Object], made: Sequence[Workload]) -> Iterator[Finding]:
    """What pods have to state for one quota, and do not."""
    counts = [
        (key, resource, kind)
        for resource in _TO_BE_STATED
        for key, kind in ((resource, "reserve"), (f"requests.{resource}", "reserve"), (f"limits.{resource}", "limit"))
        if key in (quota["spec"].get("hard") or {})
    ]
    lacking = [
        (key, kind, f"the {one.name} of {each.labels['app.kubernetes.io/name']}")
        for key, resource, kind in counts
        for each in made
        for one in of_workload(each, bounds)[1]
        if resource not in (one.limits if kind == "limit" else one.requests)
    ]
    if lacking:
        keys, kinds, whose = (list(dict.fromkeys(column)) for column in zip(*lacking, strict=True))
        more = f" and {len(whose) - _NAMED} more" if len(whose) > _NAMED else ""
        fields = " and ".join(
            f"`kubernetes.{kind}` (`client_{kind}` of what sends requests, a server's own `{kind}`)" for kind in kinds
        )
        yield Finding(
            Severity.ERROR,
            "quota",
            f"the quota {quota['metadata']['name']} counts {', '.join(sorted(keys))}, and so refuses pods without: "
            f"{', '.join(whose[:_NAMED])}{more} {'has' if len(whose) == 1 else 'have'} none.",
            f"State it in {fields}, or use a namespace whose quota counts GPUs and pods alone.",
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
        needs = in_words(count, of_bytes=key.endswith(OF_BYTES))
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
        count, (pod, _) = each.replicas, of_workload(each, bounds)
        for key in ("pods", "count/pods"):
            found[key] += count
        for resource, value in pod.requests.items():
            for key in (f"requests.{resource}", *([resource] if resource in COMPUTE else [])):
                found[key] += value * count
        for resource in pod.limits.keys() & COMPUTE:  # of everything else requests alone are counted
            found[f"limits.{resource}"] += pod.limits[resource] * count
        for body in (one.body for one in (*each.owners, *each.beside)):
            for key in _COUNTED[body["kind"]]:
                found[key] += 1
            for key, number in _of_claims(body, count).items():
                found[key] += number
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


def _broken(limit: Object, unit: Asked) -> str:
    """Which bound something breaks, in words; empty: none."""
    return next(_broken_bounds(limit, unit), "")


def _broken_bounds(limit: Object, unit: Asked) -> Iterator[str]:
    for key, bound in (limit.get("max") or {}).items():
        given, most = unit.limits.get(key), amount(bound)
        if given is None:
            yield f"it allows at most {bound} of {key}, and no limit is stated"
        elif most is not None and given > most:
            yield f"it allows at most {bound} of {key}, and {_shown(key, given)} are asked for"
    for key, bound in (limit.get("min") or {}).items():
        given, fewest = unit.requests.get(key, Decimal()), amount(bound)
        if fewest is not None and given < fewest:
            yield f"it wants at least {bound} of {key}, and {_shown(key, given)} are asked for"
    yield from _broken_ratio(limit, unit)
    for key, value in unit.requests.items():
        if value > unit.limits.get(key, value):
            yield f"it limits {key} to {_shown(key, unit.limits[key])}, and {_shown(key, value)} are asked for"


def _broken_ratio(limit: Object, unit: Asked) -> Iterator[str]:
    for key, bound in (limit.get("maxLimitRequestRatio") or {}).items():
        asked, given, ratio = unit.requests.get(key), unit.limits.get(key), amount(bound)
        if not asked or not given:
            yield f"it allows {bound} times the {key} that is asked for as limit, and {'no limit' if asked else 'nothing'} is stated"
        elif ratio is not None and given > ratio * asked:
            yield f"it allows {bound} times the {key} that is asked for as limit, and {_shown(key, given)} are the limit of {_shown(key, asked)}"


def _shown(key: str, value: Decimal) -> str:
    return in_words(value, of_bytes=key in OF_BYTES)


def _in_scope(made: Workload, spec: Object, bounds: Sequence[Object]) -> bool:
    """Whether a quota is for these pods."""
    pod, _ = of_workload(made, bounds)
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
