"""Objects are applied only where the cluster differs."""

import itertools

import pytest
import tree
from fake_module import Failed, FakeModule, ended

module = tree.module("kube_objects")
# What kubectl says of an API server that restarts.
AWAY = [
    'error: unable to recognize "x.yaml": Get "https://192.0.2.1:6443/api": dial tcp 192.0.2.1:6443: connect: connection refused',
    "The connection to the server 192.0.2.1:6443 was refused - did you specify the right host or port?",
    "Unable to connect to the server: net/http: TLS handshake timeout",
    'error when patching "x.yaml": Patch "https://192.0.2.1:6443/api/v1/namespaces/x": unexpected EOF',
    'Get "https://192.0.2.1:6443/api": read tcp 192.0.2.1:36784->192.0.2.1:6443: read: connection reset by peer',
    "Error from server (ServiceUnavailable): the server is currently unable to handle the request",
    "Error from server: etcdserver: request timed out",
    'Error from server (Forbidden): namespaces "x" is forbidden: not yet ready to handle request',
    'error: error validating "x.yaml": error validating data: failed to download openapi: unknown; if you choose to ignore these',
    # It answers, and has not read yet what the administrator may do.
    'Error from server (Forbidden): namespaces "x" is forbidden: User "kubernetes-admin" cannot get resource "namespaces"',
]

NOTHING = {"workloads": [], "allocatable": {}, "devices": {}, "conditions": {}}
WANTED = {"manifest": "kind: x", "src": [], "timeout_s": 60, **NOTHING}


def run(monkeypatch, diff, apply=(0, "", ""), *, check_mode=False, kubectl="/usr/bin/kubectl", **changed):
    """What the module exits with, and the verbs it used; an answer may be a list, whose last one stays."""
    answers = {
        verb: given if isinstance(given, list) else [given] for verb, given in (("diff", diff), ("apply", apply))
    }
    said = {verb: itertools.chain(given, itertools.repeat(given[-1])) for verb, given in answers.items()}
    clock_s = itertools.count()
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock_s))
    monkeypatch.setattr(module.time, "sleep", lambda _: None)
    fake = FakeModule(
        lambda words: next(said[words[1]]),
        check_mode=check_mode,
        **{**WANTED, **changed},
    )
    fake.get_bin_path = lambda _name: kubectl
    return ended(monkeypatch, module, fake), [command[1] for command in fake.commands]


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


@pytest.mark.parametrize("words", AWAY)
def test_an_api_server_that_restarts_is_asked_again(monkeypatch, words):
    # Right after an upgrade, what could not be compared was applied and called changed, though it was the same.
    result, verbs = run(monkeypatch, [(2, "", words), (2, "", words), (0, "", "")])
    assert (result["changed"], verbs) == (False, ["diff", "diff", "diff"])
    result, verbs = run(monkeypatch, (1, "x", ""), [(1, "", words), (0, "", "")])
    assert (result["changed"], verbs) == (True, ["diff", "apply", "apply"])


def test_one_that_stays_away_ends_it_after_a_minute(monkeypatch):
    with pytest.raises(Failed, match="connection refused"):
        run(monkeypatch, (2, "", AWAY[0]), (1, "", AWAY[0]))
    assert 60 < module.time.monotonic() < 180


def test_objects_of_a_kind_that_was_just_defined_are_applied_after_it_and_tried_again(monkeypatch):
    unserved = (1, "", 'no matches for kind "Installation"')
    answers = [(0, "", ""), unserved, unserved, (0, "", "")]
    result, verbs = run(monkeypatch, (2, "", unserved[2]), answers, src=["kinds.yaml"])
    assert (result["changed"], verbs) == (True, ["diff", "apply", "apply", "apply", "apply"])
