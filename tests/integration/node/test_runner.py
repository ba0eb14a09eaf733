"""Real runs of ansible-playbook on this machine, with playbooks that do nothing but end in different ways."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from harness.errors import NodeTimeoutError, PlaybookError, UsageError
from harness.node.events import NodeEvent, RunStatus, RunSummary, TaskEnded, TaskOutcome, TaskStarted
from harness.node.runner import NodeRunner, RunRequest
from harness.supervisor import descendants
from tests.integration.node.conftest import make_project

pytestmark = [
    pytest.mark.long,
    # From Python 3.12 on, a fork beside threads warns; ansible-runner forks a terminal, and we read it in a thread.
    pytest.mark.filterwarnings("ignore:.*forkpty.*:DeprecationWarning"),
]

T = TypeVar("T")

HEAD = "- name: Try\n  hosts: all\n  gather_facts: false\n  tasks:\n"
SLEEP_S = f"300.{os.getpid()}"
"""Nobody else on the machine sleeps as long, such as another run of these tests."""
SLEEP = f"    - name: Sleep\n      ansible.builtin.command: sleep {SLEEP_S}\n"
SLEEPS = f"sleep\0{SLEEP_S}".encode()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose only host is this machine."""
    return make_project(tmp_path / "project")


def write(project: Path, tasks: str, name: str = "play.yml") -> RunRequest:
    (project / name).write_text(HEAD + textwrap.indent(textwrap.dedent(tasks), "    "))
    return RunRequest(Path(name))


