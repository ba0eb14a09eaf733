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
    """Labels of a Prometheus that is not ours."""

    pod: str = Field("pod", description="Label with the pod's name.")
    node: str = Field("node", description="Label with the node's name.")
    gpu_node: str = Field("node", description="The same of GPU metrics, e.g. Hostname with the GPU operator.")


class PrometheusAccess(StrictModel):
    """Credentials of Prometheus; files and variables with secrets, because this file is kept with the results."""

    token_file: Text | None = Field(
        None,
        description="File with a bearer token, or with `Basic ...`; read for every query.",
    )
    token_env: VariableName | None = Field(None, description="Variable with the token, instead of a file.")
    ca_file: Text | None = Field(None, description="CA of its certificate; null: the system's.")
    secret: Namespaced | None = Field(
        None,
        description="Secret (namespace/name) with username, password and ca.crt; null: monitoring/prometheus-access on a node "
        "of ours without `prometheus_url`.",
    )
    tenant: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9!_.*'()|-]{1,150}$",
        description="Tenant of Mimir, Cortex or Thanos (X-Scope-OrgID).",
    )

    @checked
    def _one_token(self) -> Iterator[str]:
        if self.secret is not None and self.differs("token_file", "token_env", "ca_file"):
            yield "`secret` gives login and authority: leave `token_file`, `token_env` and `ca_file` out."
        if self.token_file is not None and self.token_env is not None:
            yield "`token_file` and `token_env` both give the token: keep one of them."


class KubernetesSpec(PodSettings):
    """The cluster and the replicas' pods."""

    kubeconfig: str | None = Field(
        None,
        description="Kubeconfig file; null means KUBECONFIG, ~/.kube/config, then the pod's own account.",
    )
    context: str | None = Field(None, description="Context of the kubeconfig; null means the current one.")
    namespace: ObjectName = Field("inference", description="Namespace of the replicas; it must exist.")
    image: ImageReference = Field(IMAGE, description="Image of the replicas, with its registry.")
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = Field(
        "IfNotPresent", description="When it is pulled."
    )
    kind: WorkloadKind = Field(WorkloadKind.DEPLOYMENT, description="deployment, or job: pods that end by themselves.")
    gpu_resource: ResourceName | None = Field(
        "nvidia.com/gpu",
        description="Resource of a slice; null where `annotations` give the part of a GPU, e.g. {gpu-fraction: '0.5'}.",
    )
    extra_resources: dict[ResourceName, Annotated[int, Field(ge=0)]] = Field(
        {},
        description="More limits of the GPU's container, e.g. of HAMi {nvidia.com/gpumem: 10000, nvidia.com/gpucores: 30}.",
    )
    gpus_per_replica: int = Field(1, ge=0, le=64, description="Slices that each replica requests; 0: CPU only.")
    sharing_by: SharingBy = Field(
        SharingBy.DEVICE_PLUGIN,
        description="device-plugin: slices of `gpu_resource`; dra: claims of NVIDIA's DRA driver.",
    )
    expected_gpus: Count | None = Field(None, description="GPUs of all the replicas' nodes together; null: any number.")
    load_generators: int = Field(
        1,
        ge=1,
        le=256,
        description="Pods that send the requests of scenario http, each to its own replicas; they use no GPU.",
    )
    device_plugin_configs: Namespaced | None = Field(
        None,
        description="ConfigMap (namespace/name) with the device plugin's configurations: the campaign switches the nodes by "
        "the label nvidia.com/device-plugin.config and restores it. null: no switching.",
    )
    mig_config: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
        description="Value of nvidia.com/mig.config under mig, e.g. all-1g.18gb; null leaves the instances as they are.",
    )
    switch_timeout_s: UpToADay = Field(300.0, description="Time limit of a switch of the nodes.")
    runtime_class: ObjectName | None = Field(
        "nvidia",
        description="RuntimeClass of replicas with a GPU; null: the default runtime or CDI provides it.",
    )
    service_account: ObjectName = Field("replica", description="Account of the pods; it has no rights and no token.")
    prometheus_url: str | None = Field(
        None,
        pattern=r"^https?://",
        description="URL of Prometheus, with its path; null: `prometheus_service`, directly on a node of ours, else through "
        "the API server.",
    )
    prometheus_service: str = Field(
        "monitoring/prometheus:9090",
        pattern=r"^[a-z0-9-]+/[a-z0-9-]+:[a-z0-9-]+$",
        description="Its Service, as namespace/name:port.",
    )
    prometheus_access: PrometheusAccess = Field(
        default_factory=PrometheusAccess,
        description="Its credentials: {token_file: null, token_env: null, ca_file: null, secret: null, tenant: null}.",
    )
    prometheus_labels: PrometheusLabels = Field(
        default_factory=PrometheusLabels, description="Its labels of pods and nodes."
    )
    scrape_interval_s: float = Field(5.0, gt=0, le=300, description="Seconds between two scrapes; preflight checks it.")
    grafana: GrafanaCost = Field(
        GrafanaCost.SCALE_DOWN, description="scale-down Grafana during a campaign, or leave it running."
    )
    grafana_deployment: Namespaced = Field("monitoring/grafana", description="Grafana's Deployment, as namespace/name.")
    api_timeout_s: float = Field(10.0, ge=0.1, le=600, description="Time limit of one request to the API server.")
    outage_s: UpToADay = Field(300.0, description="How long the API server may be away before a run is given up.")
    pending_s: UpToADay = Field(
        10.0, description="How long a replica may be unschedulable; raise it where nodes are added."
    )

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
                "`gpu_resource: null` has no slices that a device plugin advertises: remove `device_plugin_configs`, and leave `gpus_per_replica` at 1."
            )
        if self.device_plugin_configs is not None and not self.gpus_per_replica:
            yield "`device_plugin_configs` has no effect on replicas without a GPU (gpus_per_replica: 0)."
        if self.mig_config is not None and self.device_plugin_configs is None:
            yield "`mig_config` has no effect without `device_plugin_configs`: add that, or remove it."
