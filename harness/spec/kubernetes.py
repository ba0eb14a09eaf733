"""Where replicas live when they are pods: which cluster, as whom, and what a pod asks for."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

import harness
from harness.spec.model import Count, StrictModel, Text, UpToADay, VariableName, checked
from harness.spec.pods import ImageReference, Namespaced, ObjectName, PodSettings

ResourceName = Annotated[str, Field(pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")]
IMAGE = f"localhost/gpu-sharing-harness/workload:{harness.__version__}"


class WorkloadKind(StrEnum):
    """The object that owns the replicas."""

    DEPLOYMENT = "deployment"
    JOB = "job"


class SharingBy(StrEnum):
    """Who gives pods their GPUs."""

    DEVICE_PLUGIN = "device-plugin"
    DRA = "dra"


class GrafanaCost(StrEnum):
    """What to do about a Grafana that runs beside the measurement."""

    SCALE_DOWN = "scale-down"
    LEAVE = "leave"


class PrometheusLabels(StrictModel):
    """What a Prometheus that is not ours calls things."""

    pod: str = Field("pod", description="Label with the pod's name.")
    node: str = Field("node", description="Label with the node's name.")
    gpu_node: str = Field("node", description="The same of the GPUs' metrics, e.g. Hostname for the GPU operator's.")


class PrometheusAccess(StrictModel):
    """Who asks it, and whose certificate it shows; no secret stands here, for this file is kept with the results."""

    token_file: Text | None = Field(
        None,
        description="File with a bearer token, read anew for every query; null means none. "
        "A file that begins with `Basic ` is sent as it is.",
    )
    token_env: VariableName | None = Field(None, description="Variable with the token, in place of a file; null: none.")
    ca_file: Text | None = Field(None, description="Authorities that may sign its certificate; null: the system's.")
    secret: Namespaced | None = Field(
        None,
        description="Secret of the cluster, as namespace/name, with username, password and ca.crt, in place of token and ca_file; "
        "null means that of a node of ours (monitoring/prometheus-access) where prometheus_url is null, and else none.",
    )
    tenant: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9!_.*'()|-]{1,150}$",
        description="Tenant of Mimir, Cortex or Thanos, sent as X-Scope-OrgID; null means none.",
    )

    @checked
    def _one_token(self) -> Iterator[str]:
        if self.secret is not None and self.differs("token_file", "token_env", "ca_file"):
            yield "`secret` gives login and authority: leave `token_file`, `token_env` and `ca_file` out."
        if self.token_file is not None and self.token_env is not None:
            yield "`token_file` and `token_env` both give the token: keep one of them."


class KubernetesSpec(PodSettings):
    """The cluster, and how replicas stand in it."""

    kubeconfig: str | None = Field(
        None,
        description="File with the credentials; null means KUBECONFIG, then ~/.kube/config, then those of the pod the harness runs in.",
    )
    context: str | None = Field(None, description="Context of the kubeconfig; null means its current one.")
    namespace: ObjectName = Field("inference", description="Where replicas are made; it must exist.")
    image: ImageReference = Field(IMAGE, description="Image of the replicas, fully qualified.")
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = Field(
        "IfNotPresent", description="When it is pulled."
    )
    kind: WorkloadKind = Field(WorkloadKind.DEPLOYMENT, description="deployment, or job: pods that end by themselves.")
    gpu_resource: ResourceName | None = Field(
        "nvidia.com/gpu",
        description="Of a slice; null where a scheduler gives each replica its part of a GPU by `annotations`, e.g. "
        "{gpu-fraction: '0.5'}. On the CPU is gpus_per_replica: 0.",
    )
    extra_resources: dict[ResourceName, Annotated[int, Field(ge=0)]] = Field(
        {},
        description="Limits of what else divides a GPU, of the container that has it, e.g. {nvidia.com/gpumem: 10000, nvidia.com/gpucores: 30} of HAMi.",
    )
    gpus_per_replica: int = Field(1, ge=0, le=64, description="Slices that one replica asks for; 0: it is on the CPU.")
    sharing_by: SharingBy = Field(
        SharingBy.DEVICE_PLUGIN,
        description="device-plugin (slices of `gpu_resource`), or dra: claims for NVIDIA's DRA driver, each of which says how "
        "its GPU is shared.",
    )
    expected_gpus: Count | None = Field(None, description="GPUs of all the replicas' nodes together; null: any number.")
    load_generators: int = Field(
        1,
        ge=1,
        le=256,
        description="Pods that send the requests of scenario http, each to replicas of its own; without a GPU, away from the replicas if there is room.",
    )
    device_plugin_configs: Namespaced | None = Field(
        None,
        description="ConfigMap, as namespace/name, of the configurations among which the device plugin's config manager "
        "chooses by the label nvidia.com/device-plugin.config: the campaign switches the nodes to the mode of each "
        "experiment, and puts back what it found. null means the one mode that there is.",
    )
    mig_config: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
        description="What NVIDIA's MIG manager divides the GPUs into under mig, a value of the label nvidia.com/mig.config, "
        "e.g. all-1g.18gb; under the other modes they are whole. null means that instances are as they are.",
    )
    switch_timeout_s: UpToADay = Field(300.0, description="Seconds until nodes must show a mode they were switched to.")
    runtime_class: ObjectName | None = Field(
        "nvidia",
        description="RuntimeClass of replicas that ask for a GPU; null where the default runtime (or CDI) hands it out.",
    )
    service_account: ObjectName = Field("replica", description="Account of the pods; it has no rights and no token.")
    prometheus_url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="The Prometheus that watches the cluster, as the harness reaches it, with its path if it has one; null means at prometheus_service: directly on a node of ours, else through the API server.",
    )
    prometheus_service: str = Field(
        "monitoring/prometheus:9090",
        pattern=r"^[a-z0-9-]+/[a-z0-9-]+:[a-z0-9-]+$",
        description="Its Service, as namespace/name:port.",
    )
    prometheus_access: PrometheusAccess = Field(
        default_factory=PrometheusAccess,
        description="How it is asked: {token_file: null, token_env: null, ca_file: null, secret: null, tenant: null}.",
    )
    prometheus_labels: PrometheusLabels = Field(
        default_factory=PrometheusLabels, description="What it calls pods and nodes, where it is not ours."
    )
    scrape_interval_s: float = Field(5.0, gt=0, le=300, description="Seconds between two scrapes; preflight checks it.")
    grafana: GrafanaCost = Field(
        GrafanaCost.SCALE_DOWN, description="scale-down during a campaign, or leave it running."
    )
    grafana_deployment: Namespaced = Field("monitoring/grafana", description="As namespace/name.")
    api_timeout_s: float = Field(10.0, ge=0.1, le=600, description="Seconds one request to the API server may take.")
    outage_s: UpToADay = Field(300.0, description="Seconds an API server may be away before an experiment is given up.")
    pending_s: UpToADay = Field(10.0, description="Seconds a replica may be unschedulable; more where nodes are added.")

    @property
    def by_claims(self) -> bool:
        """Whether replicas have claims in place of slices."""
        return self.sharing_by is SharingBy.DRA

    @property
    def slice_resource(self) -> str:
        """Of which a replica has slices; empty where it has none: on the CPU, by a claim, by annotations."""
        return "" if self.by_claims or not self.gpus_per_replica else self.gpu_resource or ""

    @property
    def gpu_runtime_class(self) -> str | None:
        """Of replicas; a claim's GPU is handed out by CDI, and NVIDIA's runtime would hand out others beside it."""
        return self.runtime_class if self.gpus_per_replica and not self.by_claims else None

    @checked
    def _can_be(self) -> Iterator[str]:
        if self.prometheus_url is None and self.prometheus_access.differs("token_file", "token_env", "ca_file"):
            yield "`prometheus_access` has no token and no authority through the API server: give `prometheus_url`."
        if self.queue_name is not None and self.kind is not WorkloadKind.JOB:
            yield "`queue_name` needs `kind: job`: Kueue admits the pods of a Deployment one by one."
        if self.by_claims and self.gpus_per_replica != 1:
            yield "`sharing_by: dra` gives each replica one GPU: leave `gpus_per_replica` at 1."
        if self.by_claims and self.device_plugin_configs is not None:
            yield "`device_plugin_configs` has no effect with `sharing_by: dra`: remove one of the two."
        if self.gpu_resource is None and not (self.annotations or self.labels):
            yield (
                "`gpu_resource: null` needs `annotations` or `labels` that say which part of a GPU a replica has; on the CPU is `gpus_per_replica: 0`."
            )
        if self.gpu_resource is None and (self.device_plugin_configs is not None or self.gpus_per_replica > 1):
            yield (
                "`gpu_resource: null` has no slices that a device plugin lends: remove `device_plugin_configs`, and leave `gpus_per_replica` at 1."
            )
        if self.device_plugin_configs is not None and not self.gpus_per_replica:
            yield "`device_plugin_configs` has no effect on replicas without a GPU (gpus_per_replica: 0)."
        if self.mig_config is not None and self.device_plugin_configs is None:
            yield "`mig_config` has no effect without `device_plugin_configs`: add that, or remove it."
