"""Neighbours and interposed layers with real processes: a library that is loaded, a wrapper, CPUs that are fought for."""

import math
import os
import shutil
import signal
import subprocess
import time

import psutil
import pytest

from harness.errors import BackendError, ReplicaDiedError
from harness.results import layout
from harness.spec import ConditionSpec, LayerSpec, Timing
from tests.support.experiments import neighbour
from tests.support.fake_backend import recording_request
from tests.support.fake_metrics import RowList
from tests.support.processes import DRAINED_S, eventually, marked

WAITS_AS_PARENT = ["sh", "-c", '"$@"; exit $?', "sh"]
"""A wrapper that stays the replica's parent and does not pass signals on."""


@pytest.fixture
def deploy(deploy):
    """Under a condition."""

    def start(**condition):
        return deploy(replicas=1, condition=ConditionSpec(name="test", **condition))

    start.deaths = deploy.deaths
    return start


@pytest.fixture(scope="session")
def slower_sleep(tmp_path_factory):
    """A library that makes every sleep of a program 20 ms longer: more than a busy machine adds to it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc)")
    folder = tmp_path_factory.mktemp("layer")
    (folder / "slower.c").write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <time.h>\n"
        "int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {\n"
        "  struct timespec more = *until;\n"
        "  more.tv_nsec += 20000000;\n"
        "  if (more.tv_nsec >= 1000000000) { more.tv_nsec -= 1000000000; more.tv_sec += 1; }\n"
        '  int (*real)(clockid_t, int, const struct timespec *, struct timespec *) = dlsym(RTLD_NEXT, "clock_nanosleep");\n'
        "  return real(clock, flags, &more, left);\n}\n"
    )
    library = folder / "libslower.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "slower.c"], check=True)
    return library


def record(deployment, metrics, rows=5):
    """The rows of a short recording, by metric and series."""
    sink = RowList()
    timing = Timing(step_s=0.2, stabilise_s=0, record_s=(rows - 1) * 0.2)
    request = recording_request(metrics, timing, sink=sink)
    deployment.recording(request).record(math.ceil(time.time() / 0.2 + 5) * 0.2, rows)
    return {(row.metric, row.series): row.value for row in sink.rows}


def test_neighbours_run_beside_the_measured_replica_and_are_recorded_apart(deploy, tmp_path):
    deployment = deploy(neighbours=[neighbour(replicas=2), neighbour(name="other")])

    last = record(deployment, ["throughput", "total_count", "memory_usage"])

    assert last["throughput", "all"] == last["throughput", "replica-0"] > 0
    assert (
        last["total_count", "noisy/all"]
        == last["total_count", "noisy/replica-0"] + last["total_count", "noisy/replica-1"]
    )
    assert last["memory_usage", "other/all"] == last["memory_usage", "other/replica-0"] > 0
    assert len(deployment.statuses()) == 1
    assert {name: len(statuses) for name, statuses in deployment.neighbour_statuses().items()} == {
        "noisy": 2,
        "other": 1,
    }
    assert (layout.replica_folder(layout.neighbour_folder(tmp_path, "noisy"), 1) / "latencies.bin").stat().st_size > 0


def test_a_killed_neighbour_is_named_and_the_measured_replica_serves_on(deploy):
    deployment = deploy(neighbours=[neighbour()])
    [victim] = [target for target in deployment.targets if target.neighbour]

    os.kill(victim.pid, signal.SIGKILL)

    assert eventually(lambda: deploy.deaths)
    assert str(deploy.deaths[0]).startswith("replica 0 of the neighbour noisy was killed by signal 9")
    last = record(deployment, ["total_count"])
    assert last["total_count", "all"] > 0
    assert last["total_count", "noisy/all"] is None


def test_a_neighbour_that_does_not_start_is_an_error_that_names_it(deploy, campaign_id):
    with pytest.raises(ReplicaDiedError, match=r"replica 0 of the neighbour noisy exited with \d.*while starting"):
        deploy(neighbours=[neighbour("no_such_factory")])

    assert marked(campaign_id) == []


def test_a_layer_is_on_the_measured_replica_alone(deploy, slower_sleep):
    layer = LayerSpec(environment={"HOOK_LOG": "off"}, preload=str(slower_sleep))
    deployment = deploy(layer=layer, neighbours=[neighbour()])
    measured, beside = [psutil.Process(target.pid) for target in deployment.targets]

    assert measured.environ()["HOOK_LOG"] == "off"
    assert str(slower_sleep) in {region.path for region in measured.memory_maps()}
    assert "HOOK_LOG" not in beside.environ()
    assert str(slower_sleep) not in {region.path for region in beside.memory_maps()}
    while None in (last := record(deployment, ["throughput"])).values():
        pass  # a replica that got no CPU answered late, and the row has no sum
    assert last["throughput", "all"] < 0.8 * last["throughput", "noisy/all"]


def test_a_library_that_the_loader_leaves_out_is_an_error(deploy, tmp_path, campaign_id):
    broken = tmp_path / "libbroken.so"
    broken.write_bytes(b"\x7fELF and nothing else")

    with pytest.raises(BackendError, match=f"replica 0 runs without the layer's library {broken}"):
        deploy(layer=LayerSpec(preload=str(broken)))

    assert marked(campaign_id) == []


def test_a_wrapper_counts_as_part_of_its_replica_which_drains_all_the_same(deploy, tmp_path):
    deployment = deploy(layer=LayerSpec(prefix=WAITS_AS_PARENT))
    [target] = deployment.targets

    assert psutil.Process(target.pid).name() == "sh"
    assert deployment.statuses()[0]["pid"] in {child.pid for child in psutil.Process(target.pid).children()}
    last = record(deployment, ["memory_usage", "throughput"])
    assert last["memory_usage", "all"] > 10e6  # the interpreter below the shell, not the shell alone
    assert deployment.stop(timeout_s=DRAINED_S) == []
    assert '"stopped"' in (layout.replica_folder(tmp_path, 0) / "replica.json").read_text()
