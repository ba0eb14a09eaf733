"""Every check against a node on paper: well, it passes; with one fault, exactly the checks for that fault fail."""

from __future__ import annotations

import subprocess
import threading
from typing import Any

import pytest

from harness.node.checks import kubernetes, registered
from harness.node.checks.registry import CONTROL_PLANE, WORKER
from harness.node.machine import CommandOutput, PackageState
from harness.node.verify import NodeVerdict, judge
from tests.node.mirror.recorders import service_dns
from tests.support.fake_machine import FakeMachine
from tests.unit.ansible.tree import module
from tests.unit.node.faults import FAULTS, Break, node_object, remove, state, write
from tests.unit.node.healthy import (
    BOOT_ID,
    BUS,
    DATASOURCE,
    GPU_ON_BUS,
    GRAFANA_HEALTH,
    GRAFANA_UNNAMED,
    SWITCH_ON_BUS,
    TARGETS,
    machine,
    named,
    node,
    targets,
    unit,
    worker,
)

# What is asked of a machine to measure on alone is in test_profile.py.
EVERYWHERE = [check for check in registered() if check.area != "profile" or check.name == "profile/undone"]
HERE = [check for check in EVERYWHERE if CONTROL_PLANE in check.kinds]
ON_A_WORKER = [check for check in EVERYWHERE if WORKER in check.kinds]


WORKER_FAULTS: dict[str, tuple[Break, set[str]]] = {
    "the worker has not joined": (
        remove("/etc/kubernetes/kubelet.conf"),
        {"worker/credentials", "kubernetes/endpoint"},
    ),
    "everybody can read the worker's credentials": (
        state("/etc/kubernetes/kubelet.conf", mode=0o644),
        {"worker/credentials"},
    ),
    "the token stays on the worker": (write("/etc/kubernetes/kubeadm-join.yaml", "token"), {"worker/credentials"}),
    "the worker is not ready": (
        node_object(status={"conditions": [{"type": "Ready", "status": "Unknown", "message": "silent"}]}),
        {"cluster/node-ready"},
    ),
}


def verdict(paper: FakeMachine, **changes: Any) -> NodeVerdict:
    return judge("n", node(paper, **changes), HERE)


def worker_verdict(paper: FakeMachine) -> NodeVerdict:
    return judge("n", node(paper, group_names=["nodes", "workers"]), EVERYWHERE)


def test_a_healthy_node_passes_every_check() -> None:
    found = verdict(machine())
    assert [str(check) for check in found.failed] == []
    assert found.not_applicable == []
    assert found.ok
    assert {check.name for check in found.checks} == {check.name for check in HERE}
    assert found.boot_id == BOOT_ID


@pytest.mark.parametrize(
    ("faults", "fault"), [(faults, fault) for faults in (FAULTS, WORKER_FAULTS) for fault in faults]
)
def test_a_fault_fails_its_checks_and_no_other(faults: dict[str, Any], fault: str) -> None:
    break_it, wanted = faults[fault]
    paper, judged = (machine(), verdict) if faults is FAULTS else (worker(), worker_verdict)
    break_it(paper)
    found = judged(paper)
    assert {check.name for check in found.failed} == wanted, "\n".join(map(str, found.failed))
    assert not found.ok
    assert all(check.advice and check.expected and check.found for check in found.failed)


def test_every_check_has_a_fault_that_fails_it() -> None:
    covered = set().union(*(names for _, names in [*FAULTS.values(), *WORKER_FAULTS.values()]))
    assert {check.name for check in EVERYWHERE} - covered == set()


def test_names_are_unique_and_have_an_area() -> None:
    names = [check.name for check in registered()]
    assert len(set(names)) == len(names)
    assert all(name.count("/") == 1 for name in names)


def test_nothing_passes_on_an_empty_machine_but_what_is_about_absence() -> None:
    found = verdict(FakeMachine())
    passed = {check.name for check in found.checks if check.ok}
    assert passed == {"swap/fstab", "fstab/no-duplicates", "crio/cni", "nvidia/not-default", "profile/undone"}


