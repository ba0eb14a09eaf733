"""Units are judged by when they started and when their files changed, so that a killed run loses no restart."""

import os
import time

import pytest
import tree
from fake_module import Failed, FakeModule

module = tree.shared("node_units")


def machine(**values):
    """One unit, as `systemctl show` prints it; a start or restart makes it active."""
    return {
        "LoadState": "loaded",
        "ActiveState": "active",
        "UnitFileState": "enabled",
        "NeedDaemonReload": "no",
        "ActiveEnterTimestampMonotonic": str(int(time.monotonic() * 1e6)),
        "Type": "notify",
        **values,
    }


def units(shown, *, comes_up=True, check_mode=False, written=()):
    def answer(words):
        if words[1] == "show":
            return (0, "\n".join(f"{name}={value}" for name, value in shown.items()), "")
        if words[1] in ("start", "restart"):
            shown["ActiveState"] = "active" if comes_up else "failed"
        return (0, "crio: no runtime binary found", "") if words[0] == "journalctl" else None

    fake = FakeModule(answer, check_mode=check_mode, settle_s=0.0, journal_lines=3)
    return module.Units(fake, written)


def wanted(state="running", paths=(), *, optional=False):
    return {"name": "crio.service", "state": state, "paths": [str(path) for path in paths], "optional": optional}


def actions(shown, unit, **how):
    found = units(shown, **how)
    found.apply(unit)
    found.settle()
    return found.actions


def started(seconds_ago):
    return {"ActiveEnterTimestampMonotonic": str(int((time.monotonic() - seconds_ago) * 1e6))}


def test_a_unit_that_started_after_its_files_changed_is_left_alone(tmp_path):
    (tmp_path / "a.conf").touch()
    time.sleep(0.01)
    assert actions(machine(**started(0.0)), wanted(paths=[tmp_path])) == []


def test_a_unit_older_than_a_file_restarts_even_when_the_file_pretends_to_be_old(tmp_path):
    path = tmp_path / "crio"
    path.touch()
    os.utime(path, (0, 0))  # a package's file is older than its installation
    assert actions(machine(**started(60.0)), wanted(paths=[path])) == ["restart crio.service"]


def test_a_removed_drop_in_restarts_too(tmp_path):
    (tmp_path / "stray.bak").touch()
    (tmp_path / "stray.bak").unlink()
    assert actions(machine(**started(60.0)), wanted(paths=[tmp_path])) == ["restart crio.service"]


@pytest.mark.parametrize(
    ("values", "state", "done"),
    [
        ({"ActiveState": "inactive"}, "running", ["start crio.service"]),
        ({"ActiveState": "inactive"}, "current", []),
        ({"ActiveState": "inactive"}, "enabled", []),
        ({"UnitFileState": "disabled"}, "enabled", ["enable crio.service"]),
        ({"UnitFileState": "static"}, "running", []),
        ({"NeedDaemonReload": "yes"}, "running", ["daemon-reload", "restart crio.service"]),
        ({}, "masked", ["mask crio.service"]),
        ({"LoadState": "masked"}, "masked", []),
        ({}, "off", ["stop crio.service", "disable crio.service"]),
        ({"ActiveState": "inactive", "UnitFileState": "disabled"}, "off", []),
        ({"LoadState": "masked", "ActiveState": "inactive", "UnitFileState": "masked"}, "off", ["unmask crio.service"]),
        ({"LoadState": "not-found", "ActiveState": "inactive", "UnitFileState": ""}, "off", []),
    ],
)
def test_only_what_is_needed_is_done(values, state, done):
    assert actions(machine(**values), wanted(state)) == done


def test_a_unit_that_does_not_stay_up_ends_with_its_journal():
    with pytest.raises(Failed, match=r"does not stay up(.|\n)*no runtime binary found(.|\n)*systemctl status crio"):
        actions(machine(ActiveState="inactive"), wanted(), comes_up=False)


def test_a_missing_unit_is_an_error_unless_optional_or_a_check():
    absent = {"LoadState": "not-found", "ActiveState": "inactive", "UnitFileState": ""}
    with pytest.raises(Failed, match=r"no unit crio\.service"):
        actions(machine(**absent), wanted())
    found = units(machine(**absent))
    found.apply(wanted(optional=True))
    assert found.actions == []
    assert actions(machine(**absent), wanted(), check_mode=True) == ["running crio.service"]


def test_check_mode_says_and_does_nothing():
    found = units(machine(ActiveState="inactive", UnitFileState="disabled"), check_mode=True)
    found.apply(wanted())
    assert found.actions == ["enable crio.service", "start crio.service"]
    assert {command[1] for command in found.module.commands} == {"show"}


def test_check_mode_foresees_the_restart_that_a_file_it_would_write_brings(tmp_path):
    drop_in = str(tmp_path / "20-node.conf")
    shown = machine(**started(0.0))
    assert actions(shown, wanted(paths=[tmp_path]), check_mode=True, written=[drop_in]) == ["restart crio.service"]
    assert actions(shown, wanted(paths=["/elsewhere"]), check_mode=True, written=[drop_in]) == []


@pytest.mark.parametrize("name", ["crio.service", "node-etcd-snapshot.timer", "nvidia-cdi-refresh.path"])
def test_only_a_service_has_to_stay_up_after_a_start(name):
    found = units(machine(ActiveState="inactive"))
    found.apply({**wanted(), "name": name})
    assert (found.actions, list(found.begun)) == ([f"start {name}"], [name] if name.endswith(".service") else [])


@pytest.mark.parametrize(("kind", "slept"), [("simple", [0.0]), ("notify", []), ("dbus", [])])
def test_one_that_says_when_it_is_up_is_not_waited_for_and_still_looked_at(monkeypatch, kind, slept):
    waited = []
    monkeypatch.setattr(module.time, "sleep", waited.append)
    assert actions(machine(ActiveState="inactive", Type=kind), wanted()) == ["start crio.service"]
    assert waited == slept
    with pytest.raises(Failed, match="does not stay up"):
        actions(machine(ActiveState="inactive", Type=kind), wanted(), comes_up=False)
