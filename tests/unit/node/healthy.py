"""A node on paper that passes every check, with a GPU."""

from __future__ import annotations

import json
from typing import Any

from harness.node.checks import Node, kubernetes, monitoring
from harness.node.checks.nvidia import LIBRARIES
from harness.node.expected import NVIDIA_PACKAGES, Expected
from harness.node.machine import FileState, PackageState, UnitState
from tests.support.fake_machine import BOOT_ID_PATH, FakeMachine

BOOT_ID = "11111111-2222-3333-4444-555555555555"
STARTED_S = 1000.0
KEPT = "/etc/kubernetes/monitoring"
AUTHORITY_LASTS = f"openssl x509 -noout -checkend 2592000 -in {KEPT}/ca.crt"
JOBS = ("prometheus", "node-exporter", "kube-state-metrics", "kubelet", "kubelet-cadvisor", "dcgm-exporter")
DNS_QUESTION = kubernetes.dns_question("kubernetes.default.svc.gpu.local")
DNS = f"python3 -c {kubernetes.ASK_DNS} 10.96.0.10 53 {DNS_QUESTION}"
_SERVING = "/var/lib/kubelet/pki/kubelet-server-current.pem"
SERVING_ENDS = f"openssl x509 -noout -enddate -checkend 2592000 -in {_SERVING}"
CRIO_PROCESS = "systemctl show crio.service"
SNAPSHOTS = "find /var/lib/etcd-snapshots -name *.tar -newermt -48 hours"
SERVING_SIGNED = f"openssl verify -CAfile /etc/kubernetes/pki/ca.crt {_SERVING}"
BUS = "find -L /sys/bus/pci/devices -maxdepth 2 -name modalias -exec cat {} +"
GPU_ON_BUS = "pci:v000010DEd000025B6sv000010DEsd000014A9bc03sc02i00\n"
SWITCH_ON_BUS = "pci:v000010DEd00001AF4sv000010DEsd0bc06sc80i00\n"
IMAGE = "localhost/gpu-sharing-harness/workload"

INHIBITORS = (
    "NetworkManager 0 root 700 NetworkManager sleep NetworkManager needs to turn off networks delay\n"
    "kubelet 0 root 812 kubelet shutdown Kubelet needs time to handle node shutdown delay\n"
)

VARIABLES: dict[str, Any] = {
    "swap_failsafe_unit": "node-swapoff.service",
    "kernel_sysctls_unit": "node-sysctl.service",
    "preflight_psi_required": True,
    "preflight_gpu_driver_min": "580.65.06",
    "crio_version": "1.35.6",
    "kubernetes_packages_version": "1.35.8",
    "kubernetes_packages_cri_tools_version": "1.35.0",
    "kubernetes_packages_cni_version": "1.8.0",
    "nvidia_toolkit_version": "1.20.0",
    "node_gpu": "required",
    "nvidia_driver_state": "managed",
    "nvidia_driver_version": "580.95.05",
    "nvidia_driver_modules": "auto",
    "nvidia_driver_fabric_manager": "nvidia-fabricmanager",
    "nvidia_toolkit_handler": "nvidia",
    "control_plane_node_name": "controlplane",
    "control_plane_pod_cidr": "10.244.0.0/16",
    "group_names": ["control_plane", "nodes"],
    "proxy_used": True,
    "control_plane_endpoint": "gpu.example.org",
    "control_plane_kubeconfig_users": ["ada"],
    "worker_node_name": "second",
    "device_plugin_sharing": "time-slicing",
    "device_plugin_replicas": 10,
    "device_plugin_smoke": True,
    "workload_image_name": IMAGE,
    "workload_image_tag": "1",
    "inference_namespace_name": "inference",
    "inference_namespace_users": ["ada"],
}

FEATURES = {
    "nvidia.com/gpu.product": "NVIDIA-A16-SHARED",
    "nvidia.com/gpu.memory": "15356",
    "nvidia.com/gpu.count": "2",
    "nvidia.com/gpu.compute.major": "8",
    "nvidia.com/gpu.compute.minor": "6",
}

