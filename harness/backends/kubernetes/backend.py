"""Starts deployments on the cluster that a kubeconfig names."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness.backends.base import Notify, RecordingRequest, ReplicaDeath, Send, unheard
from harness.backends.kubernetes import files, monitoring, objects, preflight, probe, switching
from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.deployment import KubernetesDeployment, RecordingMaker
from harness.backends.kubernetes.load_pods import LoadPods
from harness.backends.kubernetes.objects import PodGroup
from harness.backends.kubernetes.pods import CAMPAIGN_LABEL, PodReplica
from harness.backends.kubernetes.replica_check import APART_ADVICE, Status, apart, only_node_is_shared
from harness.clock import Clock, SystemClock
from harness.errors import BackendError, ClusterError, Finding, ReasonCode, Severity
from harness.metrics.catalogue import CATALOGUE
from harness.metrics.prometheus.telemetry import PrometheusTelemetry
from harness.metrics.summary import Recording
from harness.results.manifest import Provenance
from harness.spec import ExperimentSpec, KubernetesSpec, WorkloadSpec

SWEPT_GONE_S = 60.0
SWEEP_POLL_S = 0.2


class WithNeighbours:
    """The measured replicas of one experiment and its neighbours, each workload with a deployment of its own.

    Args:
        measured: the replicas that the experiment is about.
        beside: the neighbours, by workload.
        by_node: replicas have a GPU or an instance each, or none: sharing the node is all that there is to see.
    """

    def __init__(
        self, measured: KubernetesDeployment, beside: Mapping[str, KubernetesDeployment], *, by_node: bool
    ) -> None:
        self._measured, self._beside, self._by_node = measured, beside, by_node
        self._all = [measured, *beside.values()]

    @property
    def deaths(self) -> Sequence[ReplicaDeath]:
        """Replicas that have ended by themselves so far, the neighbours' among them."""
        return [death for one in self._all for death in one.deaths]

    def statuses(self) -> Sequence[Status]:
        """What each measured replica says of itself. See KubernetesDeployment.statuses."""
        return self._measured.statuses()

    def neighbour_statuses(self) -> Mapping[str, Sequence[Status]]:
        """The same of the replicas of each neighbour, by workload."""
        return {name: one.statuses() for name, one in self._beside.items()}

    def telemetry(self, path: Path) -> PrometheusTelemetry | None:
        """Of the GPUs of all of them."""
        return self._measured.telemetry(path, self._beside_replicas())

    def hottest_celsius(self) -> float:
        """Of the measured replicas' GPUs, which are those of the neighbours."""
        return self._measured.hottest_celsius()

    def provenance(self) -> Provenance:
        """The nodes of the measured replicas, which are those of the neighbours."""
        return self._measured.provenance()

    def recording(self, request: RecordingRequest) -> Recording:
        """Of the measured replicas, and of each neighbour by itself. Raises StorageError."""
        return self._measured.recording(request, self._beside_replicas())

    def _beside_replicas(self) -> list[PodReplica]:
        return [replica for pods in self._beside.values() for replica in pods.replicas]

    def start(self, abort: threading.Event) -> None:
        """Begin everything and return when all have served, where they should be.

        Raises:
            ReplicaDiedError: one ended by itself.
            BackendError: see KubernetesDeployment.start; or they do not share a GPU.
        """
        for one in self._all:
            one.make(abort)
        for one in self._all:  # the scheduler places a neighbour once a measured replica has its node
            one.wait(abort)
        why = apart(self._measured.statuses(), self.neighbour_statuses(), by_node=self._by_node)
        if why:
            raise BackendError(why, advice=APART_ADVICE, code=ReasonCode.NEIGHBOUR_APART)

    def watch(self, on_death: Callable[[ReplicaDeath], None]) -> None:
        """From here on report each replica that ends."""
        for one in self._all:
            one.watch(on_death)

    def stop(self, *, timeout_s: float) -> Sequence[str]:
        """Fetch what was written and end everything; a node's sentence is said once."""
        with ThreadPoolExecutor(len(self._all), thread_name_prefix="stop") as pool:
            found = list(pool.map(lambda one: one.stop(timeout_s=timeout_s), self._all))
        return list(dict.fromkeys(sentence for sentences in found for sentence in sentences))


