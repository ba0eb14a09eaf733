"""What the verdict expects of a node: the inventory's and the roles' variables, under their own names, as Ansible resolves them.

What the mission fixes (modules, kernel parameters, modes) stands here as constants and not as variables, so that
the judge does not share a mistake with the roles it judges.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from harness import __version__
from harness.errors import PlaybookError
from harness.sharing.mode import SharingMode
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
ADMIN_KUBECONFIG = "/etc/kubernetes/admin.conf"
KUBELET_KUBECONFIG = "/etc/kubernetes/kubelet.conf"

Mode = Annotated[SharingMode, BeforeValidator(lambda name: mode_of(str(name)))]


class Expected(BaseModel):
    """What one node is judged by. A variable without a default must have a value in the inventory."""

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True, arbitrary_types_allowed=True)

    group_names: frozenset[str]
    swap_failsafe_unit: str
    kernel_sysctls_unit: str
    preflight_psi_required: bool
    preflight_gpu_driver_min: str
    crio_version: str
    kubernetes_packages_version: str
    kubernetes_packages_cri_tools_version: str
    kubernetes_packages_cni_version: str
    nvidia_toolkit_version: str
    node_gpu: Literal["auto", "required", "absent", "assumed"]
    nvidia_toolkit_handler: str
    control_plane_node_name: str
    control_plane_pod_cidr: str
    worker_node_name: str = ""
    control_plane_endpoint: str = ""
    control_plane_kubeconfig_users: tuple[str, ...] = ()
    ansible_user: str = ""
    calico_network: str = "calico"
    proxy_used: bool = False
    node_profile_name: str = "default"
    node_profile_gpu_clock_mhz: int = 0
    node_profile_gpu_power_w: int = 0
    node_profile_reserved_cpus: int = 0
    node_profile_quiet_units: tuple[str, ...] = ()
    nvidia_driver_state: str = "present"
    nvidia_driver_version: str = ""
    nvidia_driver_modules: str = ""
    nvidia_driver_fabric_manager: str = ""
    versions: Mapping[str, Any] = {}
    versions_driver_repositories: Mapping[str, Mapping[str, Any]] = {}
    dra_driver_state: str = "absent"
    device_plugin_sharing: Mode = WHOLE
    device_plugin_replicas: int = 1
    device_plugin_sharing_of: Mapping[str, str] = {}
    device_plugin_mig_profiles: tuple[str, ...] = ()
    device_plugin_gpus_assumed: int = 0
    device_plugin_smoke: bool = True
    workload_image_name: str = ""
    workload_image_tag: str = __version__
    inference_namespace_name: str = "inference"
    inference_namespace_users: tuple[str, ...] = ()

    @classmethod
    def from_variables(cls, variables: Mapping[str, Any]) -> Expected:
        """Make it of resolved variables; raises PlaybookError where one is missing or has a value that cannot be."""
        given = {name: value for name, value in variables.items() if value not in (None, "")}
        given |= _own_way(given)
        missing = [name for name, field in cls.model_fields.items() if field.is_required() and name not in given]
        if missing:
            raise PlaybookError(
                f"The inventory gives no value for {', '.join(missing)}.",
                advice="Use an inventory with this project's group_vars beside it.",
            )
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            first = error.errors()[0]
            raise PlaybookError(
                f"{first['loc'][0]} is {first['input']!r}: {first['msg']}.", advice="Correct it in the inventory."
            ) from error

    @property
    def kind(self) -> str:
        """control_plane or worker."""
        return "control_plane" if "control_plane" in self.group_names else "worker"

    @property
    def node_name(self) -> str:
        """Under which name the node has joined."""
        return self.control_plane_node_name if self.kind == "control_plane" else self.worker_node_name

    @property
    def kubeconfig(self) -> str:
        """With which the node asks the API server: the administrator's, or on a worker its kubelet's."""
        return ADMIN_KUBECONFIG if self.kind == "control_plane" else KUBELET_KUBECONFIG

    @property
    def packages(self) -> dict[str, str]:
        """Debian package -> upstream version, held."""
        return {
            **dict.fromkeys(KUBERNETES_PACKAGES, self.kubernetes_packages_version),
            "cri-o": self.crio_version,
            "cri-tools": self.kubernetes_packages_cri_tools_version,
            "kubernetes-cni": self.kubernetes_packages_cni_version,
        }

    @property
    def endpoint(self) -> str:
        """Name or address of the API server with its port, as kubeadm writes it down; empty: its machine's address."""
        endpoint = self.control_plane_endpoint
        return f"{endpoint}:6443" if endpoint and ":" not in endpoint else endpoint

    @property
    def kubeconfig_users(self) -> tuple[str, ...]:
        """Whose ``~/.kube/config`` reaches the cluster."""
        return self.control_plane_kubeconfig_users or (self._login_user,)

    @property
    def harness_users(self) -> tuple[str, ...]:
        """Whose ``~/.kube/harness.conf`` is let in there."""
        return self.inference_namespace_users or (self._login_user,)

    @property
    def _login_user(self) -> str:
        """Whoever Ansible logs in as: the inventory's user, else the user who runs this, behind sudo too."""
        return self.ansible_user or os.environ.get("SUDO_USER") or getpass.getuser()

    @property
    def by_claims(self) -> bool:
        """Whether NVIDIA's DRA driver lends the GPUs to claims, in place of a device plugin's slices."""
        return self.dra_driver_state == "present"

    @property
    def slices(self) -> int:
        """Per GPU or MIG instance."""
        return self.device_plugin_replicas if self.device_plugin_sharing.shares_gpu and not self.by_claims else 1

    @property
    def workload_image(self) -> str:
        """The image that replicas run in."""
        return f"{self.workload_image_name}:{self.workload_image_tag}"


def _own_way(given: Mapping[str, Any]) -> dict[str, Any]:
    """How the node shares its GPUs where that is set for it alone, as ``mps`` or ``mps:4``."""
    kind = "control_plane" if "control_plane" in given.get("group_names", ()) else "worker"
    way = (given.get("device_plugin_sharing_of") or {}).get(given.get(f"{kind}_node_name"), "")
    parts = dict(zip(("device_plugin_sharing", "device_plugin_replicas"), way.split(":"), strict=False))
    return parts if way else {}


VARIABLES = tuple(Expected.model_fields)
"""What Ansible is asked for."""
