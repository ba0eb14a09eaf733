"""Run the project's playbooks against a machine, as a user would over ssh; or kill them on the way."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.node.machine import image
from tests.node.machine.errors import MachineError
from tests.node.machine.vm import Machine

ROOT = Path(__file__).parents[2]
WITHIN_S = 1800.0
HOST = "node"
WORKER = "worker"
# A task takes half a second here: in its middle.
_INTO_A_TASK_S = 0.25
# What Ansible does without asking the machine.
OURS = {
    f"ansible.builtin.{name}"
    for name in ("assert", "debug", "fail", "set_fact", "include_tasks", "validate_argument_spec")
}


@dataclass
class Task:
    """One task of a run: where it stands, what became of it; with several hosts, of the last or of one that failed."""

    name: str
    role: str
    action: str
    play: str
    started_at: float
    status: str = "running"
    changed: bool = False
    message: str = ""
    duration_s: float = 0.0

    @property
    def reached_the_machine(self) -> bool:
        """Whether a module ran there."""
        return self.status != "skipped" and self.action not in OURS


@dataclass
class Run:
    """What a playbook run did.

    status: the exit status, negative when it was killed. by_host: Ansible's figures (ok, changed...) of each host.
    """

    playbook: str
    status: int
    duration_s: float
    tasks: list[Task]
    by_host: dict[str, dict[str, int]] = field(default_factory=dict)
    output: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """Figures of all hosts, added up; empty where the run did not get to its end."""
        names = {name for host in self.by_host.values() for name in host}
        return {name: sum(host[name] for host in self.by_host.values()) for name in names}

    @property
    def changed(self) -> list[Task]:
        """Tasks that changed something."""
        return [task for task in self.tasks if task.changed]

    @property
    def failed(self) -> list[Task]:
        """Tasks that failed."""
        return [task for task in self.tasks if task.status in {"failed", "unreachable"}]

    def explain(self) -> str:
        """Why it is not what a test expected: failures with the host's own words, else the end of the output."""
        failures = [f"{task.role} : {task.name}: {task.message}" for task in self.failed]
        changes = [f"changed: {task.role} : {task.name}" for task in self.changed]
        return "\n".join([f"{self.playbook} ended {self.status}", *failures, *changes, self.output[-3000:]])


