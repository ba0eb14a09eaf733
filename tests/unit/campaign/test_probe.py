"""Processes that watch a GPU: started, awaited, ended, whatever they do. Their program is a stand-in; the real one needs a GPU."""

import re
import sys

import pytest
from typer.testing import CliRunner

from harness.analysis.questions.time_slices import Turns
from harness.campaign import probe
from harness.cli import app
from harness.errors import BackendError, PreflightError, UsageError
from harness.metrics.nvml import GpuFacts
from harness.replica import time_slices
from harness.sharing.mps import Mps
from harness.spec import Sharing

GPU = GpuFacts("H200", 1 << 37, 1 << 37, uuid="GPU-1", compute_mode="default")
BEGINS = """
import array, pathlib, sys, time
place = pathlib.Path(sys.argv[-1])
(place / "ready").touch()
while not (place.parent / "go").exists():
    time.sleep(0.001)
"""
TAKES_TURNS = (
    BEGINS
    + """
first = 2_150_000 * int(place.name)
turns = [at for number in range(20) for at in (first + 4_300_000 * number, first + 4_300_000 * number + 2_000_000)]
(place / "slices.part").write_bytes(array.array("q", turns).tobytes())
(place / "slices.part").rename(place / "slices.bin")
"""
)


def measured(monkeypatch, program, said=None):
    monkeypatch.setattr(probe, "COMMAND", (sys.executable, "-c", program))
    return probe.probe(
        GPU,
        Sharing.TIME_SLICING,
        processes=2,
        seconds=0.1,
        repeats=2,
        say=(said if said is not None else []).append,
    )


@pytest.fixture
def folders(monkeypatch, tmp_path):
    """Where temporary folders are made: what is left there was left behind."""
    monkeypatch.setattr(probe.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_every_repeat_has_new_processes_and_leaves_nothing(monkeypatch, folders):
    said = []
    found = measured(monkeypatch, TAKES_TURNS, said)

    assert [set(one.switch_s) for one in found] == [{150e-6}] * 2
    assert said == ["1/2: 37 switches in 0.08 s", "2/2: 37 switches in 0.08 s"]
    assert list(folders.iterdir()) == []


@pytest.mark.parametrize(
    "program", ["raise SystemExit('no such device (100)')", BEGINS + "raise SystemExit('no such device (100)')"]
)
def test_a_process_that_ends_without_a_measurement_is_told_with_its_last_line(monkeypatch, folders, program):
    with pytest.raises(BackendError, match=r"Process \d ended with 1; its last line: no such device \(100\)"):
        measured(monkeypatch, program)

    assert list(folders.iterdir()) == []


@pytest.mark.parametrize("what", ["READY", "GO", "SLICES"])
def test_both_sides_name_the_files_alike(what):
    assert getattr(probe, what) == getattr(time_slices, what)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mig": True}, "MIG is on"),
        ({"compute_mode": "exclusive-process"}, "its compute mode is exclusive-process"),
        ({"processes": (17,)}, "other processes compute on it: 17"),
    ],
)
def test_a_gpu_whose_turns_would_not_be_ours_is_refused(monkeypatch, changes, message):
    given = {name: getattr(GPU, name) for name in GPU.__slots__} | changes
    monkeypatch.setattr(probe, "gpu_facts", lambda: ([GpuFacts(**given)], ""))
    with pytest.raises(PreflightError, match=message):
        probe.gpu_to_probe(Sharing.TIME_SLICING)


def test_a_gpu_that_a_foreign_daemon_serves_is_refused(monkeypatch):
    monkeypatch.setattr(probe, "gpu_facts", lambda: ([GPU], ""))
    monkeypatch.setattr(Mps, "running", lambda _self, gpus: [23] if gpus == ["GPU-1"] else [])
    with pytest.raises(PreflightError, match="an MPS daemon serves it: 23"):
        probe.gpu_to_probe(Sharing.MPS)


def test_no_gpu_and_a_mode_without_turns_are_refused(monkeypatch):
    monkeypatch.setattr(probe, "gpu_facts", lambda: ([], "no driver"))
    with pytest.raises(PreflightError, match="There is no GPU to probe: no driver"):
        probe.gpu_to_probe(Sharing.TIME_SLICING)
    with pytest.raises(UsageError, match="Under sharing mig processes have no time slices"):
        probe.gpu_to_probe(Sharing.MIG)


def test_the_figures_fit_80_columns(monkeypatch):
    turns = Turns(
        seconds=1.0,
        slice_s=[0.00209, 0.00211],
        switch_s=[0.000152, 0.000153],
        switching_share=0.0681,
        together_share=0.0,
    )
    monkeypatch.setattr(probe, "gpu_to_probe", lambda _: GPU)
    monkeypatch.setattr(probe, "probe", lambda *_, **__: [turns] * 5)
    done = CliRunner().invoke(app, ["probe"], env={"COLUMNS": "80"})

    assert "gets time slices of 2.10 ± 0 ms" in done.stdout
    assert len(re.findall(r"(?m)^(time slice|context switch|GPU time lost to switching) +[\d.]+ ± ", done.stdout)) == 3
    assert max(map(len, done.stdout.splitlines()[1:])) <= 80
