"""What the recorders were given on the converged machine, put before the real thing where there is one."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.node.machine.vm import Machine
from tests.node.mirror.site import Mirror
from tests.node.story import Step
from tests.support import schemas

KUBEADM_CONFIGURATION = "/etc/kubernetes/kubeadm-init.yaml"
CRIO_DROP_INS = "/etc/crio/crio.conf.d"


def real(program: str) -> str:
    """Path of the real program on this host, or nothing."""
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    return shutil.which(program, path=f"{assets}{os.pathsep}{os.environ.get('PATH', os.defpath)}") or ""


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not real(program), reason=f"no {program} on the PATH or in KUBEBUILDER_ASSETS")


def test_every_applied_object_fits_its_schema(machine: Machine, again: Step, mirror: Mirror) -> None:
    assert again.run.status == 0, again.run.explain()
    minor: str = mirror.table["kubernetes_minor"]
    calls = machine.output("cat /var/log/recorded/kubectl-applied.jsonl").splitlines()
    objects = [json.loads(json.loads(call)["arguments"][0]) for call in calls]
    seen = set()
    for item in objects:
        if "tigera" not in item["apiVersion"]:
            schemas.validate(item, minor)
            seen.add(item["kind"])
    assert {"RuntimeClass", "StorageClass", "Deployment", "CronJob"} <= seen


@needs("kubeadm")
def test_kubeadm_accepts_the_configuration(machine: Machine, again: Step, tmp_path: Path) -> None:
    assert again.run.status == 0, again.run.explain()
    path = tmp_path / "kubeadm.yaml"
    path.write_text(machine.output(f"cat {KUBEADM_CONFIGURATION}"))
    done = subprocess.run(
        [real("kubeadm"), "config", "validate", "--config", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@needs("crio")
def test_crio_reads_the_configuration(machine: Machine, again: Step, tmp_path: Path) -> None:
    assert again.run.status == 0, again.run.explain()
    for name in machine.output(f"ls {CRIO_DROP_INS}").split():
        (tmp_path / name).write_text(machine.output(f"cat {CRIO_DROP_INS}/{name}"))
    command = [real("crio"), "--config", "", "--config-dir", str(tmp_path), "config"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "[crio.runtime.runtimes.nvidia]" in done.stdout
