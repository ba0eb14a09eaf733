"""GPUs by claims for NVIDIA's DRA driver, on the fake API server and the real one; the driver itself is a double."""

import re
import threading
from collections import Counter

import pytest

from harness.analysis.campaign import analyse
from harness.analysis.report import report_of
from harness.analysis.summary import COLUMNS, table
from harness.backends.kubernetes import deployment, preflight
from harness.backends.kubernetes.api import KubernetesApi
from harness.errors import BackendError
from harness.results import layout
from harness.sharing import dra as dra_module
from harness.sharing.mode import unheard
from harness.spec import ConditionSpec, MpsLimits, Sharing, SharingBy, WorkloadKind
from tests.support.cluster_trial import Switching
from tests.support.dra_driver import CLASSES, GROUP, DraDriver
from tests.support.experiments import TINY, WorkloadSpec, experiment, neighbour
from tests.support.processes import DRAINED_S, eventually

ON_LENT_GPU = WorkloadSpec(name="tiny", factory=f"{TINY}:on_lent_gpu", warmup_requests=1)
NO_DRIVER = "DRA driver gpu.nvidia.com is not registered"
SHORT = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}}
LONG = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}


@pytest.fixture
def dra(driver):
    driver.dra = DraDriver(driver.api, driver.node, {"gpu-0": "GPU-a", "gpu-1": "GPU-b"}, driver.controlled)
    driver.slices = 0
    driver.report()
    yield driver.dra
    assert eventually(lambda: driver.left() == [] and driver.dra.left() == [])
    driver.dra.withdraw()


@pytest.fixture
def spec(server, dra):  # noqa: ARG001 - the driver that the claims are for
    return server.spec(sharing_by=SharingBy.DRA)


def start(spec, folder, notice=unheard, **changes):
    return Switching(spec).deploy(
        experiment(factory="on_lent_gpu", **changes),
        folder,
        abort=threading.Event(),
        on_death=lambda _death: None,
        notice=notice,
    )


def test_a_campaign_over_modes_and_time_slices_after_a_killed_one(spec, driver, dra, tmp_path, run_campaign):
    killed = start(spec, tmp_path, sharing=Sharing.MPS, replicas=1)  # and nobody ends it

    folder, manifests = run_campaign(
        Switching(spec),
        workloads=[ON_LENT_GPU],
        sharing=[Sharing.TIME_SLICING, Sharing.MPS],
        time_slice=["short", "long"],
        replicas=[3],
        order="listed",
    )

    assert list(manifests) == [
        *(f"tiny_r3_time-slicing_{interval}_rep1" for interval in ("short", "long")),
        "tiny_r3_mps_rep1",
    ]
    for manifest in manifests.values():
        spec_of = manifest.experiment
        under = spec_of.sharing is Sharing.MPS
        assert {bool(one["mps_pipe_directory"]) for one in manifest.replicas} == {under}
        assert {one["device_uuid"] for one in manifest.replicas} == {"GPU-a"}
        assert {one["sharing"] for one in manifest.replicas} == {spec_of.cell.mode}
        claims = {one["claim"] for one in manifest.replicas}
        assert len(claims) == 1
        assert "" not in claims
    analysis = analyse(folder.path)
    told = report_of(analysis, tmp_path / "report").with_suffix(".md").read_text(encoding="utf-8")
    assert {"time-slicing (short)", "time-slicing (long)"} <= {
        key.mode for key in (cell.key for cell in analysis.cells)
    }
    assert "time-slicing (short)" in told
    assert "time-slicing (long)" in told
    assert {row[COLUMNS.index("time_slice")] for row in table(analysis).rows if row[1] == "time-slicing"} == {
        "short",
        "long",
    }
    assert dra.shared == [{"strategy": "MPS"}, SHORT, LONG, {"strategy": "MPS"}]
    assert eventually(lambda: driver.left() == [] and dra.left() == [])
    killed.stop(timeout_s=DRAINED_S)


def test_each_exclusive_replica_of_a_job_has_a_claim_and_a_gpu_of_its_own(spec, dra, tmp_path):
    job = spec.model_copy(update={"kind": WorkloadKind.JOB})
    running = start(job, tmp_path, sharing=Sharing.EXCLUSIVE, replicas=2, gpus=2)
    assert {one["device_uuid"] for one in running.statuses()} == {"GPU-a", "GPU-b"}
    assert len(dra.left()) == 3  # the template and what was made of it
    running.stop(timeout_s=DRAINED_S)


def test_a_neighbour_shares_the_claim_and_limits_of_mps_are_in_it(spec, dra, tmp_path):
    beside = ConditionSpec(name="beside", neighbours=[neighbour("on_lent_gpu")])
    limits = MpsLimits(share=12.5, pinned_memory_gb=2)
    running = start(spec, tmp_path, sharing=Sharing.MPS, replicas=2, mps=limits, condition=beside)
    assert dra.shared == [
        {
            "strategy": "MPS",
            "mpsConfig": {"defaultActiveThreadPercentage": 13, "defaultPinnedDeviceMemoryLimit": "1908Mi"},
        }
    ]
    [claim] = KubernetesApi(spec).list(dra.claims)
    assert len(claim["status"]["reservedFor"]) == 3
    limited = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "12.5", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2000M"}
    assert [one["mps_limits"] for one in running.statuses()] == [limited, limited]
    running.stop(timeout_s=DRAINED_S)


