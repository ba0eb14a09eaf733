"""A user's kubeconfig: another cluster's is kept beside ours, never written over, and put back when ours goes."""

import getpass
import os

import pytest
import tree
from fake_module import Failed, FakeModule, ended

module = tree.module("kubeconfig")
YAML = """\
apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: {authority}
    server: https://192.0.2.1:6443
  name: kubernetes
users: [{{name: kubernetes-admin, user: {{client-key-data: {key}}}}}]
"""
JSON = '{{"clusters": [{{"name": "c", "cluster": {{"server": "https://x", "certificate-authority-data": "{authority}"}}}}]}}'
OURS = YAML.format(authority="T1VSUw==", key="one")
OTHER = YAML.format(authority="T1RIRVI=", key="two")
FIRST, SECOND = "config.before-gpu-sharing-harness", "config.before-gpu-sharing-harness.2"


@pytest.fixture
def home(tmp_path):
    """A home with a folder for kubeconfigs, and the administrator's beside it."""
    (tmp_path / "admin.conf").write_text(OURS)
    (tmp_path / "ada/.kube").mkdir(parents=True)
    return tmp_path / "ada/.kube"


@pytest.fixture
def run(home, monkeypatch):
    def once(state="present", *, check_mode=False):
        """Whether the module changed something, and the name that it speaks of."""
        paths = {"path": str(home / "config"), "source": str(home.parents[1] / "admin.conf")}
        fake = FakeModule(check_mode=check_mode, owner=getpass.getuser(), state=state, account="", **paths)
        result = ended(monkeypatch, module, fake)
        return result["changed"], result["kept"].removeprefix(f"{home}/")

    return once


def files(home):
    return {path.name: path.read_text() for path in home.iterdir()}


def test_a_new_one_is_its_owner_s_alone_and_goes_without_a_trace(home, run):
    assert run() == (True, "")
    assert (home / "config").stat().st_mode & 0o777 == 0o600
    assert run() == (False, "")
    assert run("absent") == (True, "")
    assert files(home) == {}
    assert run("absent") == (False, "")


@pytest.mark.parametrize(
    "other",
    [
        OTHER,
        JSON.format(authority="T1RIRVI="),
        OURS + OTHER,
        OURS + "- cluster: {server: https://x, insecure-skip-tls-verify: true}\n",
        "not a kubeconfig",
        "",
    ],
    ids=["other", "json", "merged", "no-authority", "text", "empty"],
)
def test_what_is_not_this_cluster_s_is_kept_and_put_back(home, run, other):
    (home / "config").write_text(other)
    (home / "config").chmod(0o640)
    assert run() == (True, FIRST)
    assert files(home) == {"config": OURS, FIRST: other}
    assert run() == (False, "")
    assert run("absent") == (True, FIRST)
    assert files(home) == {"config": other}
    assert (home / "config").stat().st_mode & 0o777 == 0o640
    assert run("absent") == (False, "")


@pytest.mark.parametrize(
    "ours",
    [OURS.replace("one", "renewed"), JSON.format(authority="T1VSUw=="), OURS + "current-context: mine\n"],
    ids=["renewed", "json", "edited"],
)
def test_this_cluster_s_is_replaced_without_a_copy(home, run, ours):
    (home / "config").write_text(ours)
    assert run() == (True, "")
    assert files(home) == {"config": OURS}


def test_a_kept_file_is_never_written_over(home, run):
    (home / "config").write_text(OTHER)
    run()
    (home / "config").write_text("a third one")
    assert run() == (True, SECOND)
    assert files(home) == {"config": OURS, FIRST: OTHER, SECOND: "a third one"}
    assert run("absent") == (True, SECOND)
    assert files(home) == {"config": "a third one", FIRST: OTHER}


def test_another_s_file_in_the_place_of_ours_stays_at_a_reset(home, run):
    (home / "config").write_text(OTHER)
    run()
    (home / "config").write_text("a third one")
    assert run("absent") == (False, "")
    assert files(home) == {"config": "a third one", FIRST: OTHER}


def test_a_run_that_was_killed_after_the_copy_makes_no_second_one(home, run):
    (home / "config").write_text(OTHER)
    os.link(home / "config", home / FIRST)
    assert run() == (True, FIRST)
    assert files(home) == {"config": OURS, FIRST: OTHER}


def test_a_link_is_kept_as_a_link_and_what_it_leads_to_is_not_touched(home, run):
    (home / "dotfile").write_text(OTHER)
    (home / "config").symlink_to("dotfile")
    assert run() == (True, FIRST)
    assert (home / FIRST).is_symlink()
    assert files(home) == {"config": OURS, FIRST: OTHER, "dotfile": OTHER}


def test_check_mode_says_what_it_would_do_and_touches_nothing(home, run):
    (home / "config").write_text(OTHER)
    assert run(check_mode=True) == (True, FIRST)
    assert files(home) == {"config": OTHER}
    run()
    assert run("absent", check_mode=True) == (True, FIRST)
    assert files(home) == {"config": OURS, FIRST: OTHER}


def test_a_machine_without_a_cluster_can_be_checked_and_has_nothing_to_remove(home, run):
    (home.parents[1] / "admin.conf").unlink()
    assert run(check_mode=True) == (True, "")
    (home / "config").write_text(OURS)
    assert run("absent") == (False, "")
    with pytest.raises(Failed, match=r"could not be brought to its state.*admin.conf"):
        run()


def test_a_reset_asks_whose_it_is_while_the_cluster_s_authority_is_there():
    tasks = tree.load(tree.ROOT / "roles/control_plane/tasks/reset.yml")
    own = next(number for number, task in enumerate(tasks) if "kubeconfig" in task)
    assert own < next(number for number, task in enumerate(tasks) if "ansible.builtin.command" in task)
