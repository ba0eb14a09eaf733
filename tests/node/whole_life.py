"""The whole life of a node on packages that are really built; prints what became of each step, and its seconds.

    NODE_TEST_PACKAGES=/some/folder .venv/bin/python -m tests.node.whole_life [STEP ...]

Not part of scripts/test-node, for the kernel is emulated (machine/emulated.py): as root, with qemu-system-x86_64, on two processors
that nothing else uses, else the API server ends itself at its start. What the folder has is in mirror/real.py. Nobody's hand is
wanted between the steps.
"""

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.node import fingerprint
from tests.node import life_sharing as sharing
from tests.node.life import NODE, Life, LifeError, Outcome, SkippedError, done, unchanged
from tests.node.machine import deps, emulated
from tests.node.machine.emulated import Emulated
from tests.node.machine.errors import MachineError
from tests.node.machine.image import ADDRESSES, GATEWAY
from tests.node.mirror.real import VARIABLE, RealMirror
from tests.node.play import WORKER
from tests.node.story import CLUSTER_STAGES, NODE_STAGE

SUITE = "trixie"
CLUSTER = CLUSTER_STAGES[1]
# What an upgrade brings along and no image is there for.
SKIPPED = "prometheus,grafana,addons,workload_image,inference_namespace"
# Pods find each other by these routes where the network is our own.
OWN_NETWORK = {
    "cniVersion": "1.0.0",
    "name": "own",
    "plugins": [{"type": "bridge", "bridge": "own0", "isGateway": True, "ipMasq": True}],
}
REBOOTS = 3
OTHER_ADDRESS = "10.0.2.17"


def foresee(life: Life) -> str:
    """Check mode on the bare machine."""
    before = fingerprint.take(life.machine)
    done(life.playbooks().run(NODE_STAGE, "--check"))
    if difference := fingerprint.difference(before, fingerprint.take(life.machine)):
        raise LifeError(f"check mode changed the machine: {difference}")
    return "the machine is as it was"


def converge_killed(life: Life) -> str:
    """The first run, killed half a minute into kubeadm."""
    run = life.playbooks().run_killed(NODE_STAGE, ["control_plane : Initialise"], 30.0, CLUSTER)
    return f"killed in {run.tasks[-1].role} : {run.tasks[-1].name}"


def converge(life: Life) -> str:
    """Machine and cluster."""
    run = done(life.playbooks().run(*CLUSTER_STAGES))
    return f"{run.counts['changed']} changed"


def again(life: Life) -> str:
    """The same once more."""
    return unchanged(life.playbooks().run(*CLUSTER_STAGES))


def verdict(life: Life) -> str:
    """The verdict of the harness."""
    life.well()
    return "every check passes"


def reboot(life: Life) -> str:
    """A reboot: seconds to ssh, to Ready, and a verdict."""
    began = time.monotonic()
    life.machine.reboot()
    booted_s = time.monotonic() - began
    return f"ssh after {booted_s:.0f} s, Ready after {life.back_s(began):.0f} s, every check passes"


def reboot_again(life: Life) -> str:
    """The run after the reboots."""
    return unchanged(life.playbooks().run(*CLUSTER_STAGES))


def kill(program: str) -> Callable[[Life], str]:
    """A step that kills a program of the node, and waits until it is back."""

    def killed(life: Life) -> str:
        old = life.machine.output(f"pgrep -o -x {program}")
        began = time.monotonic()
        life.machine.ssh(f"kill -KILL {old}")
        life.wait_for_another(program, old)
        back_s = time.monotonic() - began
        life.well()
        return f"back after {back_s:.0f} s, every check passes"

    killed.__name__ = f"kill_{program.replace('-', '_')}"
    return killed


def cut_power(life: Life) -> str:
    """No shutdown: the emulator is killed."""
    began = time.monotonic()
    life.machine.kill()
    life.machine.start()
    return f"Ready after {life.back_s(began):.0f} s, every check passes"


def after_kills(life: Life) -> str:
    """The run after all of that."""
    return unchanged(life.playbooks().run(*CLUSTER_STAGES))


def bench(life: Life) -> str:
    """kube-bench itself, where the folder has it: kube-bench/kube-bench and its cfg/."""
    source = Path(os.environ[VARIABLE]) / "kube-bench"
    if not source.exists():
        return "no kube-bench in the folder"
    folder = "/root/kube-bench"
    for path in sorted(source.rglob("*")):
        if path.is_file():
            life.machine.write_bytes(f"{folder}/{path.relative_to(source)}", path.read_bytes())
    run = f"chmod 755 {folder}/kube-bench; cd {folder} && ./kube-bench run --benchmark cis-1.12 --config-dir cfg --json"
    said = json.loads(life.machine.ssh(run, timeout_s=900).stdout)
    results = [result for control in said["Controls"] for test in control["tests"] for result in test["results"]]
    failed = sorted(result["test_number"] for result in results if result["status"] == "FAIL")
    counts = {status: sum(result["status"] == status for result in results) for status in ("PASS", "FAIL", "WARN")}
    life.machine.ssh(f"rm -r {folder}")
    if len(failed) > 1:
        raise LifeError(f"{counts}, failed: {failed}")
    return f"{counts}, failed: {failed}"


