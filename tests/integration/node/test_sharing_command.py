"""``harness node sharing``: what it asks Ansible for, and what it refuses before."""

import json

import pytest

from tests.integration.node.conftest import harness, make_project

SAY = (
    "{{ {'mode': device_plugin_sharing | default('exclusive'), 'replicas': device_plugin_replicas, 'forced': device_plugin_forced,"
    " 'of': device_plugin_sharing_of | default({}), 'profiles': device_plugin_mig_profiles | default([]), 'strategy': device_plugin_mig_strategy | default('')} | to_json }}"
)


@pytest.fixture
def project(tmp_path):
    """A project whose playbook of that name writes down what it was given."""
    make_project(tmp_path, "device_plugin_replicas=10")
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "site.yml").write_text("[]\n")
    (tmp_path / "roles").mkdir()
    (tmp_path / "playbooks/sharing.yml").write_text(
        "- name: Switch\n  hosts: all\n  gather_facts: false\n  tasks:\n    - name: Write it down\n"
        f'      ansible.builtin.copy:\n        content: "{SAY}"\n        dest: "{{{{ playbook_dir }}}}/given"\n        mode: "0644"\n'
    )
    return tmp_path


def sharing(project, *words):
    return harness("node", "sharing", *words, project=project)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (["mps", "--replicas", "4"], {"mode": "mps", "replicas": 4}),
        (["second=mps", "--replicas", "4"], {"of": {"second": "mps:4"}}),
        (["second=exclusive"], {"of": {"second": "exclusive"}}),
        (
            ["exclusive", "--mig", "1g.18gb,1g.18gb", "--forced", "--json"],
            {"profiles": ["1g.18gb"] * 2, "strategy": "single", "forced": True},
        ),
        (["exclusive", "--mig", "3g.71gb,4g.71gb"], {"profiles": ["3g.71gb", "4g.71gb"], "strategy": "mixed"}),
    ],
)
def test_the_playbook_gets_what_was_asked_for(project, words, given):
    done = sharing(project, *words)
    assert done.returncode == 0, done.stderr
    unsaid = {"mode": "exclusive", "replicas": 10, "forced": False, "of": {}, "profiles": [], "strategy": ""}
    assert json.loads((project / "playbooks/given").read_text()) == unsaid | given


def test_check_changes_nothing(project):
    done = sharing(project, "time-slicing", "--check")
    assert done.returncode == 0, done.stderr
    assert "would change" in done.stdout
    assert not (project / "playbooks/given").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["exclusive", "--replicas", "4"], "one slice for each GPU"),
        (["mig"], "mig"),
        (["mps", "--replicas", "1"], "--replicas"),
        (["mps", "--mig", "1g.18gb"], "not supported on MIG"),
        (["exclusive", "--mig", "1g.18gb,"], "empty profile"),
        ([], "time-slicing"),
    ],
)
def test_a_wrong_request_runs_nothing(project, words, sentence):
    done = sharing(project, *words)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (project / "playbooks/given").exists()
