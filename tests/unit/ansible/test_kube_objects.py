"""Objects are applied only where the cluster differs."""

import pytest
import tree
from fake_module import Failed, FakeModule

module = tree.module("kube_objects")


def run(monkeypatch, diff, apply=(0, "", ""), *, check_mode=False, kubectl="/usr/bin/kubectl"):
    """What the module exits with, and the verbs it used."""

    class Fake(FakeModule):
        def exit_json(self, **result):
            raise SystemExit(result)

        def get_bin_path(self, _name):
            return kubectl

    answers = {"diff": diff, "apply": apply}
    fake = Fake(
        lambda words: answers[words[1]],
        check_mode=check_mode,
        manifest="kind: x",
        src=None,
        kubeconfig="/etc/kubernetes/admin.conf",
        kubectl="/usr/bin/kubectl",
        timeout_s=60,
    )
    monkeypatch.setattr(module, "AnsibleModule", lambda **_: fake)
    with pytest.raises(SystemExit) as ended:
        module.main()
    return ended.value.code, [command[1] for command in fake.commands]


def test_the_same_objects_are_not_applied(monkeypatch):
    result, verbs = run(monkeypatch, (0, "", ""))
    assert (result["changed"], verbs) == (False, ["diff"])


def test_different_objects_are_applied_and_the_difference_shown(monkeypatch):
    result, verbs = run(monkeypatch, (1, "-a\n+b", ""))
    assert (result["changed"], result["diff"]["prepared"], verbs) == (True, "-a\n+b", ["diff", "apply"])


def test_what_cannot_be_compared_yet_is_applied(monkeypatch):
    result, verbs = run(monkeypatch, (2, "", 'namespaces "x" not found'))
    assert (result["changed"], verbs) == (True, ["diff", "apply"])


def test_a_refused_object_ends_with_the_server_s_words(monkeypatch):
    with pytest.raises(Failed, match="no matches for kind"):
        run(monkeypatch, (2, "", ""), (1, "", 'no matches for kind "Installation"'))


def test_a_namespace_that_another_stage_makes_is_named(monkeypatch):
    with pytest.raises(Failed, match=r"makes the namespace monitoring: run that first, then run again"):
        run(monkeypatch, (2, "", ""), (1, "", 'Error from server (NotFound): namespaces "monitoring" not found'))


def test_check_mode_applies_nothing(monkeypatch):
    result, verbs = run(monkeypatch, (1, "x", ""), check_mode=True)
    assert (result["changed"], verbs) == (True, ["diff"])


def test_check_mode_on_a_machine_without_kubectl(monkeypatch):
    result, verbs = run(monkeypatch, (1, "x", ""), check_mode=True, kubectl=None)
    assert (result["changed"], verbs) == (True, [])