RUNTIMES = """
[crio.runtime]
default_runtime = "crun"
[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
[crio.runtime.runtimes.runc]
runtime_path = "/usr/libexec/crio/runc"
"""
HANDLER = """
[crio.runtime.runtimes.nvidia]
runtime_path = "/usr/bin/nvidia-container-runtime"
runtime_type = "oci"
monitor_path = "/usr/libexec/crio/conmon"
"""

KUBELET_LIMITS = """
evictionHard: {memory.available: 500Mi, nodefs.available: 5%, nodefs.inodesFree: 4%, imagefs.available: 5%}
imageGCHighThresholdPercent: 85
containerLogMaxSize: 20Mi
containerLogMaxFiles: 3
shutdownGracePeriod: 60s
"""

SYSCTLS = """
# /etc/sysctl.d/10-old.conf
net.ipv4.ip_forward = 0
# /etc/sysctl.d/zz-kubernetes.conf
net.bridge.bridge-nf-call-iptables = 1
net.bridge.bridge-nf-call-ip6tables = 1
net.ipv4.ip_forward = 1
"""

_EXECUTABLES = (
    "/usr/bin/crio",
    "/usr/bin/pinns",
    "/usr/libexec/crio/conmon",
    "/usr/libexec/crio/crun",
    "/usr/libexec/crio/runc",
    "/usr/bin/nvidia-container-runtime",
)


def expected(**changes: Any) -> Expected:
    """What is expected, with some variables changed."""
    return Expected.from_variables({**VARIABLES, **changes})


def asked(service: str, path: str, *, login: bool = True) -> str:
    """The words with which a service of the monitoring is asked."""
    return f"python3 -c {monitoring.ASK} {KEPT} {service} {path} {'login' if login else 'anonymous'}"


def says(body: str, status: int = 200, days: float = 364.0) -> str:
    """What it answers, under a certificate that goes on for so many days."""
    return json.dumps({"status": status, "body": body, "left_s": days * 86_400})


TARGETS = asked("prometheus", monitoring.TARGETS)
UNNAMED = asked("prometheus", monitoring.TARGETS, login=False)
GRAFANA_HEALTH = asked("grafana", monitoring.HEALTH, login=False)
DATASOURCE = asked("grafana", monitoring.DATASOURCE)
GRAFANA_UNNAMED = asked("grafana", monitoring.DATASOURCE, login=False)


def node(machine: FakeMachine, **changes: Any) -> Node:
    """The machine under these expectations."""
    return Node(machine, expected(**changes))


def unit(active: str = "active", enabled: str = "enabled", load: str = "loaded", *, reload: bool = False) -> UnitState:
    """A unit, running unless told otherwise."""
    return UnitState(load, active, "running", enabled, "success", needs_reload=reload, started_at_s=STARTED_S)


