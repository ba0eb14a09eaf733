"""What a cluster's own rules may ask of the pods: labels, who may pull, where they may stand, who waits for whom."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from harness.spec.model import StrictModel
from harness.spec.resources import Resources, refuse_lower

NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
SUBDOMAIN = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
LabelKey = Annotated[
    str,
    Field(
        pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
    ),
]
LabelValue = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")]
OWN_PREFIXES = (
    "gpu-sharing-harness/",
    "prometheus.io/",
    *(f"app.kubernetes.io/{name}" for name in ("name", "part-of", "managed-by")),
)
"""Of labels and annotations that the harness sets."""


class Toleration(StrictModel):
    """A taint that replicas may be placed in spite of."""

    key: LabelKey | None = Field(default=None, description="Key of the taint; null means every taint.")
    operator: Literal["Exists", "Equal"] = Field(default="Exists", description="Exists or Equal.")
    value: LabelValue | None = Field(default=None, description="Value of the taint; for operator Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint; null means all."
    )

    @model_validator(mode="after")
    def _can_be(self) -> Toleration:
        if self.operator == "Exists" and self.value:
            raise ValueError("operator Exists takes no `value`: say `operator: Equal`, or remove it.")
        if self.operator == "Equal" and self.key is None:
            raise ValueError("operator Equal needs a `key`.")
        return self


class NodeRequirement(StrictModel):
    """What a label of a node has to be."""

    key: LabelKey = Field(description="Key of the label.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="In, NotIn, Exists or DoesNotExist.")
    values: list[LabelValue] = Field(default_factory=list, description="For In and NotIn.")

    @model_validator(mode="after")
    def _can_be(self) -> NodeRequirement:
        if (self.operator in {"In", "NotIn"}) is not bool(self.values):
            raise ValueError(f"operator {self.operator} {'takes no' if self.values else 'needs'} `values`.")
        return self

    def holds(self, value: str | None) -> bool:
        """Whether a node whose label has this value meets it; None: it has no such label."""
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
        return value is None


class Placement(StrEnum):
    """How replicas are placed where several nodes could take them."""

    SPREAD = "spread"
    PACKED = "packed"


class PodSettings(StrictModel):
    """Settings of the replicas' pods."""

    labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, description="Labels of the pods and of their owner beside the harness's, e.g. {team: ml}."
    )
    annotations: dict[LabelKey, str] = Field(
        default_factory=dict, description="Annotations of the pods, e.g. {sidecar.istio.io/inject: 'false'}."
    )
    image_pull_secrets: list[Annotated[str, Field(pattern=SUBDOMAIN)]] = Field(
        default_factory=list, description="Secrets of the namespace with the credentials of the image's registry."
    )
    priority_class: str | None = Field(
        default=None, pattern=SUBDOMAIN, description="PriorityClass of the pods; null means the cluster's default."
    )
    queue_name: str | None = Field(
        default=None,
        pattern=NAME,
        description="LocalQueue of Kueue that admits each experiment, with kind job; null means none.",
    )
    run_as_user: int | None = Field(
        default=65534,
        ge=1,
        le=2**31 - 1,
        description="User and group of the replicas; null where the cluster gives each namespace its own (OpenShift).",
    )
    node_selector: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, description="Labels that a node must have, e.g. {pool: gpu}."
    )
    placement: Placement = Field(
        default=Placement.SPREAD,
        description="spread (equal shares over the nodes that have room) or packed (one node as full as it gets, then the next).",
    )
    node_affinity: list[NodeRequirement] = Field(
        default_factory=list,
        description="Requirements that a node must meet, all of them, e.g. [{key: pool, operator: In, values: [a, b]}].",
    )
    tolerations: list[Toleration] = Field(
        default_factory=list, description="Taints that replicas tolerate, e.g. [{key: nvidia.com/gpu}]."
    )

    reserve: Resources = Field(
        default_factory=dict,
        description="What a node must have free for each replica, and for each neighbour, e.g. {cpu: '2', memory: 8Gi}; it is no limit. "
        "Of processors it is also the share that a busy node gives it: with none it comes last. A server's `image` has its own.",
    )
    limit: Resources = Field(
        default_factory=dict,
        description="The most that each replica, and each neighbour, may use; {}: no limit, so that nothing throttles them.",
    )
    client_reserve: Resources = Field(
        default_factory=dict,
        description="`reserve` of what sends requests and computes nothing: the pods of scenario http, and the clients of servers.",
    )
    client_limit: Resources = Field(default_factory=dict, description="`limit` of the same.")

    @model_validator(mode="after")
    def _limits_above_what_is_reserved(self) -> PodSettings:
        refuse_lower(self.reserve, self.limit)
        refuse_lower(self.client_reserve, self.client_limit, "client_")
        return self

    @field_validator("labels", "annotations")
    @classmethod
    def _not_ours(cls, given: dict[str, str]) -> dict[str, str]:
        taken = [key for key in given if key.startswith(OWN_PREFIXES)]
        if taken:
            raise ValueError(f"{taken[0]} is set by the harness: leave it out.")
        return given

    def takes(self, labels: dict[str, str]) -> bool:
        """Whether the pods may stand on a node with these labels."""
        named = all(labels.get(key) == value for key, value in self.node_selector.items())
        return named and all(rule.holds(labels.get(rule.key)) for rule in self.node_affinity)