@contextmanager
def watching(life: Life) -> Iterator[list[tuple[str, bool]]]:
    """The node's kubelet and whether it is cordoned, in the order in which both were seen."""
    seen: list[tuple[str, bool]] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(2.0):
            try:
                item = life.node()
            except (MachineError, ValueError):
                continue
            state = (item["status"]["nodeInfo"]["kubeletVersion"], bool(item["spec"].get("unschedulable")))
            if not seen or seen[-1] != state:
                seen.append(state)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        ended.set()
        watcher.join()


def upgrade(life: Life) -> str:
    """One minor up; the node takes pods again only under its new kubelet."""
    old, new = life.minors[:2]
    life.variables["kubernetes_minor"] = new
    with watching(life) as seen:
        done(life.playbooks().run("playbooks/upgrade.yml", "--skip-tags", SKIPPED))
    versions = [f"v{life.mirror.table['versions_by_minor'][minor]['kubernetes']}" for minor in (old, new)]
    wanted = [(versions[0], False), (versions[0], True), (versions[1], True), (versions[1], False)]
    if seen != wanted:
        raise LifeError(f"the node went through {seen}, not {wanted}")
    life.well()
    return " -> ".join(f"{version}{' cordoned' if cordoned else ''}" for version, cordoned in seen)


def after_upgrade(life: Life) -> str:
    """Nothing is left of the upgrade."""
    return unchanged(life.playbooks().run(*CLUSTER_STAGES))


def reset(life: Life) -> str:
    """Everything off, and what is left by name."""
    done(life.playbooks().run("playbooks/reset.yml", reset_confirmed=True))
    for machine in life.machines.values():
        nothing_left(machine)
    return "nothing is left"


def nothing_left(machine: Emulated) -> None:
    """A machine that was reset has nothing of it, by name, and no MPS server's memory."""
    pattern = "cri-o|crio|kube|cri-tools|etcd|local-path|harness|nvidia-c(ontainer|di|tk)"
    left = machine.output(
        # apt forgets the lists of a repository that went the next time that it asks.
        "(dpkg-query -W -f '${Package}\\n'; find /etc /opt /usr/local /var/lib -xdev -path /var/lib/apt/lists -prune -o -type f -print)"
        f" | grep -E '{pattern}'; find /run/nvidia -mindepth 1; findmnt --raw --noheadings --output TARGET | grep -E '/run/nvidia|kubelet' || true"
    )
    if left:
        raise LifeError(f"left behind: {left}")


def reset_after_mps(life: Life) -> str:
    """Everything off machines of which one has an MPS server's memory mounted; their GPUs take any process again."""
    sharing.check_folder(life)
    mounted = [name for name, machine in life.machines.items() if sharing.is_mounted(machine)]
    if not mounted:
        raise LifeError(f"{sharing.MPS_MEMORY} is mounted on no machine")
    reset(life)
    if bad := {name for name, machine in life.machines.items() if sharing.compute_modes(machine) != {"Default"}}:
        raise LifeError(f"another compute mode than Default on {', '.join(sorted(bad))}")
    return f"was mounted on {', '.join(mounted)}; nothing is left, compute mode Default"


def converge_own_network(life: Life) -> str:
    """The machine once more, with a pod network of its owner's."""
    life.variables["calico_network"] = "none"
    lay_network(life.machine, 0)
    return converge(life)


def lay_network(machine: Emulated, number: int) -> None:
    """A bridge on this machine, and routes to the pods of the other one."""
    other = 1 - number
    plugin = OWN_NETWORK["plugins"][0] | {  # type: ignore[operator,index]
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": f"10.244.{number}.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
    }
    machine.write("/etc/cni/net.d/10-own.conflist", json.dumps(OWN_NETWORK | {"plugins": [plugin]}))
    route = f"[Route]\nDestination=10.244.{other}.0/24\nGateway={ADDRESSES[other]}\n"
    part = ADDRESSES[number].rpartition(".")[2]
    machine.write(f"/etc/systemd/network/10-wired-{part}.network.d/pods.conf", route)
    machine.ssh("networkctl reload && networkctl reconfigure eth0")


def join(life: Life) -> str:
    """A second machine beside it; the first one is left alone."""
    life.worker = Emulated(
        life.tools, life.bootable, life.folder / WORKER, life.mirror.port, name=WORKER, beside=life.machine
    )
    life.worker.start()
    prepare(life.worker, life.mirror)
    lay_network(life.worker, 1)
    run = done(life.playbooks().run(*CLUSTER_STAGES))
    if run.by_host["node"]["changed"]:
        raise LifeError(f"the control plane was changed: {run.explain()}")
    ready = {condition["type"]: condition["status"] for condition in life.node(WORKER)["status"]["conditions"]}["Ready"]
    if ready != "True":
        raise LifeError(f"the worker's Ready is {ready}")
    return "Ready"