class KubernetesBackend:
    """Starts one Deployment (or Job) per workload of an experiment, or per GPU where it shares several by claims.

    Args:
        spec: which cluster, and how replicas stand in it.
        campaign_id: labels every object of the campaign; clean-up is by this label alone.
        workloads: of the campaign: whether files go into its pods.
        clock: real time; pods do not live in any other.
        connect: makes the API client, when it is first needed.
        record: makes the recorder of a deployment.
    """

    name = "kubernetes"

    def __init__(
        self,
        spec: KubernetesSpec,
        campaign_id: str,
        workloads: Sequence[WorkloadSpec] = (),
        *,
        clock: Clock | None = None,
        connect: Callable[[KubernetesSpec], KubernetesApi] = KubernetesApi,
        record: RecordingMaker = monitoring.recording,
    ) -> None:
        self._spec = spec
        self._campaign_id = campaign_id
        self._clock = clock or SystemClock()
        self._connect = connect
        self._record = record
        self._given = files.any_named(workloads)
        self._made: KubernetesApi | None = None
        self._mode = switching.ModeSwitch(spec, campaign_id, self._clock)

    @property
    def api(self) -> KubernetesApi:
        """The cluster's API. Raises ClusterError when the credentials cannot be read."""
        if self._made is None:
            self._made = self._connect(self._spec)
        return self._made

    def check(self, experiments: Sequence[ExperimentSpec]) -> Sequence[Finding]:
        """Whether the cluster can run these experiments, looked at without starting anything."""
        try:
            api = self.api
        except ClusterError as error:
            return [Finding(Severity.ERROR, "cluster", error.message, error.advice)]
        places = [objects.placed(one, self._spec) for one in experiments] or [self._spec]
        return preflight.check(
            api,
            self._spec if self._spec in places else places[0],
            experiments,
            campaign_id=self._campaign_id,
            prometheus=lambda: monitoring.server(api, self._spec),
        )

    def sweep(self) -> Sequence[str]:
        """Delete what an earlier, killed harness left of this campaign, and wait until its pods are gone."""
        return [*monitoring.restore_grafana(self.api, self._spec), *self.delete_all(self.api)]

    def delete_all(self, api: KubernetesApi) -> list[str]:
        """Delete this campaign's objects and wait until their pods are gone; a sentence for each. Raises ClusterError."""
        label = f"{CAMPAIGN_LABEL}={self._campaign_id}"
        sentences = []
        for kind, collection in objects.collections(self._spec, given=self._given).items():
            for one in api.list(collection, labels=label):
                name = one["metadata"]["name"]
                api.delete(f"{collection}/{name}", propagation="Foreground")
                sentences.append(f"deleted {kind} {name} of an earlier run.")
        deadline_s = time.monotonic() + SWEPT_GONE_S
        path = objects.pods_path(self._spec.namespace)
        while left := api.list(path, labels=label):
            if time.monotonic() >= deadline_s:
                for pod in left:
                    api.delete(f"{path}/{pod['metadata']['name']}", grace_s=0)
                    sentences.append(f"removed pod {pod['metadata']['name']} of an earlier run by force.")
                break
            time.sleep(SWEEP_POLL_S)
        return sentences

    def rehearse(
        self,
        experiment: ExperimentSpec,
        folder: Path,
        *,
        abort: threading.Event,
        send: Send | None = None,
        notice: Notify = unheard,
    ) -> Sequence[Finding]:
        """Start one replica, ask every query of the catalogue until it has answered, and end it. See Backend.rehearse."""
        sentences = monitoring.quiet_grafana(self.api, self._spec, self._campaign_id)
        self._switch(experiment, abort, notice)
        alone = experiment.model_copy(update={"replicas": 1})
        deployment = self._deployment(self._measured(alone, folder), notice)
        self._start(deployment, experiment, abort=abort, on_death=lambda _death: None)
        load, remarks = None, list[str]()
        try:
            load = send(alone, folder, deployment.statuses()) if send else None
            with monitoring.server(self.api, self._spec) as server:
                found = probe.rehearse(
                    server,
                    monitoring.origin(server, self._spec, deployment.replicas),
                    [CATALOGUE[name] for name in experiment.metrics],
                    experiment.timing,
                    scrape_interval_s=self._spec.scrape_interval_s,
                    clock=self._clock,
                    abort=abort,
                )
        finally:  # whatever came of it: both hold GPUs, or ask who does
            try:
                remarks += load.stop() if load else ()
            finally:
                deployment.stop(timeout_s=experiment.drain_timeout_s)
        remarked = [("grafana", sentence) for sentence in sentences] + [("canary", remark) for remark in remarks]
        return [*(Finding(Severity.WARNING, check, sentence) for check, sentence in remarked), *found]

    def close(self) -> Sequence[str]:
        """Let Grafana run again, and share the GPUs as before."""
        if self._made is None:
            return ()
        return [
            *monitoring.restore_grafana(self._made, self._spec),
            *switching.restore(self._made, self._spec, self._campaign_id),
        ]

    def deploy(
        self,
        experiment: ExperimentSpec,
        folder: Path,
        *,
        abort: threading.Event,
        on_death: Callable[[ReplicaDeath], None],
        notice: Notify = unheard,
    ) -> KubernetesDeployment | WithNeighbours:
        """Bring about the sharing mode, start the replicas and return when each has served. See Backend.deploy."""
        self._switch(experiment, abort, notice)
        part = self._measured(experiment, folder)
        around = objects.neighbour_pods(part, self._spec, self._campaign_id)
        measured = self._deployment(part, notice)
        beside = {name: self._deployment(one, notice, name) for name, one in around.items()}
        by_node = only_node_is_shared(experiment.sharing, self._spec.gpus_per_replica)
        deployment = WithNeighbours(measured, beside, by_node=by_node) if beside else measured
        self._start(deployment, experiment, abort=abort, on_death=on_death)
        return deployment

    def load_pods(self, experiment: ExperimentSpec, folder: Path, plan: str, *, abort: threading.Event) -> LoadPods:
        """Start the pods that send. See Backend.load_pods."""
        part = objects.load_pods(experiment, folder, self._spec, self._campaign_id, plan=plan)
        load = LoadPods(self.api, part, self._clock)
        load.start(abort)
        return load

    def _switch(self, experiment: ExperimentSpec, abort: threading.Event, notice: Notify) -> None:
        if objects.placed(experiment, self._spec).device_plugin_configs is None:
            return
        api = self.api.until(abort)
        self.delete_all(api)  # its own pods hold GPUs, too
        self._mode.to(experiment, api, abort, notice)

    def _measured(self, experiment: ExperimentSpec, folder: Path) -> PodGroup:
        return objects.measured_pods(experiment, folder, self._spec, self._campaign_id)

    def _deployment(self, group: PodGroup, notice: Notify, neighbour: str = "") -> KubernetesDeployment:
        record, clock = self._record, self._clock
        return KubernetesDeployment(self.api, group, clock=clock, record=record, neighbour=neighbour, notice=notice)

    def _start(
        self,
        deployment: KubernetesDeployment | WithNeighbours,
        experiment: ExperimentSpec,
        *,
        abort: threading.Event,
        on_death: Callable[[ReplicaDeath], None],
    ) -> None:
        # What an outage at the end of the last attempt left running would be measured, too.
        self.delete_all(self.api.until(abort))
        try:
            deployment.start(abort)
            deployment.watch(on_death)
        except BaseException:
            # Why it failed is what counts; what cannot be deleted now is swept when the campaign goes on.
            with contextlib.suppress(BackendError):
                deployment.stop(timeout_s=experiment.drain_timeout_s)
            raise