@pytest.mark.parametrize("kind", list(WorkloadKind))
def test_replicas_that_share_two_gpus_are_dealt_out_as_on_one_machine_and_are_one_deployment(
    spec, driver, dra, tmp_path, kind
):
    of_kind = spec.model_copy(update={"kind": kind})
    running = start(of_kind, tmp_path, sharing=Sharing.MPS, replicas=5, gpus=2)

    statuses = running.statuses()
    assert [one["replica"] for one in statuses] == [0, 1, 2, 3, 4]
    first, second = statuses[0]["device_uuid"], statuses[1]["device_uuid"]
    assert {first, second} == {"GPU-a", "GPU-b"}
    assert [one["device_uuid"] for one in statuses] == [first, second, first, second, first]
    assert sorted(Counter(one["claim"] for one in statuses).values()) == [2, 3]
    assert len({one["pod"] for one in statuses}) == 5
    assert dra.shared == [{"strategy": "MPS"}] * 2
    assert len(driver.left()) == 7  # two owners, five pods
    assert list(running.stop(timeout_s=DRAINED_S)) == []
    assert list(running.deaths) == []
    assert all((layout.replica_folder(tmp_path, one) / layout.RAW_LATENCIES).is_file() for one in range(5))
    assert driver.left() == []


def test_neighbours_go_on_with_the_gpus_where_the_measured_replicas_ended(spec, dra, tmp_path):
    beside = ConditionSpec(name="beside", neighbours=[neighbour("on_lent_gpu", replicas=3)])
    running = start(spec, tmp_path, sharing=Sharing.TIME_SLICING, replicas=3, gpus=2, condition=beside)

    measured = Counter(one["device_uuid"] for one in running.statuses())
    [others] = running.neighbour_statuses().values()
    assert sorted(measured.values()) == [1, 2]
    assert measured + Counter(one["device_uuid"] for one in others) == {"GPU-a": 3, "GPU-b": 3}
    assert len(dra.left()) == 2
    running.stop(timeout_s=DRAINED_S)


def test_a_campaign_over_two_shared_gpus_goes_on_after_a_killed_one(spec, driver, dra, tmp_path, run_campaign):
    killed = start(spec, tmp_path, sharing=Sharing.MPS, replicas=4, gpus=2)  # and nobody ends it

    _, manifests = run_campaign(
        Switching(spec),
        workloads=[ON_LENT_GPU],
        sharing=[Sharing.TIME_SLICING, Sharing.MPS],
        gpus=2,
        replicas=[4],
        order="listed",
    )

    for manifest in manifests.values():
        on = Counter(one["device_uuid"] for one in manifest.replicas)
        assert list(on.values()) == [2, 2]
        assert {one["claim"] for one in manifest.replicas} == {
            one["claim"] for one in manifest.replicas if one["claim"]
        }
    assert len(manifests) == 2
    assert eventually(lambda: driver.left() == [] and dra.left() == [])
    killed.stop(timeout_s=DRAINED_S)


def test_a_replica_of_one_gpu_that_dies_is_named_by_its_number(spec, driver, tmp_path):
    deaths = []
    running = Switching(spec).deploy(
        experiment(factory="on_lent_gpu", sharing=Sharing.TIME_SLICING, replicas=4, gpus=2),
        tmp_path,
        abort=threading.Event(),
        on_death=deaths.append,
    )

    driver.kill(running.statuses()[3]["pod"])

    assert eventually(lambda: [one.replica for one in deaths] == [3])
    running.stop(timeout_s=DRAINED_S)


@pytest.fixture
def soon(monkeypatch):
    """Events are read as they come."""
    monkeypatch.setattr(deployment, "EVENTS_S", 0.1)


UNKNOWN = 'prepare devices failed: error decoding config parameters: strict decoding error: unknown field "sharing.new"'
UNSUPPORTED = "prepare devices failed: MPS is not yet supported when using featureGates.DynamicMIG=true"
OTHERS = {"gpu-0": "GPU-a-other", "gpu-1": "GPU-b-other"}


