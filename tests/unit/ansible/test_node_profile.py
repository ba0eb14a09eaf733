"""The program that makes a machine steady, on a machine on paper: systemctl and nvidia-smi are programs that remember."""

import contextlib
import hashlib
import json
import os

import pytest
import recorded_role
import tree
from tree import ROOT

# Units and GPUs are files: what is masked, what runs, the clock and the limit.
SYSTEMCTL = """\
#!/bin/sh
cd {folder}/units
for name; do :; done
echo "$*" >> {folder}/asked
case "$1" in
  show) [ -e "$name" ] || {{ echo LoadState=not-found; exit; }}
        [ -e "$name.masked" ] && echo LoadState=masked || echo LoadState=loaded
        echo "ActiveState=$(cat "$name")" ;;
  mask) touch "$name.masked"; echo inactive > "$name" ;;
  unmask) rm -f "$name.masked" ;;
  start) echo active > "$name" ;;
esac
"""
NVIDIA_SMI = """\
#!/bin/sh
cd {folder}/gpu
case "$*" in
  *--query-gpu*) echo "$(cat clock), 1980, $(cat power).00, 200.00, 700.00, 700.00" ;;
  *--lock-gpu-clocks=*) echo "${{1##*,}}" > clock ;;
  *--reset-gpu-clocks*) echo 345 > clock ;;
  *--power-limit=*) for word; do :; done; echo "${{word#*=}}" > power ;;
esac
"""
STATE = {"units/apt-daily.timer": "active", "units/idle.timer": "inactive", "gpu/clock": "345", "gpu/power": "700"}
WANTED = {"gpu_clock_mhz": 1395, "gpu_power_w": 500, "quiet_units": ["apt-daily.timer", "absent.timer", "idle.timer"]}


@pytest.fixture
def node(tmp_path, monkeypatch):
    """The program, and a machine with two CPUs, a GPU and two timers."""
    program = tree.program("roles/node_profile/files/node_profile.py")
    for number, governor in enumerate(("schedutil", "performance")):
        cpu = tmp_path / f"cpu/cpu{number}/cpufreq"
        cpu.mkdir(parents=True)
        (cpu / "scaling_governor").write_text(f"{governor}\n")
        (cpu / "scaling_available_governors").write_text("performance schedutil\n")
    for folder in ("units", "gpu", "bin"):
        (tmp_path / folder).mkdir()
    for path, text in STATE.items():
        (tmp_path / path).write_text(text)
    for name, text in (("systemctl", SYSTEMCTL), ("nvidia-smi", NVIDIA_SMI)):
        tree.programs(tmp_path / "bin", [name], text.format(folder=tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(program, "CPUS", tmp_path / "cpu")
    monkeypatch.setattr(program, "BEFORE", tmp_path / "kept/before.json")
    return program


def state(tmp_path):
    """Everything that the program may change."""
    files = [*tmp_path.glob("cpu/*/cpufreq/scaling_governor"), *tmp_path.glob("units/*"), *tmp_path.glob("gpu/*")]
    return {str(path.relative_to(tmp_path)): path.read_text().strip() for path in files}


def test_it_makes_the_machine_steady_once_and_undoes_all_of_it(node, tmp_path):
    before = state(tmp_path)
    assert node.check(WANTED) != []
    done = node.apply(WANTED)
    assert done == [
        *("apt-daily.timer masked", "idle.timer masked", "cpu0 performance"),
        *("GPUs locked to 1395 MHz", "GPUs limited to 500 W"),
    ]
    steady = state(tmp_path)
    assert (steady["gpu/clock"], steady["gpu/power"], steady["units/apt-daily.timer"]) == ("1395", "500", "inactive")
    assert (node.check(WANTED), node.apply(WANTED)) == ([], [])
    assert state(tmp_path) == steady
    assert len(node.undo({})) == 5
    assert state(tmp_path) == before
    assert not node.BEFORE.parent.exists()
    assert node.undo({}) == []


def test_after_a_boot_it_is_done_again_and_what_was_there_first_is_what_comes_back(node, tmp_path):
    before = state(tmp_path)
    node.apply(WANTED)
    # A boot: masks stay, the rest is the kernel's and the driver's.
    (tmp_path / "cpu/cpu0/cpufreq/scaling_governor").write_text("powersave\n")
    (tmp_path / "gpu/clock").write_text("345")
    assert node.check(WANTED) == ["cpu0 powersave", "clock 345.0 MHz"]
    assert node.apply(WANTED) == ["cpu0 performance", "GPUs locked to 1395 MHz"]
    node.undo({})
    assert state(tmp_path) == before


def test_what_is_no_longer_wanted_comes_back(node, tmp_path):
    before = state(tmp_path)
    node.apply(WANTED)
    fewer = {"gpu_clock_mhz": 0, "gpu_power_w": 400, "quiet_units": ["idle.timer"]}
    assert node.apply(fewer) == ["apt-daily.timer unmasked", "clock of the GPUs free", "GPUs limited to 400 W"]
    now = state(tmp_path)
    assert (now["gpu/clock"], now["gpu/power"], now["units/apt-daily.timer"]) == ("345", "400", "active")
    node.undo({})
    assert state(tmp_path) == before


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"gpu_clock_mhz": 2500}, "node_profile_gpu_clock_mhz is 2500; GPU 0 runs at 1980 MHz at most"),
        ({"gpu_power_w": 100}, "node_profile_gpu_power_w is 100; GPU 0 accepts 200 to 700 W"),
    ],
)
def test_what_a_gpu_cannot_have_is_refused_before_anything_changes(node, tmp_path, wrong, says):
    before = state(tmp_path)
    with pytest.raises(node.ProfileError, match=says):
        node.apply(WANTED | wrong)
    assert state(tmp_path) == before
    assert not node.BEFORE.exists()


