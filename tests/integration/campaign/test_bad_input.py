"""What goes wrong on real machines: one clear sentence, the documented exit code, and nothing lost."""

import json
import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from harness.metrics.nvml import gpu_descriptions
from tests.support import forked
from tests.support.experiments import begun
from tests.support.processes import eventually, marked

pytestmark = [pytest.mark.integration, pytest.mark.long]

CAMPAIGN = """
name: bad
workloads:
  - name: tiny
    factory: {factory}
    warmup_requests: 1
    options: {options}
    {more}
replicas: [2]
timing: {{step_s: 0.1, stabilise_s: 0.2, record_s: {record_s}, cooldown_s: 0, ready_timeout_s: {ready_timeout_s}, drain_timeout_s: 3}}
limits: {{retries: 0, on_replica_death: degrade}}
metrics: [latency_p50, throughput, total_count]
"""


class Run:
    """A campaign as files and commands."""

    def __init__(
        self,
        folder: Path,
        *,
        factory="tests.support.tiny_workload:steady",
        options="{}",
        record_s=1,
        more="",
        ready_timeout_s=120,
    ):
        self.file = folder / "campaign.yaml"
        self.results = folder / "results"
        self.file.write_text(
            CAMPAIGN.format(
                factory=factory, options=options, record_s=record_s, more=more, ready_timeout_s=ready_timeout_s
            )
        )

    @property
    def words(self) -> tuple[object, ...]:
        return ("run", self.file, "--results", self.results, "--no-report")

    def start(self, log: Path) -> forked.Command:
        return forked.commands().start(*self.words, log=log)

    def __call__(self, *words) -> tuple[int, str]:
        done = forked.harness(*(words or self.words))
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr

    @property
    def path(self) -> Path:
        return next(self.results.glob("bad-*"))

    @property
    def experiment(self) -> Path:
        return self.path / "tiny_r2_time-slicing_rep1"

    @property
    def recording(self) -> bool:
        # Not in hidden folders: they are renamed while this looks.
        return any(path.stat().st_size > 1000 for path in self.results.glob("[!.]*/**/*throughput*.csv"))

    def nothing_runs(self) -> bool:
        identity = json.loads((self.path / "campaign.json").read_text())["campaign_id"]
        return eventually(lambda: not marked(identity))


@pytest.mark.parametrize(
    ("wishes", "sentences"),
    [
        (
            {"more": "memory_gb: 9000"},
            ["2 replicas of tiny need about 18000.0 GB of memory (9000 GB each)", "do: Use fewer replicas"],
        ),
        ({"more": "device: cuda"}, ["asks for device cuda, and there is no GPU here"]),
        ({"factory": "no_such_module_at_all:make"}, ["no module no_such_module_at_all"]),
    ],
    ids=["memory", "GPU", "module"],
)
def test_what_is_not_there_is_refused_before_anything_is_written(tmp_path, wishes, sentences):
    if "cuda" in wishes.get("more", "") and gpu_descriptions()[0]:
        pytest.skip("this machine has a GPU")

    code, said = Run(tmp_path, **wishes)()

    assert code == 3
    assert all(sentence in said for sentence in sentences), said
    assert not (tmp_path / "results").exists()


def test_a_results_folder_that_cannot_be(tmp_path):
    run = Run(tmp_path)
    run.results.write_text("a file")

    code, said = run()

    assert code == 3
    assert "is a file" in said
    assert run.results.read_text() == "a file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_results_folder_without_rights(tmp_path):
    run = Run(tmp_path)
    run.results.mkdir(mode=0o500)

    code, said = run()

    assert code == 3
    assert "no write access" in said


@pytest.mark.parametrize(
    ("wishes", "sentence"),
    [
        ({"factory": "tests.support.dies_at_import:make"}, "no weights on this machine"),
        (
            {"factory": "tests.support.tiny_workload:hangs", "ready_timeout_s": 10},
            "did not serve within 10 s (phase warming)",
        ),
        ({"factory": "tests.support.tiny_workload:nothing_of_that_name"}, "nothing_of_that_name"),
    ],
)
def test_a_workload_that_never_serves(tmp_path, wishes, sentence):
    run = Run(tmp_path, **wishes)

    code, said = run()

    assert code == 4
    assert sentence in said
    assert "harness resume --retry-invalid" in said
    verdict = json.loads((run.experiment / "manifest.json").read_text())["verdict"]
    assert verdict["status"] == "INVALID"
    assert sentence in verdict["reasons"][0]
    assert verdict["advice"]
    assert run.nothing_runs()
    assert run("verify", run.path)[0] == 0


