"""What an API server's admission does to pods, and refuses: of namespaces, classes, limits and quotas, in its own words.

tests/integration/kubernetes/test_quota.py holds it against the real one.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from harness.spec.pods import amount
from tests.support.fake_cluster_store import Refusal, Store, Target

Object = dict[str, Any]
TO_BE_STATED = ("cpu", "memory")


def admitted(store: Store, target: Target, body: Object, *, dry_run: bool) -> Object:
    """The object as it would be made. Raises Refusal.

    Args:
        store: what there is in the cluster.
        target: its path; without a name where it is posted.
        body: of the object.
        dry_run: what only tests of preflight furnish is looked for, too: the namespace, its account, classes.
    """
    one = copy.deepcopy(body)
    one["metadata"] = {"name": target.name, **one.get("metadata", {})}
    if not target.namespace:
        return one
    if dry_run:
        _namespace(store, target, one)
    if target.resource == "pods":
        if dry_run:
            _references(store, target, one)
        _complete(store, target, one)
    _quotas(store, target, one)
    return one


def furnish(store: Store, *, namespace: str = "inference", priority: str = "", **labels: str) -> None:
    """Put what pods of a campaign need into a cluster: a namespace, its account, the runtime class, a priority class."""
    needed = [
        (Target("api/v1", "", "namespaces", namespace), {"metadata": {"labels": labels}}),
        (Target("api/v1", namespace, "serviceaccounts", "replica"), {}),
        (Target("apis/node.k8s.io/v1", "", "runtimeclasses", "nvidia"), {"handler": "nvidia"}),
        (Target("apis/scheduling.k8s.io/v1", "", "priorityclasses", priority), {"value": 1}),
    ]
    for target, body in needed:
        if target.name:
            store.apply(target, body)


def _found(store: Store, group: str, resource: str, name: str, namespace: str = "") -> Object | None:
    try:
        return store.get(Target(group, namespace, resource, name))
    except Refusal:
        return None


def _items(store: Store, target: Target, resource: str) -> list[Object]:
    return store.listing(Target("api/v1", target.namespace, resource), {})["items"]


def _forbidden(target: Target, one: Object, why: str) -> Refusal:
    group = target.group.split("/")[1] if target.group.startswith("apis/") else ""
    kind = ".".join(filter(None, (target.resource, group)))
    return Refusal(403, "Forbidden", f'{kind} "{one["metadata"]["name"]}" is forbidden: {why}')


def _namespace(store: Store, target: Target, one: Object) -> None:
    place = _found(store, "api/v1", "namespaces", target.namespace)
    if place is None:
        raise Refusal(404, "NotFound", f'namespaces "{target.namespace}" not found')
    if "deletionTimestamp" in place["metadata"] or place.get("status", {}).get("phase") == "Terminating":
        why = f"unable to create new content in namespace {target.namespace} because it is being terminated"
        raise _forbidden(target, one, why)


def _references(store: Store, target: Target, one: Object) -> None:
    spec = one["spec"]
    account = spec.get("serviceAccountName", "default")
    if account != "default" and _found(store, "api/v1", "serviceaccounts", account, target.namespace) is None:
        why = f'error looking up service account {target.namespace}/{account}: serviceaccount "{account}" not found'
        raise _forbidden(target, one, why)
    runtime = spec.get("runtimeClassName")
    if runtime and _found(store, "apis/node.k8s.io/v1", "runtimeclasses", runtime) is None:
        raise _forbidden(target, one, f'pod rejected: RuntimeClass "{runtime}" not found')
    priority = spec.get("priorityClassName")
    if priority and _found(store, "apis/scheduling.k8s.io/v1", "priorityclasses", priority) is None:
        raise _forbidden(target, one, f"no PriorityClass with name {priority} was found")


def _complete(store: Store, target: Target, one: Object) -> None:
    """A limit is a request; then what LimitRanges add; and what they refuse."""
    spec = one["spec"]
    containers = [*spec["containers"], *(spec.get("initContainers") or [])]
    limits = [each for item in _items(store, target, "limitranges") for each in item["spec"].get("limits") or []]
    for container in containers:
        stated = container.setdefault("resources", {})
        stated["requests"] = {**stated.get("limits", {}), **stated.get("requests", {})}
        for each in limits:
            if each["type"] == "Container":
                most = {**each.get("max", {}), **each.get("default", {})}
                least = {**each.get("min", {}), **most, **each.get("defaultRequest", {})}
                stated["limits"] = {**most, **stated.get("limits", {})}
                stated["requests"] = {**least, **stated["requests"]}
        for key, text in stated["requests"].items():
            limit = stated.get("limits", {}).get(key)
            if limit is not None and amount(text) > amount(limit):
                name = one["metadata"]["name"]
                why = f'spec.containers[0].resources.requests: Invalid value: "{text}": must be less than or equal to {key} limit of {limit}'
                raise Refusal(422, "Invalid", f'Pod "{name}" is invalid: {why}')
    units = {"Pod": [_pod(spec)], "Container": [_amounts(each) for each in containers]}
    broken = [why for each in limits for unit in units.get(each["type"], []) for why in _broken(each, *unit)]
    if broken:
        raise _forbidden(target, one, ", ".join(broken))
    asks = {key for requests, _ in units["Container"] for key in requests if key in TO_BE_STATED}
    one["status"] = {"phase": "Pending", "qosClass": "Burstable" if asks else "BestEffort"}


def _amounts(container: Object) -> tuple[dict[str, Decimal], dict[str, Decimal]]:
    stated = container.get("resources") or {}
    requests, limits = (
        {key: amount(text) for key, text in (stated.get(kind) or {}).items()} for kind in ("requests", "limits")
    )
    return requests, limits


def _pod(spec: Object) -> tuple[dict[str, Decimal], dict[str, Decimal]]:
    totals = defaultdict(Decimal), defaultdict(Decimal)
    for container in spec["containers"]:
        for total, amounts in zip(totals, _amounts(container), strict=True):
            for key, value in amounts.items():
                total[key] += value
    for container in spec.get("initContainers") or []:
        for total, amounts in zip(totals, _amounts(container), strict=True):
            for key, value in amounts.items():
                total[key] = max(total[key], value)
    return totals


def _broken(each: Object, requests: dict[str, Decimal], limits: dict[str, Decimal]) -> Iterator[str]:
    per = each["type"]
    for key, bound in each.get("min", {}).items():
        if key not in requests:
            yield f"minimum {key} usage per {per} is {bound}.  No request is specified"
        elif requests[key] < amount(bound):
            yield f"minimum {key} usage per {per} is {bound}, but request is {requests[key]}"
    for key, bound in each.get("max", {}).items():
        if key not in limits:
            yield f"maximum {key} usage per {per} is {bound}.  No limit is specified"
        elif limits[key] > amount(bound):
            yield f"maximum {key} usage per {per} is {bound}, but limit is {limits[key]}"
    yield from _broken_ratio(each, requests, limits)


def _broken_ratio(each: Object, requests: dict[str, Decimal], limits: dict[str, Decimal]) -> Iterator[str]:
    for key, bound in each.get("maxLimitRequestRatio", {}).items():
        head = f"{key} max limit to request ratio per {each['type']} is {bound}, but"
        if not requests.get(key):
            yield f"{head} no request is specified or request is 0"
        elif not limits.get(key):
            yield f"{head} no limit is specified or limit is 0"
        elif limits[key] > amount(bound) * requests[key]:
            yield f"{head} provided ratio is {limits[key] / requests[key]:f}"


def _quotas(store: Store, target: Target, one: Object) -> None:
    for quota in _items(store, target, "resourcequotas"):
        hard, name = quota["spec"].get("hard") or {}, quota["metadata"]["name"]
        if target.resource == "pods":
            if not all(_in_scope(scope, one) for scope in quota["spec"].get("scopes") or []):
                continue
            _refuse_unstated(target, one, name, hard)
        needed, used = _usage(target, one), (quota.get("status") or {}).get("used") or {}
        over = [key for key in needed if key in hard and needed[key] + amount(used.get(key, 0)) > amount(hard[key])]
        if over:
            asked = ",".join(f"{key}={needed[key]}" for key in over)
            has, most = (",".join(f"{key}={of.get(key, 0)}" for key in over) for of in (used, hard))
            raise _forbidden(target, one, f"exceeded quota: {name}, requested: {asked}, used: {has}, limited: {most}")


def _in_scope(scope: str, pod: Object) -> bool:
    best_effort, ends = pod["status"]["qosClass"] == "BestEffort", "activeDeadlineSeconds" in pod["spec"]
    fits = {
        "BestEffort": best_effort,
        "NotBestEffort": not best_effort,
        "Terminating": ends,
        "NotTerminating": not ends,
    }
    return fits.get(scope, scope == "PriorityClass" and "priorityClassName" in pod["spec"])


def _refuse_unstated(target: Target, pod: Object, quota: str, hard: Object) -> None:
    containers = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or [])]
    lacking = {}
    for key in hard:
        kind, _, resource = key.rpartition(".")
        if resource in TO_BE_STATED and kind in {"", "requests", "limits"}:
            stated = [(each["name"], each["resources"].get(kind or "requests") or {}) for each in containers]
            lacking[key] = [name for name, amounts in stated if resource not in amounts]
    if any(lacking.values()):
        told = "; ".join(f"{key} for: {','.join(names)}" for key, names in sorted(lacking.items()) if names)
        raise _forbidden(target, pod, f"failed quota: {quota}: must specify {told}")


def _usage(target: Target, one: Object) -> dict[str, Decimal]:
    """What quotas count of one object, by their keys."""
    group = target.group.split("/")[1] if target.group.startswith("apis/") else ""
    counted = f"count/{'.'.join(filter(None, (target.resource, group)))}"
    usage = {counted: Decimal(1), target.resource: Decimal(1)}
    if target.resource == "pods":
        requests, limits = _pod(one["spec"])
        usage |= {f"requests.{key}": value for key, value in requests.items()}
        usage |= {key: value for key, value in requests.items() if "/" not in key}
        usage |= {f"limits.{key}": value for key, value in limits.items() if "/" not in key}
    return usage
