"""``playbooks/campaign.yml`` on this machine: a real campaign of real processes, run once, fetched once, resumed when killed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
HARNESS = Path(sys.executable).with_name("harness")


@pytest.fixture
def node(tmp_path):
    """An inventory whose one machine is this one, and a campaign file."""
    inventory = {
        "all": {
            "children": {"control_plane": {"hosts": {"here": {"ansible_connection": "local"}}}},
            "vars": {"ansible_python_interpreter": sys.executable},
        }
    }
    (tmp_path / "inventory.yml").write_text(yaml.safe_dump(inventory))
    write_campaign(tmp_path)
    return tmp_path


def write_campaign(folder, factory="tests.support.tiny_workload:steady", record_s=0.5, replicas=(1,)):
    campaign = {
        "name": "tiny",
        "workloads": [{"name": "tiny", "factory": factory, "warmup_requests": 1}],
        "replicas": list(replicas),
        "timing": {"step_s": 0.1, "stabilise_s": 0, "record_s": record_s, "cooldown_s": 0, "ready_timeout_s": 30},
        "metrics": ["throughput", "total_count", "latency_p50"],
        "limits": {"retries": 0},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(campaign))


def command(node, *words, **variables):
    given = {
        "campaign_file": node / "tiny.yaml",
        "campaign_folder": node / "node",
        "campaign_results": node / "here",
        "campaign_harness": HARNESS,
        **variables,
    }
    extra = [word for name, value in given.items() if value is not None for word in ("-e", f"{name}={value}")]
    return [str(PLAYBOOK), "-i", str(node / "inventory.yml"), "playbooks/campaign.yml", *extra, *words]


ENVIRONMENT = {**os.environ, "ANSIBLE_NOCOLOR": "1", "PYTHONPATH": str(ROOT), "ANSIBLE_HOST_PATTERN_MISMATCH": "ignore"}


def play(node, *words, **variables):
    done = subprocess.run(
        command(node, *words, **variables),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=ENVIRONMENT,
        timeout=280,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def changed(output):
    return int(output.rpartition("changed=")[2].split()[0])


def fetched(node):
    return sorted(path.name for path in (node / "here").glob("*"))


def verify(folder):
    return subprocess.run([str(HARNESS), "verify", str(folder)], capture_output=True, text=True, check=False)


def test_it_runs_once_its_results_come_here_and_what_was_killed_is_resumed(node):
    status, output = play(node)
    assert status == 0, output
    [campaign] = fetched(node)
    assert verify(node / "here" / campaign).returncode == 0
    assert (node / "here" / campaign / "report.html").is_file()
    assert list((node / "node").rglob("*.tar")) == []

    status, output = play(node)
    assert (status, changed(output)) == (0, 0), output
    assert fetched(node) == [campaign]

    shutil.rmtree(node / "here" / campaign)
    status, output = play(node)
    assert status == 0, output
    assert fetched(node) == [campaign]  # fetched again, not run again

    # A changed file is another campaign; killed after its first experiment, it goes on with the second.
    write_campaign(node, record_s=10.0, replicas=(1, 2))
    kill_after_the_first_experiment(node)
    assert fetched(node) == [campaign]

    status, output = play(node)
    assert status == 0, output
    (other,) = set(fetched(node)) - {campaign}
    experiments = {path.parent.name for path in (node / "here" / other).glob("*_rep1/manifest.json")}
    assert experiments == {"tiny_r1_time-slicing_rep1", "tiny_r2_time-slicing_rep1"}
    attempts = [path.name for path in (node / "here" / other / "attempts").iterdir()]
    assert [name for name in attempts if name.startswith("tiny_r1")] == []  # what was finished was not repeated


def existing(folder, pattern):
    """What is there now; a folder that the campaign renames meanwhile is looked at the next time."""
    try:
        return list(folder.rglob(pattern))
    except FileNotFoundError:
        return []


def kill_after_the_first_experiment(node):
    before = set(existing(node / "node", "*_rep1/manifest.json"))
    playing = subprocess.Popen(
        command(node), cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    deadline_s = time.monotonic() + 280
    while not (first := set(existing(node / "node", "*_rep1/manifest.json")) - before):
        assert time.monotonic() < deadline_s, playing.communicate(timeout=5)
        assert playing.poll() is None, playing.communicate()
        time.sleep(0.1)
    os.kill(int((first.pop().parents[1] / "lock").read_text()), signal.SIGKILL)
    playing.communicate(timeout=280)
    assert playing.returncode != 0


def test_experiments_that_say_nothing_are_fetched_and_fail_the_run(node):
    write_campaign(node, factory="tests.support.dies_at_import:make")
    status, output = play(node)
    assert status != 0
    assert "The campaign ended with INVALID experiments" in output
    [campaign] = fetched(node)
    assert verify(node / "here" / campaign).returncode == 0
    assert play(node)[0] == 0  # it is finished, and said so once


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"campaign_file": None}, "campaign_file is not given"),
        ({"campaign_file": "/no/such/file.yaml"}, "campaign_file is /no/such/file.yaml"),
        ({"campaign_file": "no-such-name"}, "no-such-name"),
        ({"campaign_harness": "/no/such/harness"}, "/no/such/harness"),
    ],
)
def test_a_wrong_request_starts_nothing(node, variables, words):
    status, output = play(node, **variables)
    assert status != 0
    assert words in output
    assert list((node / "node").rglob("campaign.json")) == []


def test_check_mode_starts_nothing(node):
    status, output = play(node, "--check")
    assert status == 0, output
    assert not (node / "node").exists()
    assert not (node / "here").exists()