def test_a_workload_that_hangs_while_it_is_recorded(tmp_path):
    # After so few that none ends in the recording, however slow the machine: one that served before is DEGRADED.
    run = Run(tmp_path, factory="tests.support.tiny_workload:hangs", options="{after: 5}", record_s=3)

    code, said = run()

    verdict = json.loads((run.experiment / "manifest.json").read_text())["verdict"]
    assert verdict["status"] == "INVALID", said
    assert code == 4
    assert run.nothing_runs()


def test_a_replica_that_dies_while_it_is_recorded(tmp_path):
    run = Run(
        tmp_path, factory="tests.support.tiny_workload:dies_after", options="{after_s: 1.5, replica: 1}", record_s=2
    )

    code, said = run()

    assert code == 0
    assert "DEGRADED: " in said
    assert "out of luck" in said
    verdict = json.loads((run.experiment / "manifest.json").read_text())["verdict"]
    assert verdict["status"] == "DEGRADED"
    lines = next(run.experiment.glob("*throughput*.csv")).read_text().splitlines()
    last = [line for line in lines if ",replica-1," in line][-1]
    assert last.split(",")[3] == ""
    assert last.split(",")[4]


def test_two_harnesses_on_one_campaign(tmp_path):
    run = Run(tmp_path)
    first = run.start(tmp_path / "said")
    assert eventually(lambda: begun(next(run.results.glob("bad-*"), None), "preflight"))
    first.send_signal(signal.SIGSTOP)  # however long the second takes to start, the first is still at it

    code, said = run("resume", run.path)

    first.send_signal(signal.SIGCONT)
    assert code == 6
    assert f"in use by another harness (process {first.pid})" in said
    assert first.wait() == 0


def test_an_edited_csv_is_named_and_run_again_by_resume(tmp_path):
    run = Run(tmp_path)
    assert run()[0] == 0
    edited = next(run.experiment.glob("*throughput*.csv"))
    edited.write_text(edited.read_text().replace("replica-0", "replica-9", 1))

    code, said = run("verify", run.path)
    assert code == 5
    assert f"{edited}: the file was changed after it was written" in said

    code, said = run("resume", run.path, "--no-report")
    assert code == 0
    assert "is kept in" in said
    assert run("verify", run.path)[0] == 0
    assert list((run.path / "attempts").glob("*/" + edited.name))


def test_a_campaign_file_that_changed_between_run_and_resume(tmp_path):
    run = Run(tmp_path)
    assert run()[0] == 0
    run.file.write_text(run.file.read_text().replace("[2]", "[1, 2]"))

    code, said = run("resume", run.path)
    assert code == 6
    assert "changed since the campaign" in said
    assert run("resume", run.path, "--as-started", "--no-report")[0] == 0


@contextmanager
def small_disk(folder: Path, megabytes: int):
    """A file system of its own, that other programs can fill."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip("mounting a file system needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path: Path) -> None:
    """Take all that is left of the disk, at once."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    disk = os.fstatvfs(descriptor)
    with suppress(OSError):
        os.posix_fallocate(descriptor, 0, (disk.f_bavail - 16) * disk.f_frsize)
        os.lseek(descriptor, 0, os.SEEK_END)
        while True:
            os.write(descriptor, bytes(1 << 16))
    os.close(descriptor)


def test_a_disk_that_fills_up_while_recording(tmp_path):
    with small_disk(tmp_path / "disk", megabytes=400):
        run = Run(tmp_path / "disk", record_s=6)
        process = run.start(tmp_path / "said")
        assert eventually(lambda: run.recording)
        hog = tmp_path / "disk" / "hog"
        fill(hog)
        said = process.end()

        assert process.returncode == 7, said
        assert "No space left on device" in said
        assert "do: Free some space" in said
        assert run.nothing_runs()
        kept = next((run.path / "attempts").rglob("*throughput*.csv")).read_text()
        assert kept.endswith("\n")
        assert len(kept.splitlines()) > 5
        hog.unlink()
        code, said = run("resume", run.path, "--no-report")
        assert code == 0, said
        assert run("verify", run.path)[0] == 0


def test_a_disk_without_room_is_refused_before_anything_starts(tmp_path):
    with small_disk(tmp_path / "disk", megabytes=20):
        code, said = Run(tmp_path / "disk")()

    assert code == 3
    assert "are free for" in said


def test_an_hour_is_not_spent_on_a_plan_beyond_its_limits(tmp_path):
    run = Run(tmp_path)
    run.file.write_text(run.file.read_text().replace("retries: 0", "retries: 0, max_hours: 0.0001"))

    begun_s = time.monotonic()
    code, said = run()

    assert code == 2
    assert "more than its limits.max_hours" in said
    assert time.monotonic() - begun_s < 60
