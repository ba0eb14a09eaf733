"""Whose Calico there is: ours, or one that somebody who chose none brought himself, whose files look the same."""

import re

import pytest
import tree

PLAY = """\
- hosts: chosen
  gather_facts: false
  tasks:
    - {name: Choose, ansible.builtin.import_role: {name: calico, tasks_from: choose.yml}}
- hosts: reset
  gather_facts: false
  tasks:
    - {name: Look, ansible.builtin.import_role: {name: calico, tasks_from: reset_look.yml}}
    - {name: Remove, ansible.builtin.import_role: {name: calico, tasks_from: reset_files.yml}}
"""
CALICO = ["net.d/10-calico.conflist", "net.d/calico-kubeconfig", "bin/calico", "bin/calico-ipam"]
# As every version of ours left it on the control plane; what a reset that was killed leaves on each machine.
FETCHED, MARK = "addons/calico/v3.30.0/tigera-operator.yaml", "state/mark"
# A machine: the network that is chosen, what there is beside Calico's own files, and whether the run ends well.
CHOSEN = {
    "own": ("none", [], True),
    "changed-to-none": ("none", [FETCHED], False),
    "changed-to-bridge": ("bridge", [FETCHED], False),
    "own-then-bridge": ("bridge", [], False),
    "ours": ("calico", [FETCHED], True),
}
# And whether Calico's files stay.
RESET = {
    "own-reset": ("none", [], True),
    "ours-reset": ("calico", [], False),
    "changed-reset": ("none", [FETCHED], False),
    "killed-reset": ("none", [MARK], False),
}


@pytest.fixture(scope="module", params=[[], ["--check"]], ids=["run", "check"])
def run(request, tmp_path_factory):
    """Every machine is a host of one run, and its own control plane: the folder, the recaps by host, and what was said."""
    folder = tmp_path_factory.mktemp("calico")
    for name, (_, there, _) in (CHOSEN | RESET).items():
        for one in (*CALICO, *there):
            (folder / name / one).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / one).write_text("x")
    hosts = {name: {"calico_network": network} for name, (network, _, _) in (CHOSEN | RESET).items()}
    groups = {"chosen": {"hosts": dict.fromkeys(CHOSEN)}, "reset": {"hosts": dict.fromkeys(RESET)}}
    inventory = {"all": {"hosts": hosts, "children": groups}}
    places = {"cni_folder": "net.d", "plugin_folder": "bin", "link": "link", "manifests": "addons/calico", "mark": MARK}
    given = {f"__calico_{name}": f"{folder}/{{{{ inventory_hostname }}}}/{place}" for name, place in places.items()}
    given |= {"__calico_control_plane": "{{ inventory_hostname }}"}
    done = tree.play(folder, PLAY, inventory, given, *request.param)
    recaps = dict(re.findall(r"^([\w-]+) +: (ok=.*)$", done.stdout, re.MULTILINE))
    assert set(recaps) == set(hosts), done.stdout + done.stderr
    return folder, {host: dict(re.findall(r"(\w+)=(\d+)", recap)) for host, recap in recaps.items()}, done.stdout


@pytest.mark.parametrize("name", CHOSEN)
def test_a_calico_of_ours_is_kept_and_one_of_somebody_s_own_is_his(run, name):
    _, recaps, said = run
    network, _, well = CHOSEN[name]
    assert (recaps[name]["failed"], recaps[name]["changed"]) == ("0" if well else "1", "0")
    assert well or f"and calico_network is {network}. Leave it at calico" in said


@pytest.mark.parametrize("name", RESET)
def test_a_reset_removes_the_calico_that_is_ours_also_where_none_is_chosen_by_now(run, name, request):
    folder, recaps, _ = run
    stays = RESET[name][2]
    assert recaps[name]["failed"] == "0"
    assert (recaps[name]["changed"] == "0") is stays
    if not request.node.callspec.params["run"]:
        assert {(folder / name / one).exists() for one in CALICO} == {stays}
