"""The batch script of docs/recipes.md, run by bash: Slurm's commands and the harness are recorders, its signals are real."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_documentation import ROOT, blocks

JOB = "4711"
HARNESS = f"""#!{sys.executable}
import os, signal, sys
print(*sys.argv[1:], file=open("calls", "a"))
if sys.argv[1] == "run":
    os.makedirs(sys.argv[4] + "/mine-20260131T235959Z", exist_ok=True)
if sys.argv[1] == "publish":
    sys.exit(0)
if os.path.exists("quick"):
    sys.exit(int(open("quick").read()))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("started", flush=True)
signal.sigwait([signal.SIGTERM])
sys.exit(130)
"""


@pytest.fixture
def submitted(tmp_path: Path) -> Path:
    (script,) = blocks(ROOT / "docs" / "recipes.md", "bash")
    (tmp_path / "campaign.sbatch").write_text(script)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "activate").write_text(f'PATH="{programs}:$PATH"\n')
    (programs / "harness").write_text(HARNESS)
    (programs / "scontrol").write_text('#!/bin/sh\necho scontrol "$@" >> calls\n')
    for name in ("harness", "scontrol"):
        (programs / name).chmod(0o755)
    return tmp_path


def job(folder: Path) -> "subprocess.Popen[str]":
    environment = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": JOB, "SLURM_SUBMIT_DIR": str(folder)}
    command = ["bash", str(folder / "campaign.sbatch"), "mine.yaml"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)


def started(folder: Path) -> "subprocess.Popen[str]":
    running = job(folder)
    assert running.stdout.readline() == "started\n"
    return running


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def test_at_the_time_limit_the_job_goes_back_to_the_queue_and_its_next_run_resumes(submitted):
    first = started(submitted)
    first.send_signal(signal.SIGUSR1)  # --signal=B: to the script alone
    first.communicate()
    assert first.returncode == 130
    assert calls(submitted) == [f"run mine.yaml --results results/slurm-{JOB}", f"scontrol requeue {JOB}"]

    (submitted / "calls").unlink()
    (submitted / "quick").write_text("0")
    second = job(submitted)
    second.communicate()
    assert second.returncode == 0
    campaign = f"results/slurm-{JOB}/mine-20260131T235959Z/"
    assert calls(submitted) == [f"resume {campaign}", f"publish {campaign} --out results/slurm-{JOB}.tar.xz"]


def test_what_ends_the_whole_job_does_not_put_it_back(submitted):
    running = started(submitted)
    os.killpg(running.pid, signal.SIGTERM)  # scancel and pre-emption: to every process
    running.communicate()

    assert running.returncode != 0  # 130, or 255: bash can lose the status of what ends just as its own signal comes
    assert calls(submitted) == [f"run mine.yaml --results results/slurm-{JOB}"]


def test_a_campaign_that_fails_fails_the_job(submitted):
    (submitted / "quick").write_text("4")
    running = job(submitted)
    running.communicate()

    assert running.returncode == 4
    assert calls(submitted) == [f"run mine.yaml --results results/slurm-{JOB}"]
