"""What can be wrong with a node on paper: each with the checks that have to fail of it, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from harness.node.checks.nvidia import LIBRARIES
from harness.node.machine import FileState
from tests.support.fake_machine import FakeMachine
from tests.unit.node.healthy import (
    AUTHORITY_LASTS,
    BUS,
    DATASOURCE,
    DNS,
    GPU_ON_BUS,
    GRAFANA_HEALTH,
    GRAFANA_UNNAMED,
    IMAGE,
    KEPT,
    KUBELET_LIMITS,
    SERVING_ENDS,
    SERVING_SIGNED,
    SNAPSHOTS,
    STARTED_S,
    SYSCTLS,
    TARGETS,
    UNNAMED,
    certificates,
    dns_answer,
    named,
    says,
    targets,
    unit,
)

Break = Callable[[FakeMachine], object]
DROP_IN = "/etc/crio/crio.conf.d/30-nvidia.conf"
LEFTOVER = """
[crio.runtime]
default_runtime = "nvidia"
[crio.runtime.runtimes.nvidia]
runtime_path = "/usr/local/nvidia/toolkit/{}"
"""
"""What the GPU operator's toolkit writes, for a runtime that went with it."""
TOOLKIT = "/etc/nvidia-container-runtime/config.toml"
KUBELET = "/var/lib/kubelet/config.yaml"
LIMITS = "/etc/kubernetes/kubelet.conf.d/50-housekeeping.conf"


def write(path: str, text: str) -> Break:
    return lambda paper: paper.files.update({path: text})


def remove(path: str) -> Break:
    return lambda paper: (paper.files.pop(path, None), paper.states.pop(path, None))


def state(path: str, **changes: Any) -> Break:
    return lambda paper: paper.states.update({path: replace(paper.states[path], **changes)})


def units(name: str, *arguments: str, reload: bool = False) -> Break:
    return lambda paper: paper.units.update({name: unit(*arguments, reload=reload)})


def package(name: str, **changes: Any) -> Break:
    return lambda paper: paper.installed.update({name: replace(paper.installed[name], **changes)})


def objects(kind: str, *items: dict[str, Any]) -> Break:
    return lambda paper: paper.objects.update({kind: list(items)})


def command(words: str, said: str | None = None) -> Break:
    """The command says this, or is not there."""
    return lambda paper: paper.commands.pop(words) if said is None else paper.commands.update({words: said})


def another(kind: str, item: dict[str, Any]) -> Break:
    return lambda paper: paper.objects[kind].append(item)


def fewer(kind: str) -> Break:
    return lambda paper: paper.objects[kind].pop()


def changed(kind: str, position: int, **changes: Any) -> Break:
    return lambda paper: paper.objects[kind][position].update(changes)


def node_object(**spec_or_status: Any) -> Break:
    def change(paper: FakeMachine) -> None:
        item = paper.objects["nodes"][0]
        for part, values in spec_or_status.items():
            item[part] = {**item[part], **values}

    return change