def test_of_two_leftovers_the_one_that_wins_is_named() -> None:
    paper = machine()
    FAULTS["an older toolkit has left its files"][0](paper)
    seen = {check.name: check.found for check in verdict(paper).failed}
    for name in ("nvidia/handler", "nvidia/not-default"):
        assert ", said by 99-nvidia.toml, which is read after " in seen[name]
        assert "99-nvidia.conf" in seen[name]
    assert "toolkit/toml" in seen["nvidia/handler"]


def test_a_failed_check_brings_its_units_journal() -> None:
    paper = machine()
    paper.units["crio.service"] = unit("failed")
    (failed,) = verdict(paper).failed
    assert failed.journal == ["line one", "no conmon"]
    assert "  | no conmon" in str(failed)


def test_a_check_that_cannot_look_fails_with_what_it_met() -> None:
    paper = machine()
    paper.objects.pop("runtimeclasses")
    (failed,) = verdict(paper).failed
    assert failed.name == "runtime-class/nvidia"
    assert failed.found == "`kubectl get runtimeclasses` ended with 127 and said: kubectl: nothing prepared for this"


@pytest.mark.parametrize("answer", ["", "not json", "{}", "[]"])
def test_an_answer_that_is_no_list_fails(answer: str) -> None:
    paper = machine()
    paper.objects.pop("runtimeclasses")
    paper.commands["kubectl get runtimeclasses"] = answer
    assert [check.name for check in verdict(paper).failed] == ["runtime-class/nvidia"]


@pytest.mark.parametrize(
    ("changes", "remove_driver", "reason"),
    [
        ({"node_gpu": "absent"}, False, "node_gpu: absent"),
        ({"node_gpu": "auto"}, True, "node_gpu: auto"),
    ],
)
def test_a_node_without_a_gpu_is_not_judged_by_it(changes: dict[str, Any], remove_driver: bool, reason: str) -> None:
    paper = machine()
    if remove_driver:
        remove("/proc/driver/nvidia/version")(paper)
        paper.commands[BUS] = ""
    found = verdict(paper, **changes)
    assert found.ok
    assert {each.name for each in found.not_applicable} == {
        check.name for check in registered() if check.area in {"nvidia", "driver", "gpu"}
    }
    assert all(reason in each.reason for each in found.not_applicable)


def test_a_gpu_that_lost_its_driver_fails_where_none_is_required_either() -> None:
    paper = machine()
    remove("/proc/driver/nvidia/version")(paper)
    paper.commands[BUS] = "pci:v00008086d00000D57sv0sd0bc03sc00i00\n" + SWITCH_ON_BUS
    given = {"node_gpu": "auto", "nvidia_driver_state": "present"}
    assert verdict(paper, **given).ok
    paper.commands[BUS] += GPU_ON_BUS
    assert [each.name for each in verdict(paper, **given).failed] == ["nvidia/driver"]


def test_an_assumed_gpu_is_set_up_and_not_looked_for() -> None:
    paper = machine()
    remove("/proc/driver/nvidia/version")(paper)
    remove("/var/run/cdi/nvidia.yaml")(paper)
    found = verdict(paper, node_gpu="assumed", device_plugin_gpus_assumed=2, nvidia_driver_state="present")
    assert [str(check) for check in found.failed] == []
    drivers = {check.name for check in registered() if check.area == "driver"}
    assert {each.name for each in found.not_applicable} == drivers | {
        "nvidia/driver",
        "nvidia/library",
        "nvidia/cdi",
        "nvidia/persistence",
        "gpu/compute-mode",
        "gpu/features",
    }


def test_without_a_gpu_prometheus_needs_no_job_for_it() -> None:
    paper = machine()
    paper.commands[f"kubectl get {TARGETS}"] = targets(dcgm_exporter="absent")
    assert verdict(paper, node_gpu="absent").ok


