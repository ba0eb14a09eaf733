"""A profile on a cluster: a Job's pod measures it, and every point is fetched as soon as it is there."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from harness.backends.base import ReplicaDeath
from harness.backends.kubernetes import artifacts, objects, pods
from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.backend import KubernetesBackend
from harness.backends.kubernetes.deployment import KubernetesDeployment
from harness.backends.kubernetes.pods import PodReplica
from harness.campaign.batch_search import MOST_BISECTIONS
from harness.campaign.profile import Profile
from harness.campaign.profile_pod import Given
from harness.clock import SystemClock
from harness.errors import BackendError, HarnessError, ReplicaDiedError
from harness.results.files import atomic_write, storage_errors
from harness.results.manifest import Provenance
from harness.results.profile import PLAN, POINTS, read_plan, read_point
from harness.sharing.modes import FOUND
from harness.spec import ExperimentSpec, Limits, Timing

POLL_S = 0.5
SEARCHED = ("throughput_inputs_per_s", "gpu_memory_peak_percent")
"""What the pod needs of a point that it does not measure again: the search for the batch goes by it."""
IMAGE_ADVICE = "`kubernetes.image` has to hold the whole harness with its extra `replica`: see docs/profile.md."
ENDED_ADVICE = "What was fetched is kept: mend what its last lines say, and go on with the profile: harness resume."


class ProfileJob:
    """One profile as a Job, new or to be gone on with.

    Args:
        folder: of the profile, with its plan.
        say: takes a line for each point.
        connect: makes the API client.
    """

    def __init__(
        self, folder: Path, say: Callable[[str], None], *, connect: Callable[..., KubernetesApi] = KubernetesApi
    ) -> None:
        plan = read_plan(folder)
        assert plan.kubernetes is not None  # noqa: S101 - the caller has looked
        self._folder, self._plan, self._spec = folder, plan, plan.kubernetes
        self._say, self._said, self._named = say, 0, False
        self._place = folder / "pod"
        # The same for every attempt of this profile, and another for every other.
        self._id = hashlib.sha256(f"{plan.name} {plan.started_at}".encode()).hexdigest()[:32]
        self._backend = KubernetesBackend(plan.kubernetes, self._id, connect=connect)

    def run(self) -> None:
        """Measure what is missing in a pod, fetch it, and write the manifest.

        Raises:
            ExperimentsFailedError: not one point could be measured.
            ReplicaDiedError: the pod ended by itself.
            BackendError: the cluster refuses or loses it.
            StorageError: the folder cannot be written.
        """
        api = self._backend.api
        self._fetch_left(api)
        for sentence in self._backend.delete_all(api):
            self._say(sentence)
        experiment = self._experiment()
        known = [read_point(path) for path in sorted((self._folder / POINTS).iterdir())]
        brief = [
            point.model_copy(
                update={
                    "figures": {name: point.figures[name] for name in SEARCHED if name in point.figures},
                    "missing": {},
                }
            )
            for point in known
        ]
        given = Given(plan=self._plan.model_copy(update={"kubernetes": None}), known=brief).model_dump_json()
        made = objects.profile_job(
            experiment, self._place, self._spec, self._id, given=given, deadline_s=self._deadline_s(experiment)
        )
        pod = KubernetesDeployment(api, self._spec, made, experiment, self._place, clock=SystemClock())
        try:
            self._start(pod)
            wrong = self._follow(api, pod)
        finally:
            remarks = pod.stop(timeout_s=experiment.drain_timeout_s)
        for remark in remarks:
            self._say(remark)
        Profile(self._folder, self._say, absent=partial(_lost, wrong)).run()

    def _experiment(self) -> ExperimentSpec:
        """What a backend takes for one pod with the profile's workload; its image may be large, and take a while to come."""
        default = Timing()
        return ExperimentSpec(
            workload=self._plan.spec.workload,
            replicas=1,
            sharing=FOUND.sharing,
            repeat=1,
            timing=default.model_copy(
                update={"ready_timeout_s": max(default.ready_timeout_s, self._plan.spec.timeout_s)}
            ),
            metrics=[],
            limits=Limits(),
        )

    def _deadline_s(self, experiment: ExperimentSpec) -> float:
        """Until the last of all points could have ended, and be fetched."""
        spec = self._plan.spec
        batches = spec.most_batch.bit_length() + MOST_BISECTIONS
        searched = batches * len(list(spec.series())) if spec.capacity else 0
        points = len(spec.cells()) * spec.repeats + searched
        return experiment.timing.ready_timeout_s + points * spec.timeout_s + objects.KEEP_S

    @staticmethod
    def _start(pod: KubernetesDeployment) -> None:
        try:
            pod.start(threading.Event())
        except ReplicaDiedError as error:
            raise ReplicaDiedError(error.message, advice=IMAGE_ADVICE, code=error.code) from error

    def _follow(self, api: KubernetesApi, pod: KubernetesDeployment) -> str:
        """Fetch until it has finished; what went wrong in the pod, or nothing."""
        deaths: list[ReplicaDeath] = []
        over = threading.Event()

        def died(death: ReplicaDeath) -> None:
            deaths.append(death)
            over.set()

        pod.watch(died)
        [replica] = pod.replicas
        while True:
            [facts] = pod.statuses()
            self._take(api, replica, facts)
            if facts["finished"]:
                return str(facts["error"])
            if deaths:
                raise ReplicaDiedError(f"{deaths[0]}.", advice=ENDED_ADVICE, code=deaths[0].code)
            over.wait(POLL_S)

    def _take(self, api: KubernetesApi, replica: PodReplica, facts: Mapping[str, Any]) -> None:
        """Say what is new, and fetch it."""
        self._name_machine(Provenance.model_validate(facts["provenance"]))
        for name in facts["points"]:
            final = self._folder / POINTS / name
            if not final.exists():
                self._fetch(api, replica, name, final)
        for line in facts["lines"][self._said :]:
            self._say(line)
        self._said = len(facts["lines"])

    def _name_machine(self, provenance: Provenance) -> None:
        """The plan names the machine that measures."""
        if self._named:
            return
        before = [gpu.name for gpu in self._plan.provenance.gpus]
        now = [gpu.name for gpu in provenance.gpus]
        if any((self._folder / POINTS).iterdir()) and before != now:
            raise BackendError(
                f"the points so far are of {before or 'no GPU'}, and this pod has {now or 'none'}.",
                advice="Choose the node by `kubernetes.node_selector`, in a profile of another --name.",
            )
        plan = self._plan.model_copy(update={"provenance": provenance})
        atomic_write(self._folder / PLAN, plan.model_dump_json(indent=1) + "\n", replace=True)
        self._named = True

    def _fetch(self, api: KubernetesApi, replica: PodReplica, name: str, final: Path) -> None:
        archive, half = self._place / f"{name}.tar", final.with_name(f".{name}")
        with storage_errors(final):
            self._place.mkdir(exist_ok=True)
            try:
                path = artifacts.proxy_path(replica, f"{POINTS}/{name}")
                api.download(path, archive, patience_s=artifacts.PATIENCE_S)
                if half.exists():
                    shutil.rmtree(half)  # of a harness that was killed here
                unpack_point(archive, half)
                half.rename(final)
            finally:
                archive.unlink(missing_ok=True)

    def _fetch_left(self, api: KubernetesApi) -> None:
        """What was measured after an earlier harness was killed, from a pod that still has it."""
        label = f"{pods.CAMPAIGN_LABEL}={self._id}"
        for left in api.list(objects.pods_path(self._spec.namespace), labels=label):
            try:
                replica = pods.as_replica(left, 0)
                self._take(api, replica, artifacts.status(api, replica, patience_s=artifacts.QUICK_S))
            except (HarnessError, KeyError, tarfile.TarError):
                continue  # it has ended, or never began: its points are measured again
        self._said, self._named = 0, False