def machine() -> FakeMachine:
    """All well."""
    return FakeMachine(
        files=_files(),
        states=_states(),
        units={
            "swap.target": unit("inactive", "masked", "masked"),
            "node-swapoff.service": unit(),
            "node-sysctl.service": unit(),
            "crio.service": unit(),
            "kubelet.service": unit(),
            "node-etcd-snapshot.timer": unit(),
            "nvidia-cdi-refresh.path": unit(),
            "nvidia-persistenced.service": unit(),
            "nvidia-fabricmanager.service": unit(),
            "nvidia-cdi-refresh.service": unit("inactive"),
        },
        installed=_packages(),
        commands={
            "systemd-analyze cat-config sysctl.d": f"{SYSCTLS}# zzz.conf\nnet/ipv4/ip_forward=0\n",
            "systemctl cat node-sysctl.service": "[Service]\nExecStart=/usr/lib/systemd/systemd-sysctl /etc/k.conf\n",
            "systemd-analyze cat-config systemd/logind.conf": "[Login]\nInhibitDelayMaxSec=30\n# zz\nInhibitDelayMaxSec=1min\n",
            "systemd-analyze cat-config systemd/journald.conf": "[Journal]\n#SystemMaxUse=\nSystemMaxUse=1G\n",
            "systemctl show --property=MainPID --value kubelet.service": "812\n",
            "readlink /proc/812/exe": "/usr/bin/kubelet\n",
            "systemd-inhibit --list --no-legend": INHIBITORS,
            "stat %T /sys/fs/cgroup": "cgroup2fs\n",
            "getent passwd ada": "ada:x:1000:1000:Ada:/home/ada:/bin/bash\n",
            "kubeadm certs check-expiration": certificates(),
            "/usr/libexec/crio/crun": "crun version 1.28\ncommit: 1\nspec: 1.0.0\n",
            "/usr/bin/crun": "crun version 1.14.1\n",
            DNS: dns_answer(),
            "kubectl get /readyz": "ok",
            TARGETS: says(targets()),
            UNNAMED: says("Unauthorized", 401),
            GRAFANA_HEALTH: says('{"database": "ok"}'),
            DATASOURCE: says('{"status": "OK"}'),
            GRAFANA_UNNAMED: says('{"message": "Unauthorized"}', 401),
            AUTHORITY_LASTS: "Certificate will not expire\n",
            "kubectl auth can-i create deployments.apps": "yes\n",
            "crictl images": json.dumps({"images": [{"repoTags": [f"{IMAGE}:1"]}, {"repoTags": []}]}),
            BUS: GPU_ON_BUS + SWITCH_ON_BUS,
            " ".join(LIBRARIES): "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05\n",
            CRIO_PROCESS: "77\n",
            "uname -r": "6.14.0-29-generic\n",
            "nvidia-smi -L": "GPU 0: NVIDIA A16 (UUID: GPU-a)\nGPU 1: NVIDIA A16 (UUID: GPU-b)\n",
            "nvidia-smi --query-gpu=persistence_mode --format=csv,noheader": "Enabled\nEnabled\n",
            "nvidia-smi": "Default\nDefault\n",
            "nvidia-smi -i 0": "NVIDIA A16, 15356 MiB, 8.6\n",
            SERVING_ENDS: "notAfter=Nov 24 10:00:00 2027 GMT\nCertificate will not expire\n",
            SERVING_SIGNED: "OK\n",
            SNAPSHOTS: "/var/lib/etcd-snapshots/20261123T030000Z.tar\n/var/lib/etcd-snapshots/20261124T030000Z.tar\n",
        },
        objects=_objects(),
        journals={"crio.service": ["line one", "no conmon"], "kubelet.service": ["cannot start"]},
    )


def worker() -> FakeMachine:
    """All well, on a machine that has joined another's cluster and sees its own node alone."""
    found = machine()
    found.states.pop("/etc/kubernetes/admin.conf")
    found.states["/etc/kubernetes/kubelet.conf"] = FileState("regular file", 0o600, "root", 10.0)
    (node,) = found.objects["nodes"]
    found.objects = {"nodes": [{**node, "metadata": {**node["metadata"], "name": VARIABLES["worker_node_name"]}}]}
    return found


def certificates(days: float = 364.5) -> str:
    """What kubeadm says of the certificates, the one in admin.conf valid for so many days; a missing one has no end."""
    admin = {"name": "admin.conf", "residualTime": int(days * 86400), "externallyManaged": False, "missing": False}
    other = {"name": "super-admin.conf", "residualTime": 0, "externallyManaged": False, "missing": True}
    kept = [{**admin, "name": "apiserver", "residualTime": 31_000_000}, other, admin]
    return f"[check-expiration] Reading configuration from the cluster...\n{json.dumps({'certificates': kept})}\n"


