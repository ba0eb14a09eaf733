"""The CIS benchmark on paper: what a kept node says, that every section can fail, and what a reason is for."""

from __future__ import annotations

import json

import pytest

from harness.node.checks import cis
from harness.node.checks.cis import REASONS, RULES, Report, Result
from tests.support.fake_machine import FakeMachine
from tests.unit.node import hardened
from tests.unit.node.healthy import machine, node, worker

SEEN = "kubeconfig=/etc/kubernetes/some.conf"
LIMITS = "/etc/kubernetes/kubelet.conf.d/60-kept.conf"
OPEN = dict.fromkeys(
    (path.rpartition("/")[2].replace("-", "_").replace(".", "_") for path in hardened.PRIVATE), "666 ada:ada"
)
WRONG = {
    "kube_apiserver": f"{SEEN} token-auth-file=x authorization-mode=AlwaysAllow enable-admission-plugins=AlwaysAdmit "
    "disable-admission-plugins=ServiceAccount,NamespaceLifecycle audit-log-maxage=7 audit-log-maxbackup=5 "
    "audit-log-maxsize=10 service-account-lookup=false tls-cipher-suites=TLS_RSA_WITH_RC4_128_SHA",
    "kube_controller_manager": f"{SEEN} bind-address=0.0.0.0 feature-gates=RotateKubeletServerCertificate=false",
    "kube_scheduler": f"{SEEN} bind-address=0.0.0.0",
    "etcd": f"{SEEN} auto-tls=true peer-auto-tls=true",
    "kubelet": f"{SEEN} hostname-override=other",
}
WRONG_KUBELET = """
authentication: {anonymous: {enabled: true}}
authorization: {mode: AlwaysAllow}
eventRecordQPS: -1
featureGates: {RotateKubeletServerCertificate: false}
makeIPTablesUtilChains: false
readOnlyPort: 10255
rotateCertificates: false
streamingConnectionIdleTimeout: 0s
"""


def report(paper: FakeMachine, **changes: object) -> Report:
    return cis.judge("n", node(paper, **changes))


def numbers(found: Report, *results: Result) -> set[str]:
    return {section.number for section in found.sections if section.result in results}


def damaged(paper: FakeMachine) -> FakeMachine:
    paper.commands[hardened.PS] = hardened.processes(**WRONG)
    paper.commands[hardened.FIND] = hardened.files(**OPEN, ca_crt="666 ada:ada", etcd="755 root:root")
    paper.files[LIMITS] = WRONG_KUBELET
    paper.objects["configmaps"][0]["data"]["config.conf"] = "metricsBindAddress: 0.0.0.0:10249"
    return paper


def test_a_kept_node_fails_the_one_section_that_is_kubeadms_own() -> None:
    found = report(machine())
    assert found.ok
    assert numbers(found, Result.FAIL) == {"1.1.12"}
    assert numbers(found, Result.WARN) <= set(REASONS)
    assert len(found.sections) == len(RULES)


def test_every_section_sees_what_it_is_for() -> None:
    found = report(damaged(machine()))
    assert numbers(found, Result.PASS) == set()
    assert numbers(found, Result.FAIL) == {rule.number for rule in RULES if rule.scored}
    assert not found.ok


def test_a_section_that_fails_without_a_reason_fails_the_check_of_the_verdict() -> None:
    paper = machine()
    paper.commands[hardened.PS] = hardened.processes(kube_scheduler=SEEN)
    seen = cis.sections_are_kept(node(paper))
    assert not seen.ok
    assert seen.found == "1.4.1 no profiling (no --profiling)"


@pytest.mark.parametrize("missing", [hardened.PS, hardened.FIND])
def test_a_node_that_says_nothing_fails(missing: str) -> None:
    paper = machine()
    del paper.commands[missing]
    assert not report(paper).ok


def test_a_worker_is_judged_by_its_kubelet_alone() -> None:
    found = report(worker(), group_names=["nodes", "workers"])
    assert found.ok
    assert {section.number.partition(".")[0] for section in found.sections} == {"4"}


def test_the_document_is_plain() -> None:
    (section,) = [one for one in report(machine()).to_dict()["sections"] if one["number"] == "1.1.12"]
    assert json.loads(json.dumps(section))["result"] == "FAIL"
    assert section["reason"].startswith("kubeadm runs etcd as root")


def test_every_reason_is_for_a_section_and_a_sentence() -> None:
    assert set(REASONS) <= {rule.number for rule in RULES}
    assert all(reason.endswith(".") for reason in REASONS.values())
