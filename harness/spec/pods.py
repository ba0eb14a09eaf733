"""What a cluster's own rules may ask of the pods: images, resources, labels, who may pull, where they may stand, who waits for whom."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from harness.spec.model import StrictModel, checked

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_REGISTRY = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:{_REGISTRY}/)?{_COMPONENT}(?:/{_COMPONENT})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?"
)
"""The grammar by which a kubelet reads it (the distribution project's): with another it says InvalidImageName, and pulls nothing."""


def _checked(value: str) -> str:
    if not _REFERENCE.fullmatch(value):
        raise ValueError(f"{value!r} is not an image reference, e.g. registry.example/team/workload:1.0")
    return value


ImageReference = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_checked)]
"""Refuses what no registry could have: spaces, capitals in the path, an empty tag."""

_POWERS = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)([KMGTPE]i|[numkMGTPE])?")
_BYTES = ("1Mi", "64Ti", Decimal(1))
_BOUNDS = {"cpu": ("1m", "1024", Decimal("0.001")), "memory": _BYTES, "ephemeral-storage": _BYTES}
"""The least, the most, and what a quantity is a multiple of. Fewer bytes are a unit that was mistaken: ``m`` is a thousandth."""


def amount(text: object) -> Decimal | None:
    """A quantity as Kubernetes writes it (500m, 16Gi, 1e3) as a number; None when it is none."""
    match = _QUANTITY.fullmatch(str(text))
    return Decimal(match[1]) * _POWERS[match[2] or ""] if match else None


def quantity(value: Decimal, *, of_bytes: bool) -> str:
    """A number as a quantity, bytes in the largest unit that divides them."""
    units = [unit for unit in _POWERS if unit.endswith("i")] if of_bytes else []
    unit = next((unit for unit in reversed(units) if value and value % _POWERS[unit] == 0), "")
    return f"{(value / _POWERS[unit]).normalize():f}{unit}"


def _compared(text: str) -> Decimal:
    return amount(text) or Decimal(0)


def _in_bounds(given: dict[Resource, str]) -> dict[Resource, str]:
    for resource, text in given.items():
        least, most, step = _BOUNDS[resource]
        if not _compared(least) <= _compared(text) <= _compared(most) or _compared(text) % step:
            finest = "thousandths of a processor at the finest" if resource == "cpu" else "whole bytes"
            raise ValueError(f"{resource} is {text}: it lies between {least} and {most}, in {finest}.")
    return given


Resource = Literal["cpu", "memory", "ephemeral-storage"]
_Quantity = Annotated[str, Field(pattern=r"^[0-9]{1,18}(\.[0-9]{1,9})?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$")]
Resources = Annotated[dict[Resource, _Quantity], AfterValidator(_in_bounds)]
"""What a container asks of its node, or is limited to, by resource."""