def dns_answer(code: int = 0, addresses: int = 1) -> str:
    """What a DNS server says, in hexadecimal: its header, the question, and so many times 10.96.0.1."""
    answer = bytes.fromhex("c00c000100010000001e0004") + bytes([10, 96, 0, 1])
    header = bytes([0x12, 0x34, 0x81, 0x80 + code, 0, 1, 0, addresses, 0, 0, 0, 0])
    return (header + bytes.fromhex(DNS_QUESTION)[12:] + answer * addresses).hex() + "\n"


def targets(**health: str) -> str:
    """Prometheus's answer about its targets; health: by job, with underscores, where it is not up (absent: no target)."""
    states = {job: health.get(job.replace("-", "_"), "up") for job in JOBS}
    active = [{"labels": {"job": job}, "health": state} for job, state in states.items() if state != "absent"]
    return json.dumps({"status": "success", "data": {"activeTargets": active}})


def _files() -> dict[str, str]:
    return {
        BOOT_ID_PATH: f"{BOOT_ID}\n",
        "/etc/k.conf": SYSCTLS,
        "/etc/kubernetes/admin.conf": "clusters:\n- cluster:\n    server: https://gpu.example.org:6443\n",
        "/etc/kubernetes/kubelet.conf": "clusters:\n- cluster:\n    server: https://gpu.example.org:6443\n",
        "/etc/default/node-proxy": '# ours\nhttp_proxy="http://u:secret@p:3128"\nno_proxy="localhost,.svc"\n',
        "/proc/77/environ": "LANG=C\0http_proxy=http://u:secret@p:3128\0no_proxy=localhost,.svc\0",
        "/proc/swaps": "Filename Type Size Used Priority\n",
        "/etc/fstab": "# a comment\nUUID=1 / ext4 defaults 0 1\n\n# swap is off: /swap.img none swap sw 0 0\n",
        "/proc/filesystems": "nodev\tproc\nnodev\toverlay\n\text4\n",
        "/sys/module/br_netfilter": "",
        "/etc/modules-load.d/kubernetes.conf": "# ours\noverlay\nbr_netfilter\n",
        "/proc/sys/net/bridge/bridge-nf-call-iptables": "1\n",
        "/proc/sys/net/bridge/bridge-nf-call-ip6tables": "1\n",
        "/proc/sys/net/ipv4/ip_forward": "1\n",
        **{f"/proc/pressure/{name}": "some avg10=0.00\nfull avg10=0.00\n" for name in ("cpu", "memory", "io")},
        "/etc/crio/crio.conf.d/10-crio.conf": RUNTIMES,
        "/etc/crio/crio.conf.d/30-nvidia.conf": HANDLER,
        "/etc/cni/net.d/10-calico.conflist": "{}",
        "/etc/cni/net.d/10-crio-bridge.conflist.disabled": "{}",
        "/etc/nvidia-container-runtime/config.toml": (
            '[nvidia-container-runtime]\nruntimes = ["/usr/libexec/crio/crun", "/usr/libexec/crio/runc"]\n'
        ),
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05\n",
        "/etc/modprobe.d/node-nvidia-driver.conf": "blacklist nouveau\n",
        "/var/run/cdi/nvidia.yaml": "kind: nvidia.com/gpu\n",
        "/etc/default/kubelet": "KUBELET_EXTRA_ARGS=--config-dir=/etc/kubernetes/kubelet.conf.d\n",
        "/var/lib/kubelet/config.yaml": "cgroupDriver: systemd\nclusterDNS: [10.96.0.10]\nclusterDomain: gpu.local\n",
        "/etc/kubernetes/kubelet.conf.d/50-housekeeping.conf": KUBELET_LIMITS,
        "/etc/crictl.yaml": "runtime-endpoint: unix:///var/run/crio/crio.sock\n",
    }