FAULTS: dict[str, tuple[Break, set[str]]] = {
    "a profile to measure on is left": (write("/etc/node-profile.json", "{}"), {"profile/undone"}),
    "another driver is still loaded": (
        write("/proc/driver/nvidia/version", "NVIDIA UNIX Open Kernel Module for x86_64  590.44.01\n"),
        {"driver/version", "nvidia/library"},
    ),
    "the modules are of the other kind": (
        write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05\n"),
        {"driver/modules"},
    ),
    "a GPU of a generation without open modules": (
        command(BUS, GPU_ON_BUS.replace("25B6", "1DB4")),
        {"driver/modules", "driver/held"},
    ),
    "nouveau is loaded": (write("/sys/module/nouveau", ""), {"driver/nouveau"}),
    "nouveau may come back": (remove("/etc/modprobe.d/node-nvidia-driver.conf"), {"driver/nouveau"}),
    "the driver is not held": (package("nvidia-open", held=False), {"driver/held"}),
    "its kernel is not held": (package("linux-image-6.14.0-29-generic", held=False), {"driver/held"}),
    "Fabric Manager is of another version": (package("nvidia-fabricmanager", version="590.44.01-1"), {"driver/held"}),
    "the persistence daemon is off": (units("nvidia-persistenced.service", "inactive"), {"driver/persistence"}),
    "Fabric Manager is off": (units("nvidia-fabricmanager.service", "failed"), {"driver/fabric-manager"}),
    "a swap file is on": (write("/proc/swaps", "Filename Type Size\n/swap.img file 1\n"), {"swap/now"}),
    "zram swap is on": (write("/proc/swaps", "Filename\tType\n/dev/zram0 partition 1\n"), {"swap/now"}),
    "fstab brings swap back": (
        write("/etc/fstab", "UUID=1 / ext4 defaults 0 1\n/swap.img\tnone\tswap\tsw 0 0\n"),
        {"swap/fstab"},
    ),
    "swap.target can be started": (units("swap.target", "inactive", "static"), {"swap/target-masked"}),
    "the failsafe is not enabled": (units("node-swapoff.service", "active", "disabled"), {"swap/failsafe"}),
    "the failsafe failed": (units("node-swapoff.service", "failed"), {"swap/failsafe"}),
    "the failsafe is gone": (lambda paper: paper.units.pop("node-swapoff.service"), {"swap/failsafe"}),
    "fstab repeats a line with other spacing": (
        write("/etc/fstab", "UUID=1 / ext4 defaults 0 1\nUUID=1  /  ext4\tdefaults 0 1\n"),
        {"fstab/no-duplicates"},
    ),
    "a module is not loaded": (remove("/sys/module/br_netfilter"), {"kernel/modules-now"}),
    "a module is only commented for boot": (
        write("/etc/modules-load.d/kubernetes.conf", "overlay\n#br_netfilter\n"),
        {"kernel/modules-at-boot"},
    ),
    "modules are listed in a file that is not read": (
        lambda paper: paper.files.update(
            {"/etc/modules-load.d/x.bak": paper.files.pop("/etc/modules-load.d/kubernetes.conf")}
        ),
        {"kernel/modules-at-boot"},
    ),
    "forwarding is off now": (write("/proc/sys/net/ipv4/ip_forward", "0\n"), {"kernel/sysctls-now"}),
    "the bridge module gives no keys": (remove("/proc/sys/net/bridge/bridge-nf-call-iptables"), {"kernel/sysctls-now"}),
    "a later file turns forwarding off at boot, and no unit comes after it": (
        units("node-sysctl.service", "active", "disabled"),
        {"kernel/sysctls-at-boot"},
    ),
    "the unit that comes last turns forwarding off": (
        write("/etc/k.conf", SYSCTLS.replace("forward = 1", "forward = 0")),
        {"kernel/sysctls-at-boot"},
    ),
    "pressure is not readable": (remove("/proc/pressure/io"), {"kernel/psi"}),
    "pressure is switched off": (write("/proc/pressure/cpu", ""), {"kernel/psi"}),
    "cgroup version 1": (command("stat %T /sys/fs/cgroup", "tmpfs\n"), {"kernel/cgroup"}),
    "another patch version": (package("kubelet", version="1.35.80-1.1"), {"packages/versions"}),
    "a package is not held": (package("kubeadm", held=False), {"packages/versions"}),
    "a package is half-installed": (package("cri-o", installed=False), {"packages/versions"}),
    "a package is absent": (lambda paper: paper.installed.pop("cri-tools"), {"packages/versions"}),
    "installed but no binary": (remove("/usr/bin/crio"), {"crio/files"}),
    "conmon is no executable": (state("/usr/libexec/crio/conmon", mode=0o644), {"crio/files", "nvidia/handler"}),
    "crio is down": (units("crio.service", "failed"), {"crio/service"}),
    "crio does not come back at boot": (units("crio.service", "active", "disabled"), {"crio/service"}),
    "systemd has not read the unit": (units("crio.service", reload=True), {"crio/service"}),
    "a drop-in is younger than the process": (
        lambda paper: paper.states.update({DROP_IN: FileState("regular file", 0o644, "root", STARTED_S + 60)}),
        {"crio/current"},
    ),
    "the binary is younger than the process": (state("/usr/bin/crio", changed_at_s=STARTED_S + 60), {"crio/current"}),
    "crio has another proxy": (
        write("/proc/77/environ", "http_proxy=http://p:1\0no_proxy=localhost,.svc\0"),
        {"crio/proxy"},
    ),
    "everybody reads the proxy's password": (state("/etc/default/node-proxy", mode=0o644), {"crio/proxy"}),
    "apt has no proxy": (remove("/etc/apt/apt.conf.d/90-node-proxy"), {"crio/proxy"}),
    "the kubeconfigs name the machine": (
        write("/etc/kubernetes/admin.conf", "server: https://192.0.2.10:6443\n"),
        {"kubernetes/endpoint"},
    ),
    "no socket": (remove("/var/run/crio/crio.sock"), {"crio/socket"}),
    "the socket is a file": (state("/var/run/crio/crio.sock", kind="regular file"), {"crio/socket"}),
    "a backup among the drop-ins": (write("/etc/crio/crio.conf.d/10-crio.conf.bak", ""), {"crio/no-strays"}),
    "Debian's own crun in the place of CRI-O's": (
        write("/etc/crio/crio.conf.d/99-x.conf", '[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\n'),
        {"crio/runtimes"},
    ),
    "a crun of no known version": (
        command("/usr/libexec/crio/crun", "\n"),
        {"crio/runtimes", "nvidia/low-level-runtimes"},
    ),
    "the toolkit is told to start Debian's own crun": (
        lambda paper: (
            paper.files.update({TOOLKIT: '[nvidia-container-runtime]\nruntimes = ["/usr/bin/crun"]\n'}),
            paper.states.update({"/usr/bin/crun": FileState("regular file", 0o755, "root", 10.0)}),
        ),
        {"nvidia/low-level-runtimes"},
    ),
    "the bridge comes before Calico": (write("/etc/cni/net.d/10-crio-bridge.conflist", "{}"), {"crio/cni"}),
    "no driver where one is required": (
        remove("/proc/driver/nvidia/version"),
        {"nvidia/driver", "driver/version", "driver/modules"},
    ),
    "a driver that is too old for torch": (
        write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Open Kernel Module  575.57.08  x\n"),
        {"nvidia/driver", "nvidia/library", "driver/version"},
    ),
    "the toolkit is not held": (package("nvidia-container-toolkit", held=False), {"nvidia/packages"}),
    "no handler": (remove(DROP_IN), {"nvidia/handler"}),
    "a handler without monitor_path": (
        write(DROP_IN, '[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n'),
        {"nvidia/handler"},
    ),
    "a drop-in that is not TOML": (write(DROP_IN, "[crio"), {"crio/runtimes", "nvidia/handler", "nvidia/not-default"}),
    "an older toolkit has left its files": (
        lambda paper: paper.files.update(
            {f"/etc/crio/crio.conf.d/99-nvidia.{kind}": LEFTOVER.format(kind) for kind in ("conf", "toml")}
        ),
        {"crio/no-strays", "nvidia/handler", "nvidia/not-default"},
    ),
    "the driver was upgraded and not loaded": (
        command(" ".join(LIBRARIES), "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.105.08\n"),
        {"nvidia/library"},
    ),
    "nvidia is the default runtime": (
        write("/etc/crio/crio.conf.d/99-x.conf", '[crio.runtime]\ndefault_runtime = "nvidia"\n'),
        {"nvidia/not-default"},
    ),
    "runtimes by name": (
        write(TOOLKIT, '[nvidia-container-runtime]\nruntimes = ["runc"]\n'),
        {"nvidia/low-level-runtimes"},
    ),
    "a runtime that is not there": (remove("/usr/libexec/crio/runc"), {"crio/files", "nvidia/low-level-runtimes"}),
    "the refresh is not enabled": (units("nvidia-cdi-refresh.path", "active", "disabled"), {"nvidia/cdi-refresh"}),
    "a second description of the devices": (write("/etc/cdi/nvidia.yaml", "old"), {"nvidia/cdi-refresh"}),
    "no description of the devices": (remove("/var/run/cdi/nvidia.yaml"), {"nvidia/cdi"}),
    "the kubelet is down": (units("kubelet.service", "activating"), {"kubernetes/kubelet"}),
    "another cgroup driver": (
        lambda paper: paper.files.update(
            {path: text.replace("systemd", "cgroupfs") for path, text in paper.files.items() if path == KUBELET}
        ),
        {"kubernetes/cgroup-driver"},
    ),
    "CoreDNS does not answer": (command(DNS), {"kubernetes/dns"}),
    "CoreDNS knows no name": (command(DNS, dns_answer(3, 0)), {"kubernetes/dns"}),
    "CoreDNS gives no address": (command(DNS, dns_answer(0, 0)), {"kubernetes/dns"}),
    "pods have no DNS server": (write(KUBELET, "cgroupDriver: systemd\n"), {"kubernetes/dns"}),
    "crictl asks another runtime": (
        write("/etc/crictl.yaml", "runtime-endpoint: unix:///run/containerd/containerd.sock\n"),
        {"kubernetes/crictl"},
    ),
    "a partial eviction list": (
        write(LIMITS, KUBELET_LIMITS.replace("imagefs.available: 5%", "")),
        {"housekeeping/eviction"},
    ),
    "pods are evicted before images are collected": (
        write(LIMITS, KUBELET_LIMITS.replace("imagefs.available: 5%", "imagefs.available: 15%")),
        {"housekeeping/images"},
    ),
    "the kubelet is not told of its drop-ins": (
        remove("/etc/default/kubelet"),
        {"housekeeping/images", "housekeeping/logs", "housekeeping/shutdown"},
    ),
    "the journal has no limit": (
        command("systemd-analyze cat-config systemd/journald.conf", "#SystemMaxUse=\n"),
        {"housekeeping/logs"},
    ),
    "no graceful shutdown": (write(LIMITS, KUBELET_LIMITS.replace("60s", "0s")), {"housekeeping/shutdown"}),
    "logind cuts the shutdown short": (
        command(
            "systemd-analyze cat-config systemd/logind.conf", "InhibitDelayMaxSec=60\n# u\nInhibitDelayMaxSec=30\n"
        ),
        {"housekeeping/shutdown"},
    ),
    "logind has its default": (
        command("systemd-analyze cat-config systemd/logind.conf", "#InhibitDelayMaxSec=5\n"),
        {"housekeeping/shutdown"},
    ),
    "the kubelet has no lock on a shutdown": (
        command("systemd-inhibit --list --no-legend", "NetworkManager 0 root 700 NetworkManager sleep x delay\n"),
        {"housekeeping/inhibitor"},
    ),
    "the kubeconfig belongs to root": (state("/home/ada/.kube/config", owner="root"), {"kubeconfig/users"}),
    "the kubeconfig is open": (state("/home/ada/.kube/config", mode=0o644), {"kubeconfig/users"}),
    "no kubeconfig": (remove("/home/ada/.kube/config"), {"kubeconfig/users"}),
    "the administrator's kubeconfig is open": (
        state("/etc/kubernetes/admin.conf", mode=0o640),
        {"kubeconfig/administrator"},
    ),
    "a certificate ends in seven weeks": (
        command("kubeadm certs check-expiration", certificates(days=49)),
        {"kubernetes/certificates"},
    ),
    "a certificate has ended": (
        command("kubeadm certs check-expiration", certificates(days=-3)),
        {"kubernetes/certificates"},
    ),
    "kubeadm says nothing of certificates": (
        command("kubeadm certs check-expiration", "\n"),
        {"kubernetes/certificates"},
    ),
    "the API is not ready": (command("kubectl get /readyz", "[-]etcd failed"), {"cluster/api"}),
    "the node is not ready": (
        node_object(status={"conditions": [{"type": "Ready", "status": "False", "message": "no network"}]}),
        {"cluster/node-ready"},
    ),
    "the node is tainted": (
        node_object(spec={"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]}),
        {"cluster/schedulable"},
    ),
    "the node is cordoned": (node_object(spec={"unschedulable": True}), {"cluster/schedulable"}),
    "the kubelet runs another version than is installed": (
        node_object(status={"nodeInfo": {"kubeletVersion": "v1.34.1", "containerRuntimeVersion": "cri-o://1.35.6"}}),
        {"cluster/versions"},
    ),
    "the node has another pod network": (node_object(spec={"podCIDR": "192.168.0.0/24"}), {"cluster/pod-network"}),
    "the node has no pod network": (node_object(spec={"podCIDR": "absent"}), {"cluster/pod-network"}),
    "the node has another name": (
        objects("nodes", named("ubuntu", spec={}, status={})),
        {"cluster/node-ready", "cluster/schedulable", "cluster/versions", "cluster/pod-network"}
        | {"gpu/label", "gpu/features", "gpu/slices"},
    ),
    "a pod of a Deployment is missing": (
        changed("deployments", 0, status={"readyReplicas": 1}),
        {"cluster/system-pods"},
    ),
    "a DaemonSet has no pods": (
        another("daemonsets", named("calico-node", spec={}, status={"desiredNumberScheduled": 1})),
        {"cluster/system-pods"},
    ),
    "Calico is not available": (
        objects(
            "tigerastatuses.operator.tigera.io",
            named("calico", status={"conditions": [{"type": "Available", "status": "False", "message": "x"}]}),
        ),
        {"calico/available"},
    ),
    "a part of Calico is degraded": (
        another(
            "tigerastatuses.operator.tigera.io",
            named("ippools", status={"conditions": [{"type": "Degraded", "status": "True"}]}),
        ),
        {"calico/available"},
    ),
    "Calico is not there": (objects("tigerastatuses.operator.tigera.io"), {"calico/available"}),
    "Calico routes another network": (
        objects(
            "installations.operator.tigera.io",
            named("default", spec={"calicoNetwork": {"ipPools": [{"cidr": "10.244.0.0/16", "encapsulation": "IPIP"}]}}),
        ),
        {"calico/pool"},
    ),
    "no runtime class": (objects("runtimeclasses"), {"runtime-class/nvidia"}),
    "a runtime class for another handler": (
        objects("runtimeclasses", named("nvidia", handler="runc")),
        {"runtime-class/nvidia"},
    ),
    "no default StorageClass": (
        objects("storageclasses", {"metadata": {"name": "local-path"}}),
        {"storage/default-class"},
    ),
    "two default StorageClasses": (
        lambda paper: paper.objects["storageclasses"].append(
            {"metadata": {**paper.objects["storageclasses"][0]["metadata"], "name": "second"}}
        ),
        {"storage/default-class"},
    ),
    "no metrics": (objects("nodes.metrics.k8s.io"), {"metrics-server/answers"}),
    "no clean-up": (objects("cronjobs"), {"housekeeping/failed-pods"}),
    "a clean-up without a limit": (
        objects("cronjobs", named("failed-pods", spec={"jobTemplate": {"spec": {}}})),
        {"housekeeping/failed-pods"},
    ),
    "evicted pods pile up": (
        objects("pods", *[named(f"pod-{number}") for number in range(100)]),
        {"housekeeping/failed-pods"},
    ),
    "a node with a GPU has no label": (
        lambda paper: paper.objects["nodes"][0]["metadata"].pop("labels"),
        {"gpu/label", "gpu/features"},
    ),
    "the plugin advertises whole GPUs": (
        node_object(status={"allocatable": {"cpu": "16", "nvidia.com/gpu": "2"}}),
        {"gpu/slices"},
    ),
    "no GPU is advertised": (node_object(status={"allocatable": {"cpu": "16"}}), {"gpu/slices"}),
    "another GPU was found": (
        command("nvidia-smi -L", "GPU 0: NVIDIA A16 (UUID: GPU-a)\n"),
        {"gpu/slices", "gpu/features"},
    ),
    "a GPU sleeps between its users": (
        command("nvidia-smi --query-gpu=persistence_mode --format=csv,noheader", "Enabled\nDisabled\n"),
        {"nvidia/persistence"},
    ),
    "a GPU takes one process alone": (command("nvidia-smi", "Default\nExclusive_Process\n"), {"gpu/compute-mode"}),
    "the device plugin is gone": (fewer("daemonsets"), {"gpu/device-plugin"}),
    "the device plugin fits no node": (
        changed("daemonsets", -1, status={"desiredNumberScheduled": 0}),
        {"gpu/device-plugin"},
    ),
    "another GPU is in its place": (command("nvidia-smi -i 0", "NVIDIA H200, 143771 MiB, 9.0"), {"gpu/features"}),
    "the node does not say which GPU it has": (
        lambda paper: paper.objects["nodes"][0]["metadata"]["labels"].pop("nvidia.com/gpu.product"),
        {"gpu/features"},
    ),
    "an MPS server is left": (
        another(
            "daemonsets", named("mps-control-daemon", spec={}, status={"desiredNumberScheduled": 1, "numberReady": 1})
        ),
        {"gpu/mps"},
    ),
    "no CUDA kernel was tried": (objects("jobs"), {"gpu/cuda-smoke"}),
    "a CUDA kernel failed": (
        objects("jobs", named("cuda-smoke-a", status={"succeeded": 1}), named("cuda-smoke-b", status={"failed": 3})),
        {"gpu/cuda-smoke"},
    ),
    "Prometheus waits for its volume": (
        changed("persistentvolumeclaims", 0, status={"phase": "Pending"}),
        {"monitoring/volumes"},
    ),
    "Grafana has no volume": (fewer("persistentvolumeclaims"), {"monitoring/volumes"}),
    "an exporter does not answer": (command(TARGETS, says(targets(node_exporter="down"))), {"monitoring/targets"}),
    "the GPUs' exporter has no pod": (command(TARGETS, says(targets(dcgm_exporter="absent"))), {"monitoring/targets"}),
    "Prometheus does not answer": (
        lambda paper: [paper.commands.pop(words) for words in (TARGETS, UNNAMED)],
        {"monitoring/targets", "monitoring/certificates", "monitoring/login"},
    ),
    "Prometheus says something else": (command(TARGETS, says('{"status": "error"}')), {"monitoring/targets"}),
    "Prometheus answers everybody": (command(UNNAMED, says(targets())), {"monitoring/login"}),
    "Prometheus does not know its login": (
        command(TARGETS, says("Unauthorized", 401)),
        {"monitoring/targets", "monitoring/login"},
    ),
    "Grafana answers everybody": (command(GRAFANA_UNNAMED, says('{"status": "OK"}')), {"monitoring/login"}),
    "everybody reads a password": (
        lambda paper: paper.states.update(
            {f"{KEPT}/prometheus.password": FileState("regular file", 0o644, "root", 10.0)}
        ),
        {"monitoring/login"},
    ),
    "Grafana has lost its database": (command(GRAFANA_HEALTH, says('{"database": "failing"}')), {"monitoring/grafana"}),
    "Grafana does not reach Prometheus": (
        command(DATASOURCE, says('{"status": "ERROR"}', 400)),
        {"monitoring/grafana"},
    ),
    "Grafana says something else": (command(GRAFANA_HEALTH, says("<html>")), {"monitoring/grafana"}),
    "a certificate of the monitoring ends": (
        command(UNNAMED, says("Unauthorized", 401, days=29.0)),
        {"monitoring/certificates"},
    ),
    "the authority of the monitoring ends": (command(AUTHORITY_LASTS), {"monitoring/certificates"}),
    "the kubelet's certificate ends": (command(SERVING_ENDS), {"kubernetes/serving-certificate"}),
    "the kubelet signed its certificate itself": (command(SERVING_SIGNED), {"kubernetes/serving-certificate"}),
    "no snapshot is young": (command(SNAPSHOTS, ""), {"etcd/snapshot"}),
    "no further snapshot is taken": (units("node-etcd-snapshot.timer", "inactive"), {"etcd/snapshot"}),
    "the workload image is another version's": (
        command("crictl images", json.dumps({"images": [{"repoTags": [f"{IMAGE}:0"]}]})),
        {"workloads/image"},
    ),
    "no list of images": (command("crictl images", "{}"), {"workloads/image"}),
    "replicas have no namespace": (fewer("namespaces"), {"workloads/namespace"}),
    "replicas may be privileged": (
        lambda paper: paper.objects["namespaces"][-1]["metadata"].update(labels={}),
        {"workloads/namespace"},
    ),
    "everybody may come in to the replicas": (objects("networkpolicies"), {"workloads/namespace"}),
    "everybody can read the harness's kubeconfig": (
        state("/home/ada/.kube/harness.conf", mode=0o644),
        {"workloads/account"},
    ),
    "the harness has no kubeconfig": (remove("/home/ada/.kube/harness.conf"), {"workloads/account"}),
    "the harness is not let in": (command("kubectl auth can-i create deployments.apps", "no\n"), {"workloads/account"}),
}