def join_again(life: Life) -> str:
    """Both once more."""
    return unchanged(life.playbooks().run(*CLUSTER_STAGES))


def leave(life: Life) -> str:
    """The worker leaves, and the control plane is not touched."""
    done(life.playbooks().run("playbooks/reset.yml", "--limit", WORKER, reset_confirmed=True))
    nodes = life.kubectl("get nodes -o name").split()
    if nodes != [f"node/{NODE}"]:
        raise LifeError(f"the nodes are {nodes}")
    if life.worker is not None:
        nothing_left(life.worker)
        life.worker.kill()
        life.worker = None
    life.well()
    return "gone, every check passes"


def change_address(life: Life) -> str:
    """The machine has another address: refused, with the one to restore; afterwards there is nothing to do."""
    route = f"default via {GATEWAY} dev eth0"
    life.machine.ssh(
        # else the second address of a network goes with the first
        "sysctl -qw net.ipv4.conf.eth0.promote_secondaries=1 && "
        f"ip address add {OTHER_ADDRESS}/24 dev eth0 && ip route replace {route} proto static src {OTHER_ADDRESS}"
    )
    life.machine.reach_at(OTHER_ADDRESS)
    life.machine.ssh(f"ip address del {ADDRESSES[0]}/24 dev eth0")
    run = life.playbooks().run(NODE_STAGE)
    said = " ".join(task.message for task in run.failed)
    if run.status == 0 or ADDRESSES[0] not in said or run.changed:
        raise LifeError(f"not refused with the address to restore: {run.explain()}")
    life.machine.ssh("systemd-run --collect --quiet networkctl reconfigure eth0")  # which may end this connection
    life.machine.reach_at(ADDRESSES[0])
    return f"refused; restored: {unchanged(life.playbooks().run(*CLUSTER_STAGES))}"


STEPS: tuple[Callable[[Life], str], ...] = (
    *(foresee, converge_killed, converge, again, verdict),
    *([reboot] * REBOOTS),
    reboot_again,
    *(kill(program) for program in ("kubelet", "crio", "kube-apiserver", "etcd")),
    *(cut_power, after_kills, bench, upgrade, after_upgrade, reset),
    *(converge_own_network, join, join_again),
    *(sharing.two_sharing, sharing.two_sharing_again, sharing.switch_one),
    *(leave, change_address, reset_after_mps),
)


def prepare(machine: Emulated, mirror: RealMirror) -> None:
    """Point apt at the mirror."""
    machine.ssh("rm -f /etc/apt/sources.list.d/*")
    machine.write("/etc/apt/sources.list", mirror.debian_sources(SUITE))


def live(life: Life, step: Callable[[Life], str]) -> Outcome:
    """Live through one step, and say at once what became of it."""
    began = time.monotonic()
    try:
        result, well = step(life), True
    except SkippedError as error:
        result, well = f"skipped: {error}", True
    except (LifeError, MachineError, AssertionError) as error:
        result, well = str(error), False
    outcome = Outcome(step.__name__, time.monotonic() - began, result, well)
    life.outcomes.append(outcome)
    print(f"{outcome.name:22} {outcome.seconds:6.0f} s  {'ok' if well else 'FAILED'}  {outcome.result}", flush=True)
    return outcome


@contextmanager
def beginning() -> Iterator[Life]:
    """A bare machine of the folder's packages."""
    tools = deps.ensure()
    bootable = emulated.build(tools, SUITE)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="life", ignore_cleanup_errors=True)))
        mirror = stack.enter_context(RealMirror(tools, folder / "mirror", Path(os.environ[VARIABLE])))
        machine = stack.enter_context(Emulated(tools, bootable, folder / "m", mirror.port))
        prepare(machine, mirror)
        minors = sorted(mirror.table["versions_by_minor"], key=lambda minor: int(minor.partition(".")[2]))
        life = Life(tools, bootable, mirror, folder, machine, minors)
        life.variables["kubernetes_minor"] = minors[0]
        yield life
        if life.worker is not None:
            life.worker.kill()


def main() -> int:
    """Live through all of it, or the named steps in their order; the exit status says whether every step was well."""
    by_name = {step.__name__: step for step in STEPS}
    steps = [by_name[name] for name in sys.argv[1:] if name in by_name] or STEPS
    if unknown := [name for name in sys.argv[1:] if name not in by_name]:
        print(f"{', '.join(unknown)}: no step; there are {', '.join(by_name)}", file=sys.stderr)
        return 2
    if VARIABLE not in os.environ:
        print(f"set {VARIABLE} to a folder with packages (tests/node/mirror/real.py)", file=sys.stderr)
        return 2
    with beginning() as life:
        for step in steps:
            if not live(life, step).well and step is converge:
                break
    return int(not all(outcome.well for outcome in life.outcomes))


if __name__ == "__main__":
    sys.exit(main())