def test_killed_at_any_command_the_next_run_goes_on_and_undo_brings_all_back(node, tmp_path, monkeypatch):
    before, run = state(tmp_path), node.run
    for deadly in range(1, 12):
        calls = 0

        def dies(*words, deadly=deadly):
            nonlocal calls
            calls += words[:2] != ("systemctl", "show")
            if calls == deadly:
                raise KeyboardInterrupt
            return run(*words)

        monkeypatch.setattr(node, "run", dies)
        with contextlib.suppress(KeyboardInterrupt):
            node.apply(WANTED)
        monkeypatch.setattr(node, "run", run)
        if deadly % 2:
            node.apply(WANTED)
            assert node.check(WANTED) == []
        node.undo({})
        assert state(tmp_path) == before, deadly


def test_its_settings_are_the_variables_of_the_role(node, tmp_path, monkeypatch, capsys):
    (tmp_path / "settings.json").write_text(json.dumps(WANTED))
    monkeypatch.setattr(node, "SETTINGS", tmp_path / "settings.json")
    monkeypatch.setattr(node.sys, "argv", ["node-profile", "check"])
    with pytest.raises(SystemExit) as end:
        node.main()
    assert end.value.code == 1
    assert "apt-daily.timer" in capsys.readouterr().out
    text = (ROOT / "roles/node_profile/vars/main.yml").read_text()
    assert all(f"  {name}: " in text for name in WANTED)


DROP_IN = "/etc/kubernetes/kubelet.conf.d/60-cpus.conf"
CPUS = """\
# Ansible managed
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
cpuManagerPolicyOptions:
  strict-cpu-reservation: "true"
reservedSystemCPUs: "0-1"
"""
MACHINES = {
    "new": ({"sums": {DROP_IN: None}}, "measuring"),
    "not-joined": ({"sums": {DROP_IN: None}, "kubelet_joined": False}, "measuring"),
    "again": ({"sums": {DROP_IN: hashlib.sha256(CPUS.encode()).hexdigest()}, "measuring": True}, "measuring"),
    "back": ({"measuring": True}, "default"),
    "never": ({}, "default"),
}


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """The role on every machine; its program is looked for where the role puts it, which is on no machine of these tests."""
    folder = tmp_path_factory.mktemp("profile")
    nodes = {name: {"kubelet_joined": True, "measuring": False} | node for name, (node, _) in MACHINES.items()}
    recorder = '#!/bin/sh\necho "[\\"program\\", \\"$1\\"]" >> "$MACHINE/done.jsonl"\n'
    variables = {
        name: {"node_profile_name": profile, "node_profile_reserved_cpus": 2} for name, (_, profile) in MACHINES.items()
    }
    return recorded_role.run(
        folder, "node_profile", nodes, variables, {"node-profile": recorder}, __node_profile_program="node-profile"
    )


def steps(machines, name):
    """What was done, short: files written and removed, units, verbs of the program."""
    found = []
    for what, asked in machines.done[name]:
        if what == "program":
            found.append(asked)
        elif what == "node_state":
            units = [f"{unit.get('state', 'run')} {unit['name']}" for unit in asked.get("units", [])]
            found += [unit for unit in units if unit.startswith("off ")]
            found += [f"write {file['path']}" for file in asked.get("files", [])]
            found += [f"remove {path}" for path in asked.get("absent", [])]
            found += [unit for unit in units if not unit.startswith("off ")]
    return found


FRESH = ["off kubelet.service", "remove /var/lib/kubelet/cpu_manager_state"]
PROFILE = ["write node-profile", "write /etc/systemd/system/node-profile.service", "write /etc/node-profile.json"]
PROFILE += ["run node-profile.service", "apply"]


def test_the_kubelet_begins_anew_once_when_its_cpus_change(machines):
    assert set(machines.failed.values()) == {None}
    assert steps(machines, "new") == [*PROFILE, *FRESH, f"write {DROP_IN}", "run kubelet.service", "check"]
    assert steps(machines, "again") == [*PROFILE, f"write {DROP_IN}", "run kubelet.service", "check"]


def test_before_there_is_a_cluster_no_kubelet_is_started(machines):
    assert not [one for one in steps(machines, "not-joined") if "kubelet.service" in one]


def test_back_to_default_undoes_it_and_the_settings_go_last(machines):
    done = steps(machines, "back")
    assert done[:5] == [*FRESH, f"remove {DROP_IN}", "run kubelet.service", "undo"]
    assert done[5] == "off node-profile.service"
    assert done[-2:] == ["remove /etc/node-profile.json", "remove node-profile"]


def test_a_machine_that_never_measured_is_left_alone(machines):
    assert steps(machines, "never") == []
