"""What Kubernetes' Pod Security level ``restricted`` (and with it ``baseline``) asks of a pod."""

from collections.abc import Iterator
from typing import Any

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}
SELINUX_TYPES = {None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}


def violations(pod: dict[str, Any]) -> list[str]:
    """The fields of a pod's ``spec`` that break a rule, each once."""
    containers = [one for kind in ("initContainers", "containers") for one in pod.get(kind, [])]
    own = pod.get("securityContext", {})
    found = [*_of_pod(pod, own), *(rule for one in containers for rule in _of_container(one, own))]
    return list(dict.fromkeys(found))


def _of_pod(pod: dict[str, Any], own: dict[str, Any]) -> Iterator[str]:
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name))
    if any(set(volume) - {"name"} - VOLUMES for volume in pod.get("volumes", [])):
        yield "volumes"
    if any(each["name"] not in SYSCTLS for each in own.get("sysctls", [])):
        yield "sysctls"
    if own.get("windowsOptions", {}).get("hostProcess"):
        yield "hostProcess"


def _of_container(one: dict[str, Any], pod: dict[str, Any]) -> Iterator[str]:
    own = one.get("securityContext", {})
    merged, capabilities = {**pod, **own}, own.get("capabilities", {})
    selinux = merged.get("seLinuxOptions", {})
    broken = {
        "privileged": own.get("privileged"),
        "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is not False,
        "capabilities": "ALL" not in capabilities.get("drop", [])
        or set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"},
        "runAsNonRoot": merged.get("runAsNonRoot") is not True,
        "runAsUser": merged.get("runAsUser") == 0,
        "seccompProfile": merged.get("seccompProfile", {}).get("type") not in {"RuntimeDefault", "Localhost"},
        "seLinuxOptions": selinux.get("type") not in SELINUX_TYPES or selinux.get("user") or selinux.get("role"),
        "procMount": own.get("procMount", "Default") != "Default",
        "appArmorProfile": merged.get("appArmorProfile", {}).get("type") == "Unconfined",
        "hostPort": any(port.get("hostPort") for port in one.get("ports", [])),
    }
    yield from (rule for rule, is_broken in broken.items() if is_broken)
