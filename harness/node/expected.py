"""What the verdict expects of a node: the inventory's and the roles' variables, as Ansible resolves them.

What the mission fixes (modules, kernel parameters, modes) stands here as constants and not as variables, so that
the judge does not share a mistake with the roles it judges.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness import __version__
from harness.node.errors import PlaybookError
from harness.sharing.modes import WHOLE, mode_of

MODULES = ("overlay", "br_netfilter")
SYSCTLS = {
    "net.bridge.bridge-nf-call-iptables": "1",
    "net.bridge.bridge-nf-call-ip6tables": "1",
    "net.ipv4.ip_forward": "1",
}
KUBERNETES_PACKAGES = ("kubeadm", "kubelet", "kubectl")
NVIDIA_PACKAGES = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container1",
    "libnvidia-container-tools",
)

REQUIRED_VARIABLES = (
    "swap_failsafe_unit",
    "kernel_sysctls_unit",
    "preflight_psi_required",
    "preflight_gpu_driver_min",
    "crio_version",
    "kubernetes_packages_version",
    "kubernetes_packages_cri_tools_version",
    "kubernetes_packages_cni_version",
    "nvidia_toolkit_version",
    "nvidia_toolkit_gpu",
    "nvidia_toolkit_handler",
    "control_plane_node_name",
    "control_plane_pod_cidr",
    "group_names",
)
OPTIONAL_VARIABLES = (
    "calico_network",
    "node_profile_name",
    "node_profile_gpu_clock_mhz",
    "node_profile_gpu_power_w",
    "node_profile_reserved_cpus",
    "node_profile_quiet_units",
    "nvidia_driver_state",
    "nvidia_driver_version",
    "nvidia_driver_modules",
    "nvidia_driver_fabric_manager",
    "proxy_used",
    "control_plane_endpoint",
    "control_plane_kubeconfig_users",
    "ansible_user",
    "worker_node_name",
    "dra_driver_state",
    "device_plugin_sharing",
    "device_plugin_replicas",
    "device_plugin_mig_profiles",
    "device_plugin_gpus_assumed",
    "device_plugin_smoke",
    "workload_image_name",
    "workload_image_tag",
    "inference_namespace_name",
    "inference_namespace_users",
)


CLAIMS = "claims"


@dataclass(frozen=True, slots=True)
class NodeSharing:
    """How the node's GPUs are shared between pods.

    Attributes:
        mode: exclusive, time-slicing or mps; claims where NVIDIA's DRA driver lends them.
        slices: per GPU or MIG instance; 1 in mode exclusive and of claims.
        mig_profiles: of the instances that every GPU is divided into; empty: instances are taken as they are.
        gpus_assumed: how many GPUs count where none can be asked.
    """

    mode: str
    slices: int
    mig_profiles: tuple[str, ...]
    gpus_assumed: int
    smoke: bool

    @classmethod
    def from_variables(cls, variables: Mapping[str, Any]) -> NodeSharing:
        """Make it of resolved variables."""
        by_claims = variables.get("dra_driver_state") == "present"
        mode = str(variables.get("device_plugin_sharing") or WHOLE.sharing.value)
        try:
            sliced = not by_claims and mode_of(mode).shares_gpu
        except ValueError as error:
            raise PlaybookError(f"device_plugin_sharing is {mode!r}, which is no sharing mode.") from error
        slices = int(variables.get("device_plugin_replicas") or 1) if sliced else 1
        assumed = int(variables.get("device_plugin_gpus_assumed") or 0)
        profiles = tuple(map(str, variables.get("device_plugin_mig_profiles") or ()))
        return cls(
            CLAIMS if by_claims else mode,
            slices,
            profiles,
            assumed,
            smoke=bool(variables.get("device_plugin_smoke", True)),
        )


@dataclass(frozen=True, slots=True)
class ManagedDriver:
    """A managed NVIDIA driver.

    Attributes:
        modules: auto, open or proprietary.
    """

    version: str
    modules: str
    fabric_manager: str

    @classmethod
    def from_variables(cls, variables: Mapping[str, Any]) -> ManagedDriver | None:
        """Make it of resolved variables; None where the driver is not managed."""
        if variables.get("nvidia_driver_state") != "managed":
            return None
        names = ("nvidia_driver_version", "nvidia_driver_modules", "nvidia_driver_fabric_manager")
        return cls(*(str(variables[name]) for name in names))


@dataclass(frozen=True, slots=True)
class Profile:
    """A machine to measure on.

    Attributes:
        gpu_clock_mhz, gpu_power_w: what every GPU is held at; 0: left free.
        reserved_cpus: the first so many are the system's.
    """

    gpu_clock_mhz: int
    gpu_power_w: int
    reserved_cpus: int
    quiet_units: tuple[str, ...]

    @classmethod
    def from_variables(cls, variables: Mapping[str, Any]) -> Profile | None:
        """Make it of resolved variables; None for the profile default."""
        if variables.get("node_profile_name") != "measuring":
            return None
        return cls(
            gpu_clock_mhz=int(variables["node_profile_gpu_clock_mhz"]),
            gpu_power_w=int(variables["node_profile_gpu_power_w"]),
            reserved_cpus=int(variables["node_profile_reserved_cpus"]),
            quiet_units=tuple(map(str, variables["node_profile_quiet_units"])),
        )


@dataclass(frozen=True, slots=True)
class Expected:
    """What one node is judged by.

    Attributes:
        packages: Debian package -> upstream version, held.
        nvidia_packages: the same, where the node has a GPU.
        gpu: auto, required, absent or assumed (see the inventory).
        driver_min: oldest NVIDIA driver that runs the workload image.
        profile: how steady the machine is to be, or None where it is as the distribution runs it.
        driver: the driver that is kept at one version, or None where somebody else installs it.
        users: whose ``~/.kube/config`` reaches the cluster.
        endpoint: name or address, with a port, under which the API server is reached; empty: its machine's address.
        network: who makes the pod network: calico, bridge or none (somebody else).
        harness_users: whose ``~/.kube/harness.conf`` is let in there.
    """

    kind: str
    packages: Mapping[str, str]
    nvidia_packages: Mapping[str, str]
    failsafe_unit: str
    sysctls_unit: str
    psi_required: bool
    gpu: str
    driver_min: str
    profile: Profile | None
    driver: ManagedDriver | None
    handler: str
    node_name: str
    pod_cidr: str
    network: str
    proxied: bool
    endpoint: str
    kubernetes_version: str
    crio_version: str
    users: tuple[str, ...]
    sharing: NodeSharing
    workload_image: str
    namespace: str
    harness_users: tuple[str, ...]
    admin_kubeconfig: str = "/etc/kubernetes/admin.conf"
    kubelet_kubeconfig: str = "/etc/kubernetes/kubelet.conf"

    @classmethod
    def from_variables(cls, variables: Mapping[str, Any]) -> Expected:
        """Make it of resolved variables; raises PlaybookError where one is missing."""
        missing = [name for name in REQUIRED_VARIABLES if variables.get(name) in (None, "")]
        if missing:
            raise PlaybookError(
                f"The inventory gives no value for {', '.join(missing)}.",
                advice="Use an inventory with this project's group_vars beside it.",
            )
        control_plane = "control_plane" in variables["group_names"]
        kubernetes, crio = str(variables["kubernetes_packages_version"]), str(variables["crio_version"])
        others = {
            "cri-o": crio,
            "cri-tools": str(variables["kubernetes_packages_cri_tools_version"]),
            "kubernetes-cni": str(variables["kubernetes_packages_cni_version"]),
        }
        return cls(
            kind="control_plane" if control_plane else "worker",
            packages={**dict.fromkeys(KUBERNETES_PACKAGES, kubernetes), **others},
            nvidia_packages=dict.fromkeys(NVIDIA_PACKAGES, str(variables["nvidia_toolkit_version"])),
            failsafe_unit=variables["swap_failsafe_unit"],
            sysctls_unit=variables["kernel_sysctls_unit"],
            psi_required=bool(variables["preflight_psi_required"]),
            gpu=variables["nvidia_toolkit_gpu"],
            driver_min=str(variables["preflight_gpu_driver_min"]),
            profile=Profile.from_variables(variables),
            driver=ManagedDriver.from_variables(variables),
            handler=variables["nvidia_toolkit_handler"],
            node_name=variables["control_plane_node_name" if control_plane else "worker_node_name"],
            pod_cidr=variables["control_plane_pod_cidr"],
            network=str(variables.get("calico_network") or "calico"),
            endpoint=_with_port(str(variables.get("control_plane_endpoint") or "")),
            proxied=bool(variables.get("proxy_used")),
            kubernetes_version=kubernetes.partition("-")[0],
            crio_version=crio.partition("-")[0],
            users=tuple(variables.get("control_plane_kubeconfig_users") or [_login_user(variables)]),
            sharing=NodeSharing.from_variables(variables),
            workload_image=":".join(
                (str(variables.get("workload_image_name")), str(variables.get("workload_image_tag") or __version__))
            ),
            namespace=str(variables.get("inference_namespace_name") or "inference"),
            harness_users=tuple(variables.get("inference_namespace_users") or [_login_user(variables)]),
        )


def _with_port(endpoint: str) -> str:
    """The endpoint with its port, as kubeadm writes it down."""
    return f"{endpoint}:6443" if endpoint and ":" not in endpoint else endpoint


def _login_user(variables: Mapping[str, Any]) -> str:
    """Whoever Ansible logs in as: the inventory's user, else the user who runs this, behind sudo too."""
    return str(variables.get("ansible_user") or os.environ.get("SUDO_USER") or getpass.getuser())
