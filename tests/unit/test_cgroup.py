"""What control groups allow: planted trees of every kind, and real groups where they can be made."""

import os
import subprocess
import sys

import pytest

from harness.cgroup import CgroupCounters, CgroupLimits
from tests.support.cgroups import Machine, make_group


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_version_2_gives_the_tightest_limit_on_the_way_up(machine):
    machine.in_group("/pods/one/app").has("", cgroup__controllers="cpu memory pids cpuset")
    machine.has("pods/one/app", cpu__max="max 100000", memory__max=400_000_000, memory__high="max", pids__max=24)
    machine.has("pods/one", cpu__max="50000 100000", memory__max=800_000_000, cpuset__cpus__effective="0-2,7")
    machine.has("pods", cpu__max="200000 100000", memory__high=600_000_000, pids__max="max")

    assert machine.cgroup.version == 2
    assert machine.cgroup.limits() == CgroupLimits(0.5, 4, 400_000_000, 600_000_000, 24)


def test_version_1_has_a_hierarchy_for_each_controller(machine):
    machine.in_group("/box", "cpu,cpuacct", mount="cpu").in_group("/box/in", "memory", mount="memory")
    machine.has("box", "cpu", cpu__cfs_quota_us=25_000, cpu__cfs_period_us=100_000)
    machine.has("", "cpu", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100_000)
    machine.has("box/in", "memory", memory__limit_in_bytes=9223372036854771712)
    machine.has("box", "memory", memory__limit_in_bytes=1_000_000_000)

    assert machine.cgroup.version == 1
    assert machine.cgroup.limits() == CgroupLimits(cpus=0.25, memory_bytes=1_000_000_000)


def test_on_a_hybrid_machine_each_controller_is_where_it_is_mounted(machine):
    machine.in_group("/a", "cpu", mount="cpu").in_group("/a", mount="unified")
    machine.has("a", "cpu", cpu__cfs_quota_us=150_000, cpu__cfs_period_us=100_000)
    machine.has("a", "unified", cgroup__controllers="memory", memory__max=5_000_000, cpu__max="10000 100000")

    assert machine.cgroup.limits() == CgroupLimits(cpus=1.5, memory_bytes=5_000_000)


@pytest.mark.parametrize(
    ("path", "root", "group"),
    [
        ("/", "/", ""),
        ("/docker/abc", "/docker/abc", ""),
        ("/docker/abc/in", "/docker/abc", "in"),
        ("/../other", "/", ""),
    ],
    ids=["a namespace of its own", "the host's names", "a group below", "outside the namespace"],
)
def test_a_container_sees_its_own_limits_under_either_kind_of_name(machine, path, root, group):
    machine.in_group(path, root=root).has("", cgroup__controllers="cpu", cpu__max="75000 50000")
    machine.has(group)

    assert machine.cgroup.limits().cpus == 1.5


def test_without_groups_or_in_the_root_nothing_is_limited(machine):
    (machine.folder / "proc" / "vmstat").write_text("pgfault 12\noom_kill 3\n")

    assert (machine.cgroup.version, machine.cgroup.limits()) == (None, CgroupLimits())
    assert machine.cgroup.counters() == CgroupCounters(oom_kills=3)
    assert machine.cgroup.memory_free_bytes() is None
    machine.in_group("/").has("", cgroup__controllers="cpu memory", cpu__stat="usage_usec 12\nnr_periods 0")
    assert machine.cgroup.limits() == CgroupLimits()
    assert machine.cgroup.counters().throttled_share(CgroupCounters(((0, 0),))) is None


def test_the_share_of_throttled_periods_is_of_the_level_that_throttles_most(machine):
    machine.in_group("/a/b").has("", cgroup__controllers="cpu memory")
    machine.has("a/b", cpu__stat="nr_periods 10\nnr_throttled 0", memory__events="oom 0\noom_kill 0")
    machine.has("a", cpu__stat="nr_periods 100\nnr_throttled 50", memory__events="oom 9\noom_kill 9")
    before = machine.cgroup.counters()
    machine.has("a/b", cpu__stat="nr_periods 30\nnr_throttled 1", memory__events="oom 1\noom_kill 1")
    machine.has("a", cpu__stat="nr_periods 120\nnr_throttled 65\nthrottled_usec 7", memory__events="oom_kill 10")
    after = machine.cgroup.counters()

    assert after.throttled_share(before) == 0.75
    assert (before.oom_kills, after.oom_kills) == (0, 1)


def test_caches_are_free_below_a_limit(machine):
    machine.in_group("/a").has("", cgroup__controllers="memory")
    machine.has("a", memory__max=1000, memory__current=900, memory__stat="anon 100\ninactive_file 300")

    assert machine.cgroup.memory_free_bytes() == 400


@pytest.fixture
def real_group(request):
    """A group of version 1 that can be made here, removed when its processes have ended."""
    made = []

    def make(controller):
        folder = make_group(controller, f"harness-test-{os.getpid()}-{request.node.name[:20]}")
        made.append(folder)
        return folder

    yield make
    for folder in made:
        folder.rmdir()


def run_inside(group, code):
    """What a Python prints that joins a group first."""
    join = f"import os, pathlib; pathlib.Path({str(group / 'cgroup.procs')!r}).write_text(str(os.getpid()))\n"
    return subprocess.run([sys.executable, "-c", join + code], capture_output=True, text=True, check=False)


def test_a_real_quota_is_read_and_throttles(real_group):
    group = real_group("cpu")
    (group / "cpu.cfs_quota_us").write_text("2000")  # so little that it is reached on a busy machine, too
    done = run_inside(
        group,
        "import time\nfrom harness.cgroup import Cgroup\nown, before = Cgroup(), Cgroup().counters()\n"
        "end = time.process_time() + 0.02\n"
        "while time.process_time() < end: pass\n"
        "print(own.limits().cpus, own.counters().throttled_share(before) > 0.5)\n",
    )

    assert done.stdout.split() == ["0.02", "True"], done.stderr


def test_a_real_limit_of_memory_kills_and_is_counted(real_group):
    group = real_group("memory")
    (group / "memory.limit_in_bytes").write_text(str(60 << 20))
    before = int((group / "memory.oom_control").read_text().split()[-1])
    done = run_inside(
        group,
        "from harness.cgroup import Cgroup\nprint(Cgroup().limits().memory_bytes, flush=True)\nb'1' * (200 << 20)",
    )

    assert (done.returncode, done.stdout.strip()) == (-9, str(60 << 20)), done.stderr
    assert int((group / "memory.oom_control").read_text().split()[-1]) == before + 1
