"""What no task may do, and what every task has to say."""

import re

import tree
from tree import OWN_ACTIONS, OWN_MODULES, ROOT

from tests.support.cases import every

of_every_task = every(tree.every_task(), lambda path, task: f"{path.relative_to(ROOT)}:{task.get('name')}")
KEYWORDS = {
    *("name", "when", "register", "loop", "loop_control", "changed_when", "failed_when", "check_mode", "until"),
    *("retries", "delay", "delegate_to", "no_log", "vars", "tags", "become", "environment", "run_once"),
    *("async", "poll"),
}
# What a playbook of imports, or an entry of `roles`, consists of.
ENTRIES = {"role", "ansible.builtin.import_playbook"}


def action_of(task):
    actions = set(task) - KEYWORDS
    assert len(actions) == 1, f"one action per task, not {sorted(actions)}"
    return actions.pop()


@of_every_task
def test_every_task_has_a_name_and_a_fully_qualified_action(path, task):
    assert task.get("name"), f"{path}: a task without a name"
    action = action_of(task)
    assert action in OWN_MODULES | OWN_ACTIONS or re.fullmatch(r"ansible\.builtin\.\w+", action)


@of_every_task
def test_no_shell_and_no_swallowed_errors(path, task):
    action = action_of(task)
    assert action not in {"ansible.builtin.shell", "ansible.builtin.raw", "ansible.builtin.script"}, path
    assert "ignore_errors" not in task
    assert "ignore_unreachable" not in task
    assert task.get("failed_when") is not False


@of_every_task
def test_every_command_says_when_it_changes_something(path, task):
    if action_of(task) == "ansible.builtin.command":
        arguments = task["ansible.builtin.command"]
        assert "changed_when" in task or "creates" in arguments, path
        assert set(arguments) <= {"argv", "cmd", "creates", "chdir", "stdin"}
        assert not re.search(r"[|;&><`$]", str(arguments.get("cmd", ""))), "a command line that wants a shell"


@of_every_task
def test_a_task_that_handles_a_token_is_not_logged(path, task):
    if "token" in str(task.get("register", "")) or "join_token" in str(task):
        assert task.get("no_log") is True, path


def test_site_is_a_list_of_imported_playbooks():
    entries = tree.load(ROOT / "site.yml")
    assert [set(entry) for entry in entries] == [{"name", "ansible.builtin.import_playbook"}] * len(entries)


@every(tree.ROLES)
def test_main_is_a_table_of_contents(role):
    tasks = tree.load(ROOT / "roles" / role / "tasks/main.yml")
    assert len(tasks) <= 5


def test_no_handler_is_relied_upon():
    # A handler is lost when a run is killed before it is flushed: node_units looks at the machine instead.
    assert list((ROOT / "roles").glob("*/handlers/*.yml")) == []
    assert not [path for path, task in tree.every_task() if "notify" in task]


def test_the_checks_see_what_they_are_for():
    bad = [{"name": "x", "ansible.builtin.shell": "true"}, {"block": [{"name": "y", "command": "true"}]}]
    assert [action_of(task) for task in tree.tasks(bad)] == ["ansible.builtin.shell", "command"]
