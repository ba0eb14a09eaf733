"""The node's commands as a user meets them: a process, its output, its exit code."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.node.checks import registered
from tests.integration.node.conftest import ROOT, environment, harness, make_project
from tests.support.module_python import module_python

pytestmark = pytest.mark.long

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="judging this machine needs root's rights")
no_node = pytest.mark.skipif(Path("/etc/kubernetes/admin.conf").exists(), reason="this machine is a node, and well")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with two roles that only say things and write one file."""
    make_project(tmp_path)
    role(tmp_path, "swap", '- name: Write\n  ansible.builtin.copy: {content: a, dest: "{{ playbook_dir }}/made"}\n')
    role(tmp_path, "kernel", "- name: Say\n  ansible.builtin.debug: {msg: hello}\n")
    (tmp_path / "site.yml").write_text(
        "- name: Node\n  hosts: all\n  gather_facts: false\n  roles:\n"
        "    - {role: swap, tags: [swap]}\n    - {role: kernel, tags: [kernel]}\n"
    )
    return tmp_path


def role(project: Path, name: str, tasks: str) -> None:
    folder = project / "roles" / name / "tasks"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "main.yml").write_text(tasks)


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def test_provision_shows_each_task_as_it_ends_and_seconds_and_tasks_per_role(project: Path, tmp_path: Path) -> None:
    done = harness("node", "provision", project=project, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split("  ")[:2] for line in done.stderr.splitlines()] == [
        ["== Node"],
        ["swap: Write", "changed"],
        ["kernel: Say", "ok"],
    ]
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["role", "tasks", "changed", "seconds"]
    assert [row[:3] for row in rows[1:4]] == [["swap", "1", "1"], ["kernel", "1", "0"], ["total", "2", "1"]]
    assert harness("node", "provision", "--json", project=project).stdout.count('"changed": 0') >= 2


def test_check_and_tags_reach_the_run(project: Path) -> None:
    data = document(harness("node", "provision", "--check", "--tags", "swap", "--json", project=project))
    assert (data["check_mode"], data["changed"], data["ok"]) == (True, 1, True)
    assert [each["role"] for each in data["roles"]] == ["swap"]
    assert not (project / "made").exists()


def test_an_inventory_without_a_host_is_no_node_that_was_made(project: Path) -> None:
    (project / "hosts.ini").write_text("")
    done = harness("node", "provision", project=project)
    assert done.returncode == 10
    assert "error: Nothing was done: site.yml found no host or no task to run." in done.stderr
    assert "ok:" not in done.stdout


def test_a_failing_task_ends_with_10_and_the_hosts_error(project: Path) -> None:
    role(project, "kernel", "- name: Break\n  ansible.builtin.command: ls /no-such-folder\n")
    done = harness("node", "provision", project=project)
    assert done.returncode == 10
    assert "here kernel: Break" in done.stdout
    assert "/no-such-folder" in done.stdout
    assert "error: Task 'kernel: Break' failed on here" in done.stderr
    assert "  do: Fix the cause and run it again" in done.stderr
    failed = harness("node", "provision", "--json", project=project)
    [failure] = document(failed)["failures"]
    assert (failure["task"], failure["path"].rpartition("/")[2]) == ("Break", "main.yml:1")
    assert json.loads(failed.stderr.splitlines()[-1])["exit_code"] == 10


def test_a_run_that_takes_too_long_ends_with_10(project: Path) -> None:
    role(project, "kernel", "- name: Sleep\n  ansible.builtin.command: sleep 302\n")
    done = harness("node", "provision", "--timeout", 3, project=project)
    assert done.returncode == 10
    assert "was stopped after" in done.stderr