def lower_limits(reserve: Mapping[Resource, str], limit: Mapping[Resource, str], prefix: str = "") -> Iterator[str]:
    """What is wrong where a limit is lower than what is reserved: no API server takes that."""
    for resource, most in limit.items():
        least = reserve.get(resource)
        if least is not None and _compared(least) > _compared(most):
            yield (
                f"`{prefix}reserve` asks for {least} of {resource}, and `{prefix}limit` allows {most}: raise the limit, or reserve less."
            )


ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
Subdomain = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
Namespaced = Annotated[str, Field(pattern=r"^[a-z0-9-]+/[a-z0-9.-]+$")]
LabelKey = Annotated[
    str,
    Field(pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"),
]
LabelValue = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")]
OWN_PREFIXES = (
    "gpu-sharing-harness/",
    "prometheus.io/",
    *(f"app.kubernetes.io/{name}" for name in ("name", "part-of", "managed-by")),
)
"""Of labels and annotations that the harness sets."""


class Toleration(StrictModel):
    """A taint that replicas tolerate."""

    key: LabelKey | None = Field(None, description="Key of the taint; null means every taint.")
    operator: Literal["Exists", "Equal"] = Field("Exists", description="How the value is compared.")
    value: LabelValue | None = Field(None, description="Value of the taint, with Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Effect of the taint; null means all."
    )

    @checked
    def _can_be(self) -> Iterator[str]:
        if self.operator == "Exists" and self.value:
            yield "operator Exists takes no `value`: say `operator: Equal`, or remove it."
        if self.operator == "Equal" and self.key is None:
            yield "operator Equal needs a `key`."


class NodeRequirement(StrictModel):
    """A required label of a node."""

    key: LabelKey = Field(description="Key of the label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="How the label is compared.")
    values: list[LabelValue] = Field([], description="With In and NotIn.")

    @checked
    def _can_be(self) -> Iterator[str]:
        if (self.operator in {"In", "NotIn"}) is not bool(self.values):
            yield f"operator {self.operator} {'takes no' if self.values else 'needs'} `values`."

    def holds(self, value: str | None) -> bool:
        """Whether a node whose label has this value meets it; None: it has no such label."""
        if self.operator in {"In", "NotIn"}:
            return (value in self.values) is (self.operator == "In")
        return (value is not None) is (self.operator == "Exists")


class PodSettings(StrictModel):
    """Settings of the replicas' pods."""

    labels: dict[LabelKey, LabelValue] = Field({}, description="More labels of the pods, e.g. {team: ml}.")
    annotations: dict[LabelKey, str] = Field(
        {}, description="Annotations of the pods, e.g. {sidecar.istio.io/inject: 'false'}."
    )
    image_pull_secrets: list[Subdomain] = Field([], description="Secrets with the registry's credentials.")
    priority_class: Subdomain | None = Field(None, description="PriorityClass of the pods.")
    scheduler_name: Subdomain | None = Field(
        None,
        description="Scheduler of the pods, e.g. kai-scheduler or volcano; its queue is in `labels` or `annotations`.",
    )
    queue_name: ObjectName | None = Field(None, description="LocalQueue of Kueue, with `kind: job`.")
    run_as_user: int | None = Field(
        65534,
        ge=1,
        le=2**31 - 1,
        description="User and group of the replicas; null on OpenShift, which sets its own.",
    )
    node_selector: dict[LabelKey, LabelValue] = Field({}, description="Labels that a node must have, e.g. {pool: gpu}.")
    placement: Literal["spread", "packed"] = Field(
        "spread",
        description="spread evenly over the nodes, or packed: fill one node, then the next.",
    )
    node_affinity: list[NodeRequirement] = Field(
        [],
        description="Requirements that a node must all meet, e.g. [{key: pool, operator: In, values: [a, b]}].",
    )
    tolerations: list[Toleration] = Field([], description="Taints to tolerate, e.g. [{key: nvidia.com/gpu}].")

    reserve: Resources = Field(
        {},
        description="Resource requests of each replica and neighbour, e.g. {cpu: '2', memory: 8Gi}; without cpu, a busy node "
        "serves it last.",
    )
    limit: Resources = Field({}, description="Resource limits of each replica and neighbour.")
    client_reserve: Resources = Field(
        {},
        description="Resource requests of load generators and of the servers' clients.",
    )
    client_limit: Resources = Field({}, description="Resource limits of the same.")

    @checked
    def _limits_above_what_is_reserved(self) -> Iterator[str]:
        yield from lower_limits(self.reserve, self.limit)
        yield from lower_limits(self.client_reserve, self.client_limit, "client_")

    @field_validator("labels", "annotations")
    @classmethod
    def _not_ours(cls, given: dict[str, str]) -> dict[str, str]:
        if taken := next((key for key in given if key.startswith(OWN_PREFIXES)), ""):
            raise ValueError(f"{taken} is set by the harness: leave it out.")
        return given

    def takes(self, labels: dict[str, str]) -> bool:
        """Whether the pods may stand on a node with these labels."""
        named = all(labels.get(key) == value for key, value in self.node_selector.items())
        return named and all(rule.holds(labels.get(rule.key)) for rule in self.node_affinity)