@pytest.mark.parametrize(
    ("lacks", "sharing", "why"),
    [
        ({"deaf": True}, Sharing.MPS, r"runs without MPS, and it was to be under mps"),
        ({"gates": frozenset()}, Sharing.MPS, 'the "MPSSupport" feature gate is not enabled'),
        ({"hindered": NO_DRIVER}, Sharing.EXCLUSIVE, rf"The claim has not been prepared for \d+ s: {NO_DRIVER}"),
        ({"hindered": UNKNOWN}, Sharing.MPS, re.escape(f"DRA driver refuses the claim: {UNKNOWN}")),
        ({"hindered": UNSUPPORTED}, Sharing.MPS, re.escape(f"DRA driver refuses the claim: {UNSUPPORTED}")),
        ({"uuids": OTHERS}, Sharing.TIME_SLICING, r"computes on GPU-a-other, and its claim .* gave it GPU-a"),
    ],
    ids=["deaf", "gate", "unprepared", "unknown", "unsupported", "other"],
)
@pytest.mark.usefixtures("soon")
def test_what_the_driver_does_not_bring_about_ends_the_wait_with_its_words(
    spec, dra, tmp_path, monkeypatch, lacks, sharing, why
):
    monkeypatch.setattr(dra_module, "UNPREPARED_S", 0.5)
    for name, value in lacks.items():
        setattr(dra, name, value)
    with pytest.raises(BackendError, match=why):
        start(spec, tmp_path, sharing=sharing, replicas=1)


@pytest.mark.usefixtures("soon")
def test_why_a_claim_is_not_prepared_is_told_at_once_and_the_deployment_goes_on_when_it_is(
    spec, dra, tmp_path, monkeypatch
):
    monkeypatch.setattr(dra_module, "UNPREPARED_S", DRAINED_S)
    dra.hindered = NO_DRIVER
    told = []

    def hear(sentence):
        told.append(sentence)
        dra.hindered = ""

    start(spec, tmp_path, hear, sharing=Sharing.EXCLUSIVE, replicas=1).stop(timeout_s=DRAINED_S)
    assert told == [f"A claim is not prepared, and the kubelet tries again: {NO_DRIVER}"]


@pytest.mark.usefixtures("soon")
def test_the_daemon_of_mps_may_take_as_long_as_replicas_may(spec, dra, tmp_path, monkeypatch):
    monkeypatch.setattr(dra_module, "UNPREPARED_S", 0.0)
    dra.hindered = "prepare devices failed: error applying config: MPS control daemon is not yet ready: control daemon not yet ready"
    threading.Timer(2.0, setattr, (dra, "hindered", "")).start()
    start(spec, tmp_path, sharing=Sharing.MPS, replicas=1).stop(timeout_s=DRAINED_S)


def found(api, spec, *modes, replicas=1, gpus=1):
    experiments = [experiment(sharing=mode, replicas=replicas, gpus=gpus) for mode in modes]
    nodes = api.list("/api/v1/nodes")
    return [one.message for one in preflight.Preflight(api, spec, experiments, "c0ffee").check_gpus(nodes, nodes)]


def test_preflight_looks_at_classes_slices_and_claims_of_others(spec, driver, dra):
    api = KubernetesApi(spec)
    assert found(api, spec, Sharing.EXCLUSIVE, Sharing.TIME_SLICING, Sharing.MPS, gpus=2, replicas=2) == []
    assert found(api, spec, Sharing.EXCLUSIVE, replicas=3) == ["exclusive needs 3 GPUs, and 2 of 2 are free."]
    assert found(api, spec, Sharing.MPS, replicas=3, gpus=3) == ["mps needs 3 GPUs, and 2 of 2 are free."]
    assert found(api, spec, Sharing.MPS, replicas=2, gpus=3) == [], "a replica is on one GPU"
    assert found(api, spec, Sharing.MIG) == [
        f"the ResourceSlices of gpu.nvidia.com list no MIG instance on {driver.node}."
    ]
    request = {"name": "one", "exactly": {"deviceClassName": CLASSES[0]}}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "theirs"}}
    driver.api.apply(f"{dra.claims}/theirs", body | {"spec": {"devices": {"requests": [request]}}})
    result = {"request": "one", "driver": "gpu.nvidia.com", "pool": driver.node, "device": "gpu-0"}
    pod = {"resource": "pods", "name": "somebody", "uid": "1"}
    with driver._lock:  # as long as nobody tidies up
        given = {"status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": [pod]}}
        driver.api.patch(f"{dra.claims}/theirs/status", given)
        assert found(api, spec, Sharing.EXCLUSIVE, replicas=2) == [
            "exclusive needs 2 GPUs, and 1 of 2 are free; the others belong to inference/theirs."
        ]
        assert found(api, spec, Sharing.MPS) == []
    driver.api.delete(f"{dra.claims}/theirs")
    driver.api.delete(f"{GROUP}/deviceclasses/{CLASSES[0]}")
    assert found(api, spec, Sharing.MPS) == ["there is no DeviceClass gpu.nvidia.com."]


def test_a_gpu_that_is_lent_twice_is_refused_from_both_sides(server, spec, driver):
    driver.slices = 4
    driver.report()
    twice = (
        f"node {driver.node} allocates its GPUs twice: 4 nvidia.com/gpu by the device plugin, and the same to claims by the "
        "DRA driver."
    )
    api = KubernetesApi(spec)
    assert twice in found(api, spec, Sharing.MPS)
    assert twice in found(api, server.spec(), Sharing.TIME_SLICING)