def unpack_point(archive: Path, folder: Path) -> None:
    """Write the files of a point below a new folder. By hand: the filters of ``tarfile`` came with Python 3.11.4.

    Raises:
        BackendError: it holds something else than files and folders that lie below it.
        OSError: they cannot be written.
        tarfile.TarError: it is no archive.
    """
    folder.mkdir()
    with tarfile.open(archive) as packed:
        for member in packed:
            path = PurePosixPath(member.name)
            content = packed.extractfile(member) if member.isfile() else None
            if path.is_absolute() or ".." in path.parts or not (content or member.isdir()):
                raise BackendError(
                    f"{archive.stem} of the pod holds {member.name!r}, which is no file of a profile.",
                    advice="Look at what the image makes of `python -m harness.campaign.profile_pod`.",
                )
            target = folder / path
            if content:
                target.parent.mkdir(parents=True, exist_ok=True)
                with content, target.open("xb") as file:
                    shutil.copyfileobj(content, file)
            else:
                target.mkdir(parents=True, exist_ok=True)


def _lost(wrong: str, name: str) -> NoReturn:
    why = f"the pod did not measure {name}: {wrong}" if wrong else f"{name} was not fetched from the pod."
    raise BackendError(why, advice="Read its log in pod/replicas, and go on with the profile: harness resume.")