def test_an_interrupt_ends_with_130(project: Path) -> None:
    seconds = f"303.{os.getpid()}"  # nobody else on the machine sleeps as long
    role(project, "kernel", f"- name: Sleep\n  ansible.builtin.command: sleep {seconds}\n")
    command = [sys.executable, "-m", "harness", "node", "provision"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(project), cwd=ROOT) as process:
        assert process.stderr is not None
        assert any("swap: Write" in line for line in iter(process.stderr.readline, ""))
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == 130
    assert "stopped by a signal" in rest
    assert not [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", seconds]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("node", "provision", "--inventory", "/no/hosts"), "no inventory /no/hosts"),
        (("node", "verify", "--only", "swop"), "no checks in swop"),
        (("node", "offline-list", "--only", "pictures"), "nothing called pictures"),
        (("node", "reboot-test", "--before", "a", "--after", "b"), "two halves"),
        (("node", "provision", "--timeout", "soon"), "timeout"),
    ],
)
def test_a_wrong_command_ends_with_2(words: tuple[str, ...], message: str) -> None:
    done = harness(*words)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_folder_without_playbooks_is_told(tmp_path: Path) -> None:
    done = harness("node", "provision", project=tmp_path)
    assert done.returncode == 2
    assert "There are no playbooks" in done.stderr


def test_a_limit_that_matches_nothing_is_told() -> None:
    done = harness("node", "verify", "--limit", "nowhere")
    assert done.returncode == 10
    assert "nowhere" in done.stderr


@needs_root
def test_the_verdict_is_one_document_and_an_exit_code() -> None:
    done = harness("node", "verify", "--json", "--only", "kernel", "--only", "swap")
    data = document(done)
    assert done.returncode == (0 if data["ok"] else 10)
    assert data["host"] == "localhost"
    assert data["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    judged = {check["name"] for check in data["checks"]} | {each["name"] for each in data["not_applicable"]}
    assert judged == {check.name for check in registered() if check.area in {"kernel", "swap"}}
    assert all(check["advice"] for check in data["checks"] if not check["ok"])
    assert data["others"] == []


@needs_root
@no_node
def test_the_verdict_in_words_says_what_to_do(tmp_path: Path) -> None:
    done = harness("node", "verify", "--only", "packages", cwd=tmp_path)
    assert done.returncode == 10
    assert "NO  packages/versions" in done.stdout
    assert "  do: Run the crio and kubernetes_packages roles again" in done.stdout


def test_an_inventory_of_a_control_plane_alone_is_judged(tmp_path: Path) -> None:
    host = {
        "ansible_connection": "local",
        "ansible_python_interpreter": module_python(),
        "dcgm_exporter_profiling": "maybe",
    }
    (tmp_path / "hosts.yml").write_text(json.dumps({"control_plane": {"hosts": {"localhost": host}}}))
    (tmp_path / "group_vars").symlink_to(ROOT / "inventory" / "group_vars")
    done = harness("node", "provision", "--check", "--inventory", tmp_path / "hosts.yml")
    assert done.returncode == 10
    assert "dcgm_exporter_profiling" in done.stderr
    assert "== Make the machine ready" not in done.stderr


def test_the_offline_list_is_what_the_table_says() -> None:
    data = document(harness("node", "offline-list", "--json"))
    assert {each["name"] for each in data["packages"]} >= {"cri-o", "kubeadm", "kubelet", "kubectl", "cri-tools"}
    assert all(each["version"] for each in data["packages"])
    assert all(len(each["sha256"]) == 64 and each["url"].startswith("https://") for each in data["files"])
    assert all("." in image.partition("/")[0] and ":" in image for image in data["images"])
    assert any(each.startswith("torch==") for each in data["requirements"])
    lines = harness("node", "offline-list", "--only", "images").stdout.splitlines()
    assert lines == [f"image {image}" for image in data["images"]]


def test_the_offline_list_follows_the_inventorys_choice(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(
        "control_plane: {hosts: {n: {kubernetes_minor: '1.34', ansible_connection: local}}}\n"
    )
    (tmp_path / "group_vars").symlink_to(ROOT / "inventory" / "group_vars")
    data = document(harness("node", "offline-list", "--json", "--inventory", tmp_path / "hosts.yml"))
    versions = {each["name"]: each["version"] for each in data["packages"]}
    assert versions["kubelet"].startswith("1.34.")
    assert any("kube-apiserver:v1.34." in image for image in data["images"])
