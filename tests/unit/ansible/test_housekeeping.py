"""Labels and taints that the inventory gives the nodes of its machines."""

import json

import pytest
import tree

PLAY = """\
- hosts: control_plane
  gather_facts: false
  environment: {PATH: "{{ bin }}:{{ lookup('ansible.builtin.env', 'PATH') }}"}
  tasks:
    - {name: Mark, ansible.builtin.include_role: {name: housekeeping, tasks_from: cluster.yml}}
"""
NOTHING = """\
from ansible.plugins.action import ActionBase
class ActionModule(ActionBase):
    _requires_connection = False
    def run(self, tmp=None, task_vars=None):
        return {"changed": False}
"""
KUBECTL = """\
#!/bin/sh
case "$*" in
  *" get "*) echo asked >> {folder}/asked; cat {folder}/nodes.json;;
  *) echo "$*" >> {folder}/calls;;
esac
"""
NODES = [
    {"metadata": {"name": "controlplane", "labels": {"rack": "a", "size": "4"}}, "spec": {}},
    {
        "metadata": {"name": "two", "labels": {"rack": "b"}},
        "spec": {
            "taints": [{"key": "team", "value": "x", "effect": "NoSchedule"}, {"key": "old", "effect": "NoExecute"}]
        },
    },
]
MACHINES = {
    "one": {"node_labels": {"rack": "a", "size": 4, "example.org/disk": "nvme"}},
    "two": {"node_labels": {"rack": "c"}, "node_taints": ["team=x:NoSchedule", "old:NoExecute", "new:NoSchedule"]},
    "three": {"node_labels": {"rack": "d"}},
}


@pytest.mark.parametrize("marked", [True, False])
def test_a_node_gets_what_it_has_not_yet_and_nothing_where_nothing_is_given(tmp_path, marked):
    for name in ("bin", "action"):
        (tmp_path / name).mkdir()
    (tmp_path / "action/kube_objects.py").write_text(NOTHING)
    (tmp_path / "group_vars").symlink_to(tree.ROOT / "inventory/group_vars")
    tree.programs(tmp_path / "bin", ["kubectl"], KUBECTL.format(folder=tmp_path))
    (tmp_path / "nodes.json").write_text(json.dumps({"items": NODES}))
    given = MACHINES if marked else {key: {} for key in MACHINES}
    groups = {"control_plane": ["one"], "workers": ["two", "three"]}
    hosts = {group: {"hosts": {name: given[name] for name in names}} for group, names in groups.items()}
    done = tree.play(
        tmp_path,
        PLAY,
        {"all": {"children": hosts}},
        {"bin": str(tmp_path / "bin")},
        ANSIBLE_ACTION_PLUGINS=str(tmp_path / "action"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    calls = (tmp_path / "calls").read_text().splitlines() if (tmp_path / "calls").exists() else []
    said = [call.removeprefix("--kubeconfig /etc/kubernetes/admin.conf ") for call in calls]
    assert (tmp_path / "asked").exists() == marked
    assert said == (
        [
            "label node controlplane --overwrite example.org/disk=nvme",
            "label node two --overwrite rack=c",
            "taint node two --overwrite new:NoSchedule",
        ]
        if marked
        else []
    )
