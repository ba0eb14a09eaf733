"""Preflight: have the nodes free what the pods of an experiment reserve of processors, memory and disk?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from harness.backends.kubernetes import capacity
from harness.backends.kubernetes.asked import COMPUTE, OF_BYTES, Amounts, Object, of_pod, of_workload
from harness.backends.kubernetes.parts import Part
from harness.errors import Finding, Severity, counted
from harness.spec import KubernetesSpec
from harness.spec.quantity import amount, in_words

_ADVICE = "Reserve less, use fewer replicas, or nodes that have more: `kubernetes.node_selector`."
_NAMED = 5
"""How many nodes a sentence names."""
_Each = tuple[tuple[str, Decimal], ...]
"""What a pod asks for, by resource."""


@dataclass(frozen=True, slots=True)
class _Node:
    """What pods can be given of one node, and what others hold of it."""

    name: str
    lends: Amounts
    held: Amounts

    def takes(self, each: Amounts, *, empty: bool) -> int:
        """How many pods that ask for ``each`` have room; ``empty``: were nobody else there."""
        free = {key: self.lends.get(key, Decimal()) - (0 if empty else self.held.get(key, 0)) for key in each}
        return max(0, min(int(free[key] // value) for key, value in each.items()))


def check_room(
    nodes: Sequence[Object],
    pods: Sequence[Object],
    bounds: Sequence[Object],
    experiments: Sequence[Sequence[Part]],
    campaign_id: str,
) -> Iterator[Finding]:
    """What cannot be placed, whatever the scheduler does; it may refuse more.

    Args:
        nodes: that are fit to take pods, whether or not a part's selector takes them.
        pods: of the whole cluster.
        bounds: of the namespace's LimitRanges, which add requests.
        experiments: what each makes, all of it at once.
        campaign_id: whose own pods are gone before anything is made.
    """
    rooms = {str(one["metadata"]["name"]): _node(one, pods, campaign_id) for one in nodes}
    most: dict[_Each, list[Part]] = {}
    for parts in experiments:  # one at a time, so that the largest decides
        for each, alike in _alike(parts, bounds).items():
            most[each] = max(most.get(each, []), alike, key=_number)
    found = [
        finding
        for each, alike in most.items()
        for finding in _check(dict(each), alike, [rooms[name] for name in _selected(nodes, alike[0].spec)])
    ]
    yield from found or _check_together(experiments, bounds, list(rooms.values()))


def _alike(parts: Sequence[Part], bounds: Sequence[Object]) -> dict[_Each, list[Part]]:
    """The parts of one experiment by what each of their pods asks for; those that ask for nothing are left out."""
    found: dict[_Each, list[Part]] = {}
    for part in parts:
        asked = of_workload(part.workload, bounds)[0].requests
        if each := tuple(sorted((key, value) for key, value in asked.items() if key in COMPUTE and value)):
            found.setdefault(each, []).append(part)
    return found


def _check_together(
    experiments: Sequence[Sequence[Part]], bounds: Sequence[Object], nodes: Sequence[_Node]
) -> Iterator[Finding]:
    """Of pods that have room by themselves, whether they have it together."""
    needed: Amounts = {}
    for parts in experiments:
        kinds = _alike(parts, bounds)
        for key in COMPUTE if len(kinds) > 1 else ():
            total = sum((dict(each).get(key, Decimal()) * _number(alike) for each, alike in kinds.items()), Decimal())
            needed[key] = max(total, needed.get(key, Decimal()))
    for key, total in needed.items():
        lent, held = (
            sum((one.get(key, Decimal()) for one in each), Decimal())
            for each in ([node.lends for node in nodes], [node.held for node in nodes])
        )
        if total > lent - held:
            yield Finding(
                Severity.ERROR,
                "room",
                f"all pods of an experiment reserve {_words(key, total)} of {key}, and the nodes have {_words(key, lent)}, of which others hold {_words(key, held)}.",
                _ADVICE if total > lent else f"End what holds it. {_ADVICE}",
                away=total <= lent,
            )


def stated(parts: Sequence[Part], bounds: Sequence[Object]) -> bool:
    """Whether any of the pods asks for something that a node could lack."""
    return any(of_workload(part.workload, bounds)[0].requests.keys() & set(COMPUTE) for part in parts)


def _check(each: Amounts, parts: Sequence[Part], nodes: Sequence[_Node]) -> Iterator[Finding]:
    number = _number(parts)
    fitting = sum(one.takes(each, empty=False) for one in nodes)
    if fitting >= number:
        return
    whole = sum(one.takes(each, empty=True) for one in nodes)
    said = " and ".join(f"{_words(key, value)} of {key}" for key, value in each.items())
    names = ", ".join(dict.fromkeys(part.workload.labels["app.kubernetes.io/name"] for part in parts))
    listed = "; ".join(_of(one, each) for one in nodes[:_NAMED])
    more = f"; and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    yield Finding(
        Severity.ERROR,
        "room",
        f"{counted(number, 'pod', 'reserve')} {said} each ({names}), and there is room for {fitting}: {listed or 'no node'}{more}.",
        _ADVICE if whole < number else f"End what holds it. {_ADVICE}",
        away=whole >= number,
    )


def _number(parts: Sequence[Part]) -> int:
    return sum(part.workload.replicas for part in parts)


def _of(node: _Node, each: Amounts) -> str:
    told = [
        f"{_words(key, node.lends.get(key, Decimal()))} of {key}, of which others hold {_words(key, node.held.get(key, Decimal()))}"
        for key in each
    ]
    return f"{node.name} has {' and '.join(told)}"


def _words(key: str, value: Decimal) -> str:
    """Bytes are shortened to what a person reads; the comparison is exact."""
    if key not in OF_BYTES:
        return in_words(value, of_bytes=False)
    mebi = value / 2**20
    return in_words(mebi.to_integral_value() * 2**20, of_bytes=True)


def _selected(nodes: Sequence[Object], spec: KubernetesSpec) -> list[str]:
    return [str(one["metadata"]["name"]) for one in nodes if capacity.selected(one, spec)]


def _node(node: Object, pods: Sequence[Object], campaign_id: str) -> _Node:
    name = str(node["metadata"]["name"])
    held: Amounts = {}
    for pod in pods:
        if pod["spec"].get("nodeName") == name and not capacity.ended(pod) and not capacity.own(pod, campaign_id):
            for key, value in of_pod(pod["spec"])[0].requests.items():
                held[key] = held.get(key, Decimal()) + value
    return _Node(name, _amounts((node.get("status") or {}).get("allocatable") or {}), held)


def _amounts(lent: Mapping[str, str]) -> Amounts:
    return {key: value for key in COMPUTE if (value := amount(lent.get(key))) is not None}
