"""What pods ask for and are limited to, with what a namespace's LimitRanges add."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from harness.backends.kubernetes.objects import Workload
from harness.spec.quantity import amount

Object = Mapping[str, Any]
Amounts = dict[str, Decimal]
OF_BYTES = ("memory", "ephemeral-storage")
COMPUTE = ("cpu", *OF_BYTES)
"""What is no device."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a container, or a pod, asks for and is limited to, with what the namespace adds."""

    name: str
    requests: Amounts
    limits: Amounts


def of_workload(made: Workload, bounds: Sequence[Object]) -> tuple[Asked, list[Asked]]:
    """What a pod of it asks for in all, and its containers. ``bounds``: of the LimitRanges of its namespace."""
    return of_pod(made.body["spec"]["template"]["spec"], bounds)


def of_pod(spec: Object, bounds: Sequence[Object] = ()) -> tuple[Asked, list[Asked]]:
    """The same of a pod's ``spec``."""
    most, least = defaults(bounds)

    def asked(container: Object) -> Asked:
        stated = container.get("resources") or {}
        limits, requests = stated.get("limits") or {}, stated.get("requests") or {}
        return Asked(
            f"container {container['name']}", _amounts({**least, **limits, **requests}), _amounts({**most, **limits})
        )

    early = spec.get("initContainers") or []
    sidecars = [one for one in early if one.get("restartPolicy") == "Always"]  # they run on, beside the others
    together = [asked(one) for one in [*spec["containers"], *sidecars]]
    before = [asked(one) for one in early if one not in sidecars]
    requests = _total([one.requests for one in together], [one.requests for one in before])
    limits = _total([one.limits for one in together], [one.limits for one in before])
    for key, value in _amounts(spec.get("overhead") or {}).items():  # of its runtime class
        requests[key] += value
    return Asked("pod", requests, limits), [*together, *before]


def _total(together: Sequence[Amounts], before: Sequence[Amounts]) -> defaultdict[str, Decimal]:
    """Containers run side by side, those before them one after another."""
    found: defaultdict[str, Decimal] = defaultdict(Decimal)
    for one in together:
        for key, value in one.items():
            found[key] += value
    for one in before:
        for key, value in one.items():
            found[key] = max(found[key], value)
    return found


def defaults(limits: Sequence[Object]) -> tuple[dict[str, str], dict[str, str]]:
    """The limits and requests of containers that do not state them, as an API server completes them."""
    most: dict[str, str] = {}
    least: dict[str, str] = {}
    for one in limits:
        if one.get("type") == "Container":
            given = {**(one.get("max") or {}), **(one.get("default") or {})}
            most |= given
            least |= {**(one.get("min") or {}), **given, **(one.get("defaultRequest") or {})}
    return most, least


def _amounts(resources: Mapping[str, str]) -> Amounts:
    return {key: value for key, text in resources.items() if (value := amount(text)) is not None}
