"""What goes wrong on real machines: one clear sentence, the documented exit code, and nothing lost."""

import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from harness.metrics.nvml import gpu_descriptions
from harness.results.manifest import Status
from tests.support import forked
from tests.support.campaigns import Campaign
from tests.support.processes import eventually

pytestmark = pytest.mark.long

SPEC = """
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
DEFAULTS = {"factory": "steady", "options": "{}", "record_s": 1, "more": "", "ready_timeout_s": 120}
EXPERIMENT = "tiny_r2_time-slicing_rep1"


def bad(folder: Path, **wishes) -> Campaign:
    values = DEFAULTS | wishes
    if ":" not in values["factory"]:
        values["factory"] = f"tests.support.tiny_workload:{values['factory']}"
    return Campaign(folder, SPEC.format(**values), force=False)


def table(campaign: Campaign, place: str = EXPERIMENT) -> Path:
    return next((campaign.path / place).rglob("*throughput*.csv"))


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
    campaign = bad(tmp_path, **wishes)

    said = campaign.run(code=3).stderr

    assert all(sentence in said for sentence in sentences), said
    assert not campaign.results.exists()


def test_a_results_folder_that_cannot_be(tmp_path):
    campaign = bad(tmp_path)
    campaign.results.write_text("a file")

    assert "is a file" in campaign.run(code=3).stderr
    assert campaign.results.read_text() == "a file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_results_folder_without_rights(tmp_path):
    campaign = bad(tmp_path)
    campaign.results.mkdir(mode=0o500)

    assert "no write access" in campaign.run(code=3).stderr


@pytest.mark.parametrize(
    ("wishes", "sentence"),
    [
        ({"factory": "tests.support.dies_at_import:make"}, "no weights on this machine"),
        ({"factory": "hangs", "ready_timeout_s": 10}, "did not serve within 10 s (phase warming)"),
        ({"factory": "nothing_of_that_name"}, "nothing_of_that_name"),
    ],
)
def test_a_workload_that_never_serves(tmp_path, wishes, sentence):
    campaign = bad(tmp_path, **wishes)

    done = campaign.run(code=4)

    assert sentence in done.stdout + done.stderr
    assert "harness resume --retry-invalid" in done.stdout + done.stderr
    verdict = campaign.manifest(EXPERIMENT).verdict
    assert verdict.status is Status.INVALID
    assert sentence in verdict.reasons[0]
    assert verdict.advice
    campaign.verified()


def test_a_workload_that_hangs_while_it_is_recorded(tmp_path):
    # After so few that none ends in the recording, however slow the machine: one that served before is DEGRADED.
    campaign = bad(tmp_path, factory="hangs", options="{after: 5}", record_s=3)

    campaign.run(code=4)

    assert campaign.manifest(EXPERIMENT).verdict.status is Status.INVALID
    assert campaign.processes() == []


def test_a_replica_that_dies_while_it_is_recorded(tmp_path):
    told = tmp_path / "told"
    campaign = bad(tmp_path, factory="dies_when_told", options=f"{{told: {told}, replica: 1}}", record_s=3)

    command = campaign.started("record")
    told.touch()
    said = command.end()

    campaign.check(command.returncode, said)
    assert "out of luck" in said
    verdict = campaign.manifest(EXPERIMENT).verdict
    assert "replica-died" in verdict.codes
    assert verdict.status is Status.DEGRADED or campaign.starved()
    last = [line for line in table(campaign).read_text().splitlines() if ",replica-1," in line][-1]
    assert last.split(",")[3] == ""
    assert last.split(",")[4]


def test_two_harnesses_on_one_campaign(tmp_path):
    campaign = bad(tmp_path)
    first = campaign.started("preflight")
    first.send_signal(signal.SIGSTOP)  # however long the second takes to start, the first is still at it

    said = campaign.run(code=6).stderr

    first.send_signal(signal.SIGCONT)
    assert f"in use by another harness (process {first.pid})" in said
    campaign.check(first.wait(), campaign.log.read_text())


def test_an_edited_csv_is_named_and_run_again_by_resume(tmp_path):
    campaign = bad(tmp_path)
    campaign.run()
    edited = table(campaign)
    edited.write_text(edited.read_text().replace("replica-0", "replica-9", 1))

    found = forked.harness("verify", campaign.path)
    assert found.returncode == 5
    assert f"{edited}: the file was changed after it was written" in found.stdout + found.stderr

    again = campaign.run()
    assert "is kept in" in again.stdout + again.stderr
    campaign.verified()
    assert list((campaign.path / "attempts").glob("*/" + edited.name))


def test_a_campaign_file_that_changed_between_run_and_resume(tmp_path):
    campaign = bad(tmp_path)
    campaign.run()
    campaign.file.write_text(campaign.file.read_text().replace("[2]", "[1, 2]"))

    assert "changed since the campaign" in campaign.run(code=6).stderr
    campaign.run("--as-started")


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
        campaign = bad(tmp_path / "disk", record_s=6)
        command = campaign.started("record")
        attempt = next((campaign.path / "attempts").glob(f"{EXPERIMENT}-*")).name
        assert eventually(lambda: table(campaign, f"attempts/{attempt}").stat().st_size > 1000)
        hog = tmp_path / "disk" / "hog"
        fill(hog)
        said = command.end()

        assert command.returncode == 7, said
        assert "No space left on device" in said
        assert "do: Free some space" in said
        assert campaign.processes() == []
        kept = table(campaign, "attempts").read_text()
        assert kept.endswith("\n")
        assert len(kept.splitlines()) > 5
        hog.unlink()
        campaign.run()
        campaign.verified()


def test_a_disk_without_room_is_refused_before_anything_starts(tmp_path):
    with small_disk(tmp_path / "disk", megabytes=20):
        assert "are free for" in bad(tmp_path / "disk").run(code=3).stderr


def test_an_hour_is_not_spent_on_a_plan_beyond_its_limits(tmp_path):
    campaign = bad(tmp_path)
    campaign.file.write_text(campaign.file.read_text().replace("retries: 0", "retries: 0, max_hours: 0.0001"))

    begun_s = time.monotonic()
    said = campaign.run(code=2).stderr

    assert "more than its limits.max_hours" in said
    assert time.monotonic() - begun_s < 60
