"""A profile as a Job: measured in a pod, fetched point by point, gone on with after the harness or the pod was killed."""

import os
import signal
import subprocess
import sys

import pytest

from harness.analysis.profile import analyse_profile
from harness.analysis.profile_report import write_profile_report
from harness.backends.kubernetes import objects
from harness.campaign.profile import begin, new_plan
from harness.campaign.profile_job import ProfileJob
from harness.campaign.verify import verify_campaign
from harness.errors import BackendError, ReplicaDiedError
from harness.results.profile import POINTS, Outcome, read_manifest
from harness.spec import KubernetesSpec
from tests.support.cluster_driver import ROOT
from tests.support.experiments import PROFILE

pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:Unverified HTTPS request"),  # the test's API server signs for itself
]
JOBS = objects.collections(KubernetesSpec(namespace="inference"))["Job"]


POD = "harness.campaign.profile_pod"


@pytest.fixture
def warm(driver):
    """The driver, whose pods need not import first what this harness consists of."""
    driver.forked = (POD,)
    return driver


@pytest.fixture
def made(server, tmp_path):
    def make(cluster=None, **changes):
        folder = tmp_path / "p"
        begin(folder, new_plan("p", ["harness"], kubernetes=server.spec(**cluster or {}), **PROFILE | changes))
        return folder

    return make


def points(folder):
    return sorted(path.name for path in (folder / POINTS).iterdir() if not path.name.startswith("."))


def test_a_pod_measures_every_point_and_raises_the_batch(made, driver):
    said = []
    folder = made(batches=[4, 64], capacity="knee")

    ProfileJob(folder, said.append).run()

    manifest = read_manifest(folder)
    outcomes = {point.name: point.outcome for point in manifest.points}
    assert outcomes["b4-fp32-eager-1"] is Outcome.MEASURED
    assert outcomes["b64-fp32-eager-1"] is Outcome.OUT_OF_MEMORY
    assert manifest.curves[0].batch_size <= 16
    assert [line for line in said if "b64-fp32-eager-1: out of memory" in line]
    assert not [line for line in said if "fetched" in line]
    assert manifest.plan.kubernetes is not None
    write_profile_report(analyse_profile(folder))
    assert verify_campaign(folder).ok
    assert driver.left() == []


def test_the_job_asks_for_the_gpu_and_ends_by_itself(made, warm):
    seen = []
    ProfileJob(made(timeout_s=30.0), lambda _line: seen.extend(warm.api.list(JOBS))).run()

    job = seen[0]
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert container["command"] == ["python", "-m", POD]
    assert job["spec"]["activeDeadlineSeconds"] == 300 + 2 * 30 + 3600
    assert job["spec"]["backoffLimitPerIndex"] == 0
    assert pod["restartPolicy"] == "Never"
    assert job["spec"]["template"]["metadata"]["annotations"]["prometheus.io/scrape"] == "false"


def test_what_a_killed_harness_left_is_fetched_and_only_the_rest_is_measured(made, warm):
    folder = made(batches=[4, 8, 16])
    command = (
        "import os, signal, sys; from pathlib import Path; from harness.campaign.profile_job import ProfileJob\n"
        "ProfileJob(Path(sys.argv[1]), lambda line: os.kill(os.getpid(), signal.SIGKILL)).run()"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", command, str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    before = points(folder)
    assert before
    written = {name: (folder / POINTS / name / "figures.json").stat().st_mtime_ns for name in before}
    [pod] = warm.pods.values()

    ProfileJob(folder, lambda _line: None).run()

    assert points(folder) == ["b16-fp32-eager-1", "b4-fp32-eager-1", "b8-fp32-eager-1"]
    assert written == {name: (folder / POINTS / name / "figures.json").stat().st_mtime_ns for name in before}
    assert pod.process.poll() is not None
    assert verify_campaign(folder).ok
    assert warm.left() == []


def test_a_pod_that_is_killed_is_told_with_what_was_fetched_kept(made, warm):
    folder = made(batches=[4, 8, 16], seconds=0.2)

    def kill(_line):
        [pod] = warm.pods
        warm.kill(pod, reason="OOMKilled")

    with pytest.raises(ReplicaDiedError, match="OOMKilled") as caught:
        ProfileJob(folder, kill).run()

    assert "harness resume" in caught.value.advice

    assert points(folder)
    assert warm.left() == []
    ProfileJob(folder, lambda _line: None).run()
    assert len(points(folder)) == 3


def test_an_image_without_the_whole_harness_is_told_with_what_it_needs(made, driver, tmp_path):
    (tmp_path / "pydantic.py").write_text("raise ModuleNotFoundError(\"No module named 'pydantic'\")\n")
    driver.environment = {"PYTHONPATH": str(tmp_path)}

    with pytest.raises(ReplicaDiedError, match="No module named 'pydantic'") as caught:
        ProfileJob(made(), lambda _line: None).run()

    assert "extra `replica`" in caught.value.advice
    assert driver.left() == []


def test_points_of_another_gpu_are_not_mixed_in(made, warm, monkeypatch):
    folder = made()
    ProfileJob(folder, lambda _line: None).run()
    plan = folder / "plan.json"
    text = plan.read_text()
    assert '"gpus":[]' in text.replace(" ", "").replace("\n", "")
    monkeypatch.setattr("harness.campaign.profile_job.Provenance.model_validate", lambda _: _WithGpu())

    with pytest.raises(BackendError, match=r"the points so far are of no GPU, and this pod has \['B200'\]"):
        ProfileJob(folder, lambda _line: None).run()

    assert warm.left() == []


class _WithGpu:
    gpus = (type("Gpu", (), {"name": "B200"}),)


def test_a_point_that_the_pod_could_not_keep_is_told_and_not_measured_here(made, warm, monkeypatch):
    folder = made(batches=[4])
    monkeypatch.setattr(ProfileJob, "_take", lambda *_: None)

    with pytest.raises(BackendError, match=r"b4-fp32-eager-1 was not fetched from the pod") as caught:
        ProfileJob(folder, lambda _line: None).run()

    assert "harness resume" in caught.value.advice
    assert points(folder) == []
    assert warm.left() == []