@pytest.mark.parametrize(
    ("sharing", "replicas", "allocatable", "modes"),
    [("exclusive", 1, 2, "Default\nDefault\n"), ("mps", 4, 8, "Exclusive_Process\nExclusive_Process\n")],
)
def test_slices_servers_and_compute_mode_follow_the_way_of_sharing(
    sharing: str, replicas: int, allocatable: int, modes: str
) -> None:
    paper = machine()
    paper.objects["nodes"][0]["status"]["allocatable"] = {"nvidia.com/gpu": str(allocatable)}
    paper.commands["nvidia-smi"] = modes
    if sharing == "exclusive":
        paper.objects["nodes"][0]["metadata"]["labels"]["nvidia.com/gpu.product"] = "NVIDIA-A16"
    status = {"desiredNumberScheduled": 1, "numberReady": 1}
    paper.objects["daemonsets"] += [named("mps-control-daemon", spec={}, status=status)] if sharing == "mps" else []
    found = verdict(paper, device_plugin_sharing=sharing, device_plugin_replicas=replicas)
    assert [str(check) for check in found.failed] == []


def test_a_node_is_judged_by_its_own_way_of_sharing_beside_nodes_with_others() -> None:
    paper = machine()
    paper.objects["nodes"][0]["status"]["allocatable"] = {"nvidia.com/gpu": "8"}
    paper.commands["nvidia-smi"] = "Exclusive_Process\nExclusive_Process\n"
    status = {"desiredNumberScheduled": 1, "numberReady": 1}
    paper.objects["daemonsets"] += [
        named(f"{name}-mps-4", spec={}, status=status) for name in ("mps-control-daemon", "device-plugin")
    ]
    found = verdict(paper, device_plugin_sharing_of={"controlplane": "mps:4"})
    assert [str(check) for check in found.failed] == []
    other = verdict(paper, device_plugin_sharing_of={"second": "mps:4"})
    assert [check.name for check in other.failed] == ["gpu/slices", "gpu/compute-mode"]


@pytest.mark.parametrize(
    ("listed", "slices", "plugin", "failed"),
    [
        (2, 0, False, []),
        (1, 0, False, ["gpu/slices"]),
        (2, 20, True, ["gpu/features", "gpu/slices", "gpu/device-plugin"]),
    ],
)
def test_claims_lend_every_gpu_and_nothing_else_does(listed: int, slices: int, plugin: bool, failed: list[str]) -> None:
    paper = machine()
    paper.objects["nodes"][0]["status"]["allocatable"] = {"nvidia.com/gpu": str(slices)}
    status = {"desiredNumberScheduled": 1, "numberReady": 1}
    kept = [one for one in paper.objects["daemonsets"] if plugin or one["metadata"]["name"] != "device-plugin"]
    paper.objects["daemonsets"] = [*kept, named("dra-driver", spec={}, status=status)]
    pool = {"name": "controlplane", "generation": 2}
    labels = paper.objects["nodes"][0]["metadata"]["labels"]
    for name in [name for name in labels if name != "nvidia.com/gpu.present" and not plugin]:
        labels.pop(name)
    spec = {"driver": "gpu.nvidia.com", "nodeName": "controlplane", "devices": [{"name": "gpu-0"}]}
    old = [{"spec": {**spec, "pool": {**pool, "generation": 1}}}]
    paper.objects["resourceslices"] = [*old, *([{"spec": {**spec, "pool": pool}}] * listed)]
    found = verdict(paper, dra_driver_state="present")
    assert [check.name for check in found.failed] == failed
    assert [check.name for check in found.not_applicable] == ["gpu/compute-mode"]


def test_a_divided_gpu_hands_out_its_instances() -> None:
    paper = machine()
    instances = "".join(f"  MIG 3g.20gb Device {index}: (UUID: MIG-{index})\n" for index in range(2))
    paper.commands["nvidia-smi -L"] = f"GPU 0: NVIDIA A100 (UUID: GPU-a)\n{instances}GPU 1: NVIDIA A16 (UUID: GPU-b)\n"
    paper.objects["nodes"][0]["status"]["allocatable"] = {"nvidia.com/gpu": "10", "nvidia.com/mig-3g.20gb": "20"}
    assert [str(check) for check in verdict(paper).failed] == []