def folders(pid: int | None = None) -> set[Path]:
    """Folders of runs that a process has begun, by default this one."""
    return {path for root in ("/dev/shm", "/tmp") for path in Path(root).glob(f"harness-node-{pid or os.getpid()}-*")}


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before, signals = folders(), [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    others = set(descendants(os.getpid()))  # of other tests
    yield
    assert not folders() - before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == signals
    assert not [pid for pid in {*descendants(os.getpid())} - others if b"ansible" in command_line(pid)]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_run_reports_changes_timings_and_every_event(project: Path) -> None:
    request = write(
        project,
        """\
        - name: Say
          ansible.builtin.debug: {msg: hello}
        - name: Change
          ansible.builtin.copy: {content: "a", dest: "{{ playbook_dir }}/made", mode: "0600"}
        """,
    )
    events: list[NodeEvent] = []
    first = NodeRunner(project, listener=events.append).run(request).require_ok()
    assert first.changed == 1
    assert [record.task for record in first.changes] == ["Change"]
    assert [event.name for event in events if isinstance(event, TaskStarted)] == ["Say", "Change"]
    assert [event.outcome for event in events if isinstance(event, TaskEnded)] == [TaskOutcome.OK, TaskOutcome.CHANGED]
    assert first.roles[0].tasks == 2
    assert 0 < first.roles[0].duration_s < first.duration_s
    assert NodeRunner(project).run(request).require_ok().changed == 0


def test_tags_limit_and_variables_reach_ansible(project: Path) -> None:
    (project / "hosts.ini").write_text("a ansible_connection=local\nb ansible_connection=local\n")
    write(
        project,
        """\
        - name: Wanted
          ansible.builtin.assert: {that: "number == 3"}
          tags: [wanted]
        - name: Unwanted
          ansible.builtin.fail: {msg: no}
        """,
    )
    request = RunRequest(Path("play.yml"), tags=("wanted",), limit="b", variables={"number": 3})
    summary = NodeRunner(project).run(request).require_ok()
    assert list(summary.hosts) == ["b"]
    assert summary.hosts["b"]["ok"] == 1


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh")
def test_an_unreachable_host_is_unreachable(project: Path) -> None:
    (project / "hosts.ini").write_text("gone ansible_host=127.0.0.1 ansible_port=9 ansible_ssh_retries=0\n")
    summary = NodeRunner(project).run(write(project, "- name: Ask\n  ansible.builtin.ping:\n"))
    assert summary.status is RunStatus.UNREACHABLE
    assert summary.failures[0].host == "gone"
    assert "refused" in summary.failures[0].error.lower()


def test_a_playbook_that_cannot_be_parsed_is_told_with_ansibles_words(project: Path) -> None:
    (project / "play.yml").write_text("- hosts: all\n  tasks:\n    - no_such_module_of_ours: {}\n")
    with pytest.raises(PlaybookError, match="no_such_module_of_ours"):
        NodeRunner(project).run(RunRequest(Path("play.yml")))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (RunRequest(Path("missing.yml")), "no playbook"),
        (RunRequest(Path("play.yml"), variables={"registry_password": "x"}), "registry_password"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(
    project: Path, request_: RunRequest, message: str
) -> None:
    write(project, "- name: Say\n  ansible.builtin.debug: {msg: hello}\n")
    with pytest.raises(UsageError, match=message):
        NodeRunner(project).run(request_)


def test_a_slow_listener_costs_the_run_nothing(project: Path, tmp_path: Path) -> None:
    """Drawing the first task takes until the last one has been done: Ansible itself must not wait for the drawing."""
    mark = tmp_path / "last"
    says = "".join(f"- name: Say {i}\n  ansible.builtin.debug: {{msg: x}}\n" for i in range(10))
    request = write(
        project, says + f"- name: Last\n  ansible.builtin.copy: {{content: '', dest: {mark}, mode: '0600'}}\n"
    )
    seen: list[bool] = []

    def draw(event: NodeEvent) -> None:
        if isinstance(event, TaskEnded) and not seen:
            seen.append(bool(wait_for(mark.exists)))

    NodeRunner(project, listener=draw).run(request).require_ok()
    assert seen == [True]


def test_a_listener_that_fails_ends_the_run_and_is_heard(project: Path) -> None:
    def draw(event: NodeEvent) -> None:
        if isinstance(event, TaskStarted):
            raise RuntimeError("cannot draw")  # noqa: TRY004 - any failure will do

    (project / "play.yml").write_text(HEAD + SLEEP)
    started = time.monotonic()
    with pytest.raises(RuntimeError, match="cannot draw"):
        NodeRunner(project, listener=draw).run(RunRequest(Path("play.yml")))
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("timeout_s", [0.01, 2.5])
def test_a_run_that_takes_too_long_is_stopped(project: Path, timeout_s: float) -> None:
    (project / "play.yml").write_text(HEAD + SLEEP)
    summary = NodeRunner(project).run(RunRequest(Path("play.yml"), timeout_s=timeout_s))
    assert summary.status is RunStatus.TIMEOUT
    assert summary.duration_s < 60
    with pytest.raises(NodeTimeoutError):
        summary.require_ok()
    assert not any(SLEEPS in command_line(pid) for pid in descendants(1))


def test_runs_work_outside_the_main_thread(project: Path) -> None:
    request = write(project, "- name: Say\n  ansible.builtin.debug: {msg: hello}\n")
    summaries: list[RunSummary] = []
    thread = threading.Thread(target=lambda: summaries.append(NodeRunner(project).run(request)))
    thread.start()
    thread.join()
    assert summaries[0].ok


def test_a_killed_harness_leaves_neither_processes_nor_files(project: Path) -> None:
    """SIGKILL gives no chance to clean up: the supervisor does it."""
    (project / "play.yml").write_text(HEAD + SLEEP)
    program = (
        "import sys; from pathlib import Path; from harness.node.runner import NodeRunner, RunRequest;"
        "NodeRunner(Path(sys.argv[1]), listener=lambda e: print(type(e).__name__, flush=True))"
        ".run(RunRequest(Path('play.yml')))"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(project)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("TaskStarted" in line for line in iter(process.stdout.readline, ""))
        started = [pid for pid in wait_for(lambda: sleepers(process.pid)) if pid]
        assert folders(process.pid)
        process.kill()
    assert started
    assert wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
    assert wait_for(lambda: not folders(process.pid))


def sleepers(pid: int) -> list[int]:
    below = descendants(pid)
    return below if any(SLEEPS in command_line(child) for child in below) else []


def wait_for(condition: Callable[[], T], timeout_s: float = 200.0) -> T:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.1)
    return condition()


def test_nothing_secret_reaches_a_disk(project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Environment, hidden results and the become password: looked for in every file of the run while it runs."""
    monkeypatch.setenv("SOME_TOKEN", "s3cr3t-environment")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("ANSIBLE_LOCAL_TEMP", str(tmp_path / "local"))
    monkeypatch.setenv("HOME", str(tmp_path))
    request = write(
        project,
        """\
        - name: Hide
          ansible.builtin.debug: {msg: "s3cr3t-{{ 'result' }}"}
          no_log: true
        - name: Wait
          ansible.builtin.pause: {seconds: 1}
        """,
    )
    before = folders()
    seen: list[Path] = []

    def look(_event: NodeEvent | None) -> None:
        places = [tmp_path, *(folders() - before)]
        files = [path for place in places for path in place.rglob("*") if path.is_file()]
        seen.extend(path for path in files if path != project / "play.yml" and b"s3cr3t-" in read(path))
        seen.extend(path for path in folders() - before if path.stat().st_mode & 0o077)

    runner = NodeRunner(project, listener=look, become_password="s3cr3t-become")
    runner.run(request).require_ok()
    look(None)
    assert seen == []


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_the_projects_own_host_key_setting_counts(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANSIBLE_HOST_KEY_CHECKING", raising=False)
    request = write(
        project,
        """\
        - name: Look
          ansible.builtin.assert:
            that: lookup('ansible.builtin.config', 'HOST_KEY_CHECKING')
        """,
    )
    assert NodeRunner(project).run(request).ok
