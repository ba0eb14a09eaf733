"""What the machine says, parsed; and a real machine, this one, asked through testinfra."""

import os
import shutil
import sys
from pathlib import Path

import pytest
import testinfra

from harness.errors import NodeUnreachableError
from harness.node.machine import Machine, _native_host, _share_connection, package_states, unit_state

UNIT = """LoadState=loaded
ActiveState=active
SubState=running
UnitFileState=enabled
Result=success
NeedDaemonReload=no
ExecMainStartTimestamp=@1767323045
"""


def test_a_running_unit() -> None:
    state = unit_state(UNIT)
    assert (state.load, state.active, state.sub, state.enabled) == ("loaded", "active", "running", "enabled")
    assert state.started_at_s == 1767323045.0
    assert not state.needs_reload


def test_a_unit_that_does_not_exist_or_has_not_started() -> None:
    assert unit_state("").load == "not-found"
    assert unit_state("").active == "unknown"
    assert unit_state("ExecMainStartTimestamp=\nNeedDaemonReload=yes\n").started_at_s is None
    assert unit_state("NeedDaemonReload=yes\n").needs_reload


def test_packages_held_half_installed_and_removed() -> None:
    states = package_states(
        "kubelet|1.35.8-1.1|hold ok installed\ncri-o|1.35.6|install ok half-configured\nx|1|deinstall ok config-files\n"
    )
    assert (states["kubelet"].held, states["kubelet"].installed) == (True, True)
    assert (states["cri-o"].held, states["cri-o"].installed) == (False, False)
    assert not states["x"].installed


@pytest.fixture(scope="module")
def here() -> Machine:
    return Machine(testinfra.get_host("local://"))


def test_files_of_this_machine(here: Machine, tmp_path: Path) -> None:
    file = tmp_path / "a file"
    file.write_text("text; $HOME %s\n")
    file.chmod(0o640)
    (tmp_path / "link").symlink_to(file)
    assert here.read(str(file)) == "text; $HOME %s\n"
    assert here.read(str(tmp_path / "none")) is None
    state = here.stat(str(tmp_path / "link"))
    assert (state.kind, state.mode) == ("regular file", 0o640)
    assert state.changed_at_s == pytest.approx(file.stat().st_ctime, abs=1.0)
    assert here.stat(str(tmp_path / "none")) is None
    assert here.listing(str(tmp_path)) == ["a file", "link"]
    assert here.listing(str(tmp_path / "none")) == []


def test_commands_of_this_machine(here: Machine) -> None:
    output = here.command("sh", "-c", "echo out; echo err >&2; exit 3")
    assert (output.exit_code, output.stdout, output.stderr) == (3, "out\n", "err\n")
    assert here.command("no-such-command-here").exit_code == 127


def test_packages_of_this_machine(here: Machine) -> None:
    if not Path("/usr/bin/dpkg-query").exists():
        pytest.skip("this machine has no Debian packages")
    assert here.packages()["dpkg"].installed


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh")
def test_a_machine_that_does_not_answer_is_unreachable(tmp_path: Path) -> None:
    options = f"-o UserKnownHostsFile={tmp_path}/known -o BatchMode=yes"
    host = testinfra.get_host(f"ssh://{os.environ.get('USER', 'root')}@127.0.0.1:9", ssh_extra_args=options)
    with pytest.raises(NodeUnreachableError, match="did not answer"):
        Machine(host).read("/etc/hostname")


def test_what_is_set_on_a_connection_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that was removed with an earlier connection must not come back in the next one."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    inventory = tmp_path / "hosts.ini"
    inventory.write_text("node ansible_host=127.0.0.1 ansible_port=9\n")
    seen = []
    for name in ("first", "second"):
        native = _native_host("node", inventory)
        assert not native.backend.sudo
        _share_connection(native, str(tmp_path / name))
        native.backend.sudo = True
        seen.append(native.backend.ssh_extra_args)
    assert [str(tmp_path / "first") in seen[0], str(tmp_path / "first") in seen[1]] == [True, False]
    assert str(tmp_path / "second") in seen[1]