@pytest.mark.parametrize(("profiles", "failed"), [(["3g.20gb"] * 2, []), (["1g.5gb"] * 7, ["gpu/slices"])])
def test_instances_that_are_asked_for_have_to_be_there(profiles: list[str], failed: list[str]) -> None:
    paper = machine()
    instances = "".join(f"  MIG 3g.20gb Device {index}: (UUID: MIG-{index})\n" for index in range(2))
    paper.commands["nvidia-smi -L"] = f"GPU 0: NVIDIA A100 (UUID: GPU-a)\n{instances}"
    paper.objects["nodes"][0]["metadata"]["labels"]["nvidia.com/gpu.count"] = "1"
    paper.objects["nodes"][0]["status"]["allocatable"] = {"nvidia.com/mig-3g.20gb": "20"}
    found = verdict(paper, device_plugin_mig_profiles=profiles)
    assert [check.name for check in found.failed] == failed


def test_a_paused_grafana_is_not_asked() -> None:
    paper = machine()
    paper.objects["deployments"][-1] = named("grafana", spec={"replicas": 0}, status={})
    for words in (GRAFANA_HEALTH, DATASOURCE, GRAFANA_UNNAMED):
        paper.commands.pop(words)
    found = verdict(paper)
    assert [str(check) for check in found.failed] == []
    assert [each.name for each in found.not_applicable] == ["monitoring/grafana"]


@pytest.mark.parametrize(
    ("check", "break_it", "told"),
    [
        ("gpu/cuda-smoke", lambda paper: paper.objects.update(jobs=[]), {"device_plugin_smoke": False}),
        ("kernel/psi", remove("/proc/pressure/cpu"), {"preflight_psi_required": False}),
    ],
)
def test_a_check_can_be_told_off(check: str, break_it: Break, told: dict[str, bool]) -> None:
    paper = machine()
    break_it(paper)
    found = verdict(paper, **told)
    assert found.ok
    assert [each.name for each in found.not_applicable] == [check]


@pytest.mark.parametrize("network", ["bridge", "none"])
def test_calico_is_not_asked_after_where_another_network_was_chosen(network: str) -> None:
    paper = machine()
    for kind in ("tigerastatuses.operator.tigera.io", "installations.operator.tigera.io"):
        paper.objects.pop(kind)
    found = verdict(paper, calico_network=network)
    assert found.ok
    assert [each.name for each in found.not_applicable] == ["calico/available", "calico/pool"]


class RealCommands(FakeMachine):
    """A machine on which commands run."""

    def command(self, *arguments: str) -> CommandOutput:
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        return CommandOutput(done.returncode, done.stdout, done.stderr)


def test_a_real_question_gets_a_real_answer_from_the_stand_in() -> None:
    with service_dns.listening("127.0.0.1", 0, "gpu.local") as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        known, unknown = (
            kubernetes.dns_ask(node(RealCommands()), "127.0.0.1", f"{name}.default.svc.gpu.local", port)
            for name in ("kubernetes", "kube")
        )
        server.shutdown()
    assert known == (True, "127.0.0.1 answers with code 0 and 1 addresses")
    assert unknown == (False, "127.0.0.1 answers with code 3 and 0 addresses")


def test_a_server_that_is_not_there_is_told_in_a_sentence() -> None:
    nobody = 1
    ok, said = kubernetes.dns_ask(node(RealCommands()), "127.0.0.1", "kubernetes.default.svc.gpu.local", nobody)
    assert not ok
    assert said == "127.0.0.1 does not answer: ConnectionRefusedError: [Errno 111] Connection refused"


def test_without_a_proxy_none_is_looked_for_and_a_password_is_never_said() -> None:
    paper = machine()
    (check,) = [one for one in verdict(paper).checks if one.name == "crio/proxy"]
    write("/proc/77/environ", "")(paper)
    failed = [one for one in verdict(paper).checks if one.name == "crio/proxy"]
    assert "secret" not in f"{check} {failed}"
    found = verdict(paper, proxy_used=False)
    assert [each.name for each in found.not_applicable] == ["crio/proxy"]


def test_what_is_built_into_the_kernel_that_runs_is_there() -> None:
    paper = machine()
    remove("/sys/module/br_netfilter")(paper)
    write("/proc/sys/kernel/osrelease", "6.18\n")(paper)
    write("/lib/modules/6.18/modules.builtin", "kernel/net/bridge/br_netfilter.ko\n")(paper)

    assert verdict(paper).ok