def _states() -> dict[str, FileState]:
    return {
        **{path: FileState("regular file", 0o755, "root", 10.0) for path in _EXECUTABLES},
        "/var/run/crio/crio.sock": FileState("socket", 0o660, "root", STARTED_S),
        "/home/ada/.kube/config": FileState("regular file", 0o600, "ada", 10.0),
        "/home/ada/.kube/harness.conf": FileState("regular file", 0o600, "ada", 10.0),
        "/etc/kubernetes/admin.conf": FileState("regular file", 0o600, "root", 10.0),
        **{
            f"{KEPT}/{name}.password": FileState("regular file", 0o600, "root", 10.0)
            for name in ("prometheus", "grafana")
        },
        "/etc/default/node-proxy": FileState("regular file", 0o600, "root", 10.0),
        "/etc/apt/apt.conf.d/90-node-proxy": FileState("regular file", 0o600, "root", 10.0),
    }


def _packages() -> dict[str, PackageState]:
    versions = {
        "kubeadm": "1.35.8-1.1",
        "kubelet": "1.35.8-1.1",
        "kubectl": "1.35.8-1.1",
        "cri-o": "1.35.6-2.1",
        "cri-tools": "1.35.0-1.1",
        "kubernetes-cni": "1.8.0-1.1",
        **dict.fromkeys(NVIDIA_PACKAGES, "1.20.0-1"),
        "nvidia-open": "580.95.05-0ubuntu1",
        "nvidia-fabricmanager": "580.95.05-1",
        **dict.fromkeys(("linux-image-6.14.0-29-generic", "linux-headers-6.14.0-29-generic"), "6.14.0-29.29"),
    }
    return {name: PackageState(version, installed=True, held=True) for name, version in versions.items()}


def named(name: str, **fields: Any) -> dict[str, Any]:
    """A Kubernetes object in namespace `kube-system`."""
    return {"metadata": {"name": name, "namespace": "kube-system"}, **fields}


def labelled(name: str, **fields: Any) -> dict[str, Any]:
    """A node that says that it has a GPU."""
    return {"metadata": {"name": name, "labels": {"nvidia.com/gpu.present": "true", **FEATURES}}, **fields}


def _objects() -> dict[str, list[dict[str, Any]]]:
    info = {"kubeletVersion": "v1.35.8", "containerRuntimeVersion": "cri-o://1.35.6"}
    default = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    available = {"conditions": [{"type": "Available", "status": "True"}]}
    pool = {"cidr": "10.244.0.0/16", "encapsulation": "VXLAN"}
    return {
        "nodes": [
            labelled(
                "controlplane",
                spec={"podCIDR": "10.244.0.0/24"},
                status={
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "nodeInfo": info,
                    "allocatable": {"cpu": "16", "nvidia.com/gpu": "20"},
                },
            )
        ],
        "deployments": [
            named("coredns", spec={"replicas": 2}, status={"readyReplicas": 2}),
            named("grafana", spec={"replicas": 1}, status={"readyReplicas": 1}),
        ],
        "persistentvolumeclaims": [named(name, status={"phase": "Bound"}) for name in ("prometheus", "grafana")],
        "daemonsets": [
            named(name, spec={}, status={"desiredNumberScheduled": 1, "numberReady": 1})
            for name in ("kube-proxy", "device-plugin")
        ],
        "jobs": [named("cuda-smoke-controlplane-1-0", status={"succeeded": 1})],
        "namespaces": [
            named("kube-system"),
            {"metadata": {"name": "inference", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
        ],
        "networkpolicies": [named("replicas")],
        "tigerastatuses.operator.tigera.io": [named("calico", status=available), named("ippools", status=available)],
        "installations.operator.tigera.io": [named("default", spec={"calicoNetwork": {"ipPools": [pool]}})],
        "runtimeclasses": [named("nvidia", handler="nvidia")],
        "storageclasses": [{"metadata": {"name": "local-path", **default}}],
        "nodes.metrics.k8s.io": [named("controlplane", usage={"cpu": "120m", "memory": "1Gi"})],
        "cronjobs": [named("failed-pods", spec={"jobTemplate": {"spec": {"activeDeadlineSeconds": 300}}})],
        "pods": [],
        "configmaps": [named("kube-proxy", data={"config.conf": "mode: iptables"})],
    }