class Playbooks:
    """The project's playbooks with an inventory of one machine, or of a second one that joins it.

    variables, worker_variables: host variables on top of the project's own group variables.
    """

    def __init__(
        self,
        machine: Machine,
        variables: dict[str, Any],
        *,
        worker: Machine | None = None,
        worker_variables: dict[str, Any] | None = None,
    ) -> None:
        self.machine = machine
        self.worker = worker
        self.folder = machine.folder / "ansible"
        self.folder.mkdir(exist_ok=True)
        link = self.folder / "group_vars"
        if not link.exists():
            link.symlink_to(ROOT / "inventory/group_vars")
        self.inventory = self.folder / "hosts.yml"
        hosts = {HOST: connection(machine) | variables}
        workers = {WORKER: connection(worker) | (worker_variables or {})} if worker else {}
        groups = {"control_plane": {"hosts": hosts}, "workers": {"hosts": workers}}
        self.inventory.write_text(yaml.safe_dump({"all": {"children": groups}}))

    def run(self, playbook: str, *arguments: str, **variables: Any) -> Run:
        """Run a playbook to its end; extra variables as keyword arguments."""
        return self._finish(playbook, self._start(playbook, arguments, variables), kill_at=None)

    def run_killed(self, playbook: str, task_names: Collection[str], delay_s: float, *arguments: str) -> Run:
        """Run a playbook and kill it, with every process of it, a moment after the first of these tasks began."""
        process = self._start(playbook, arguments, {})
        return self._finish(playbook, process, kill_at=(task_names, delay_s))

    def run_dropped(self, playbook: str, drops: dict[str, float], *arguments: str) -> Run:
        """Run a playbook, and have the machine end every ssh connection a moment after each of these tasks began.

        drops: task -> seconds for which the machine takes no new connection.
        """
        process, began = self._start(playbook, arguments, {})
        for task_name, away_s in drops.items():
            if self._wait_for(process, [task_name]):
                time.sleep(_INTO_A_TASK_S)
                self.machine.drop_ssh(away_s)
        done = self._finish(playbook, (process, began), kill_at=None)
        self.machine.wait_for_ssh()
        return done

    def _start(
        self, playbook: str, arguments: tuple[str, ...], variables: dict[str, Any]
    ) -> tuple["subprocess.Popen[bytes]", float]:
        self.journal.unlink(missing_ok=True)
        extra = ["--extra-vars", json.dumps(variables)] if variables else []
        program = Path(sys.executable).parent / "ansible-playbook"
        # A pid namespace of its own: its end takes the workers and the ssh connections along.
        inside = ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
        command = [*inside, str(program), "-i", str(self.inventory), str(ROOT / playbook), *arguments, *extra]
        with (self.folder / "output.log").open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=self.environment(TASK_JOURNAL=str(self.journal)),
            )
        return process, time.monotonic()

    @property
    def journal(self) -> Path:
        """Where the callback writes."""
        return self.folder / "journal.jsonl"

    def environment(self, **more: str) -> dict[str, str]:
        """Environment for whatever runs Ansible against this machine; a journal is kept where TASK_JOURNAL is given."""
        callbacks = ["built_modules", "lean_forks", *(["task_journal"] if "TASK_JOURNAL" in more else [])]
        return os.environ | {
            "ANSIBLE_CALLBACK_PLUGINS": str(Path(__file__).parent / "callback"),
            "ANSIBLE_CALLBACKS_ENABLED": ",".join(callbacks),
            # A third of a second for each module, in each run: they are the same in all runs of these tests.
            "BUILT_MODULES": str(self.machine.folder.parent / "built_modules"),
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_HOME": str(self.folder / "home"),
            # The connection that the machine keeps open; Ansible makes its own where that has ended with a boot.
            "ANSIBLE_SSH_CONTROL_PATH": self.machine.control_path.replace("%", "%%"),
            # Every machine of these tests is new and nobody has seen its key.
            "ANSIBLE_HOST_KEY_CHECKING": "false",
            "ANSIBLE_NOCOLOR": "true",
            "ANSIBLE_FORCE_COLOR": "false",
            **more,
        }

    def _finish(
        self,
        playbook: str,
        started: tuple["subprocess.Popen[bytes]", float],
        kill_at: tuple[Collection[str], float] | None,
    ) -> Run:
        process, began = started
        try:
            if kill_at is not None:
                self._kill_at(process, *kill_at)
            status = process.wait(WITHIN_S)
        except subprocess.TimeoutExpired as error:
            said = (self.folder / "output.log").read_text(errors="replace")[-3000:]
            raise MachineError(f"{playbook} did not end within {WITHIN_S:.0f} s; it said last: {said}") from error
        finally:
            process.kill()
            process.wait()
        duration_s = time.monotonic() - began
        tasks, by_host = _read_journal(self.journal)
        output = (self.folder / "output.log").read_text(errors="replace")
        return Run(playbook, status, duration_s, tasks, by_host, output)

    def _kill_at(self, process: "subprocess.Popen[bytes]", task_names: Collection[str], delay_s: float) -> None:
        if self._wait_for(process, task_names):
            time.sleep(delay_s)
            process.kill()

    def _wait_for(self, process: "subprocess.Popen[bytes]", task_names: Collection[str]) -> bool:
        """Whether a task of one of these names began before the run ended."""
        names = "|".join(re.escape(json.dumps(name)) for name in task_names)
        wanted = re.compile(f'"event": "start", "name": (?:{names})')
        while process.poll() is None:
            if self.journal.exists() and wanted.search(self.journal.read_text()):
                return True
            time.sleep(0.02)
        return False


def connection(machine: Machine) -> dict[str, str]:
    """Host variables by which Ansible reaches a machine."""
    return {
        "ansible_ssh_common_args": f"-F {machine.ssh_config}",
        "ansible_host": machine.name,
    } | run_by(image.WARM_PYTHON)


def run_by(python: str) -> dict[str, str]:
    """Host variables by which a Python runs Ansible's modules, and this project's."""
    return {"ansible_python_interpreter": python}


def _read_journal(journal: Path) -> tuple[list[Task], dict[str, dict[str, int]]]:
    tasks: dict[str, Task] = {}
    by_host: dict[str, dict[str, int]] = {}
    lines = journal.read_text().splitlines() if journal.exists() else []
    for line in lines:
        entry = json.loads(line)
        if entry["event"] == "start":
            tasks[entry["task"]] = Task(entry["name"], entry["role"], entry["action"], entry["play"], entry["at"])
        elif entry["event"] == "stats":
            by_host = entry["hosts"]
        else:
            task = tasks[entry["task"]]
            task.changed |= entry["changed"]
            if task.status not in {"failed", "unreachable"}:
                task.status, task.message = entry["status"], entry["message"]
            task.duration_s = entry["at"] - task.started_at
    return list(tasks.values()), by_host