def test_a_worker_is_judged_by_its_own_node_and_not_by_the_cluster() -> None:
    found = worker_verdict(worker())
    assert [str(check) for check in found.failed] == []
    assert {check.name for check in found.checks} == {check.name for check in ON_A_WORKER}
    assert {"cluster/node-ready", "cluster/versions", "crio/service"} <= {check.name for check in found.checks}
    areas = {name.name.partition("/")[0] for name in found.not_applicable}
    assert areas >= {"calico", "storage", "kubeconfig"}


def test_a_worker_asks_as_its_kubelet_and_for_itself_alone() -> None:
    asked: list[tuple[str, ...]] = []

    class Listening(FakeMachine):
        def command(self, *arguments: str) -> CommandOutput:
            asked.append(arguments)
            return super().command(*arguments)

    assert worker_verdict(Listening(**vars(worker()))).ok
    kubectl = [" ".join(arguments) for arguments in asked if arguments[0] == "kubectl"]
    assert all("--kubeconfig=/etc/kubernetes/kubelet.conf" in words for words in kubectl)
    nodes = [words for words in kubectl if "get nodes" in words]
    assert nodes
    assert all("--field-selector=metadata.name=second" in words for words in nodes)


def test_an_exact_debian_version_is_matched_exactly() -> None:
    changes = {"kubernetes_packages_version": "1.35.8-1.1"}
    assert verdict(machine(), **changes).ok
    paper = machine()
    paper.installed["kubelet"] = PackageState("1.35.8-2.1", installed=True, held=True)
    assert [check.name for check in verdict(paper, **changes).failed] == ["packages/versions"]


def test_where_feature_discovery_runs_its_labels_are_not_judged() -> None:
    paper = machine()
    paper.objects["nodes"][0]["metadata"]["labels"] |= {
        "nvidia.com/gfd.timestamp": "1",
        "nvidia.com/gpu.product": "A16",
    }
    found = verdict(paper)
    assert [str(check) for check in found.failed] == []
    assert [each.name for each in found.not_applicable] == ["gpu/features"]


def test_instances_in_the_place_of_gpus_are_told_by_feature_discovery_s_name() -> None:
    paper = machine()
    paper.objects["nodes"][0]["metadata"]["labels"] |= {"nvidia.com/gpu.product": "NVIDIA-A16-MIG-1g.2gb-SHARED"}
    paper.objects["nodes"][0]["metadata"]["labels"].pop("nvidia.com/gpu.memory")
    assert verdict(paper).ok


@pytest.mark.parametrize(
    ("annotations", "said"),
    [({module("node_drain").MARK: "true"}, "cordoned by an upgrade that did not finish"), ({}, "cordoned")],
    ids=["an upgrade's", "somebody's"],
)
def test_a_cordon_says_whose_it_is_by_the_mark_that_the_upgrade_makes(annotations, said):
    paper = machine()
    node_object(spec={"unschedulable": True}, metadata={"annotations": annotations})(paper)
    (found,) = [one for one in verdict(paper).checks if one.name == "cluster/schedulable"]
    assert found.found == said


def test_a_driver_of_the_new_ubuntu_is_judged_by_that_distribution_s_own_version_and_packages() -> None:
    paper = machine()
    write("/etc/os-release", 'ID=ubuntu\nVERSION_ID="26.04"\n')(paper)
    write("/proc/driver/nvidia/version", "NVIDIA UNIX Open Kernel Module for x86_64  595.91.07\n")(paper)
    row = {"version": "595.91.07", "open": ["libnvidia-compute"]}
    given = {"versions": {"nvidia_driver": "580.95.05"}, "versions_driver_repositories": {"ubuntu-26.04": row}}
    paper.installed["nvidia-fabricmanager"] = PackageState("595.91.07-1ubuntu1", installed=True, held=True)
    lacking = {check.name for check in verdict(paper, **given).failed}
    paper.installed["libnvidia-compute"] = PackageState("595.91.07-1ubuntu1", installed=True, held=True)
    whole = {check.name for check in verdict(paper, **given).failed}
    assert (lacking - whole, "driver/version" in whole) == ({"driver/held"}, False)
