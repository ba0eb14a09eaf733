"""Starts deployments, and the pods that send them requests, on the cluster that a kubeconfig names."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from harness.backends.base import Backend, ReplicaDeath, Send
from harness.backends.kubernetes import collect, files, monitoring, objects, preflight, probe
from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.deployment import KubernetesDeployment, RecordingMaker
from harness.backends.kubernetes.objects import PodGroup
from harness.backends.kubernetes.pods import PodReplica
from harness.clock import SystemClock
from harness.errors import BackendError, ClusterError, Issue, IssueLevel
from harness.metrics.catalogue import CATALOGUE
from harness.results.files import storage_errors
from harness.results.requests import GENERATED, LOAD_LOG, Rows
from harness.sharing.cluster import cluster_sharing
from harness.sharing.mode import Notify, unheard
from harness.sharing.modes import mode_of
from harness.sharing.node import CAMPAIGN_LABEL, name
from harness.spec import ExperimentSpec, KubernetesSpec, WorkloadSpec

SWEPT_GONE_S = 60.0
SWEEP_POLL_S = 0.2
_LOAD_PATIENCE_S = 30.0


class KubernetesBackend(Backend):
    """Starts one Deployment (or Job) per workload of an experiment, or per GPU where it shares several by claims.

    ``campaign_id`` labels every object of the campaign; clean-up is by this label alone.
    """

    name = "kubernetes"

    def __init__(
        self,
        spec: KubernetesSpec,
        campaign_id: str,
        workloads: Sequence[WorkloadSpec] = (),
        *,
        record: RecordingMaker = monitoring.recording,
    ) -> None:
        self._spec = spec
        self._campaign_id = campaign_id
        self._clock = SystemClock()
        self._record = record
        self._given = files.any_named(workloads)
        self._made: KubernetesApi | None = None
        self._sharing = cluster_sharing(spec, campaign_id, self._clock)
        self._switched: dict[str, Any] = {}
        """The last switch, until replicas of an experiment run under it: the rehearsal's is the first experiment's."""

    @property
    def api(self) -> KubernetesApi:
        """The cluster's API. Raises ClusterError when the credentials cannot be read."""
        if self._made is None:
            self._made = KubernetesApi(self._spec)
        return self._made

    def check(self, experiments: Sequence[ExperimentSpec]) -> Sequence[Issue]:
        """Whether the cluster can run these experiments, looked at without starting anything."""
        try:
            api = self.api
        except ClusterError as error:
            return [Issue(IssueLevel.ERROR, "cluster", error.message, error.advice)]
        places = [objects.placed(experiment, self._spec) for experiment in experiments] or [self._spec]
        spec = self._spec if self._spec in places else places[0]
        looked_at = preflight.Preflight(api, spec, experiments, self._campaign_id, self._clock)
        return looked_at.check(lambda: monitoring.server(api, self._spec))

    def sweep(self) -> Sequence[str]:
        """Delete what an earlier, killed harness left of this campaign, and wait until its pods are gone."""
        return [*monitoring.restore_grafana(self.api, self._spec), *self.delete_all(self.api)]

    def delete_all(self, api: KubernetesApi) -> list[str]:
        """Delete this campaign's objects and wait until their pods are gone; a sentence for each. Raises ClusterError."""
        label = f"{CAMPAIGN_LABEL}={self._campaign_id}"
        sentences = []
        for kind, collection in objects.collections(self._spec, given=self._given).items():
            for item in api.list(collection, labels=label):
                api.delete(f"{collection}/{name(item)}", propagation="Foreground")
                sentences.append(f"deleted {kind} {name(item)} of an earlier run.")
        deadline_s = time.monotonic() + SWEPT_GONE_S
        path = objects.pods_path(self._spec.namespace)
        while left := api.list(path, labels=label):
            if time.monotonic() >= deadline_s:
                for pod in left:
                    api.delete(f"{path}/{name(pod)}", grace_s=0)
                    sentences.append(f"removed pod {name(pod)} of an earlier run by force.")
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
    ) -> Sequence[Issue]:
        """Start one replica, ask every query of the catalogue until it has answered, and end it. See Backend.rehearse."""
        sentences = monitoring.quiet_grafana(self.api, self._spec, self._campaign_id)
        self._switch(experiment, abort, notice)
        alone = experiment.model_copy(update={"replicas": 1})
        deployment = self._deployment(objects.measured_pods(alone, folder, self._spec, self._campaign_id), notice)
        self._start(deployment, experiment, abort=abort, on_death=lambda _death: None)
        load, remarks = None, list[str]()
        try:
            load = send(alone, folder, deployment.statuses()) if send else None
            with monitoring.server(self.api, self._spec) as server:
                origin = monitoring.origin(server, self._spec, deployment.replicas)
                metrics = [CATALOGUE[metric] for metric in experiment.metrics]
                rehearsal = probe.Rehearsal(server, origin, metrics, experiment.timing, self._clock)
                issues = rehearsal.run(self._spec.scrape_interval_s, abort)
        finally:  # whatever came of it: both hold GPUs, or ask who does
            try:
                remarks += load.stop() if load else ()
            finally:
                deployment.stop(timeout_s=experiment.drain_timeout_s)
        remarked = [("grafana", sentence) for sentence in sentences] + [("canary", remark) for remark in remarks]
        return [*(Issue(IssueLevel.WARNING, check, sentence) for check, sentence in remarked), *issues]

    def close(self) -> Sequence[str]:
        """Let Grafana run again, and share the GPUs as before."""
        if self._made is None:
            return ()
        return [
            *monitoring.restore_grafana(self._made, self._spec),
            *self._sharing.restore(self._made),
        ]

    def deploy(
        self,
        experiment: ExperimentSpec,
        folder: Path,
        *,
        abort: threading.Event,
        on_death: Callable[[ReplicaDeath], None],
        notice: Notify = unheard,
    ) -> KubernetesDeployment:
        """Bring about the sharing mode, start the replicas and return when each has served. See Backend.deploy."""
        self._switch(experiment, abort, notice)
        group = objects.measured_pods(experiment, folder, self._spec, self._campaign_id)
        around = objects.neighbour_pods(group, self._spec, self._campaign_id)
        beside = {workload: self._deployment(pods, notice, neighbour=workload) for workload, pods in around.items()}
        by_node = not self._spec.gpus_per_replica or mode_of(experiment.sharing).each_its_own
        deployment = self._deployment(group, notice, beside=beside, by_node=by_node, switch=self._switched)
        self._start(deployment, experiment, abort=abort, on_death=on_death)
        self._switched = {}
        return deployment

    def load_pods(self, experiment: ExperimentSpec, folder: Path, plan: str, *, abort: threading.Event) -> LoadJob:
        """Start the pods that send. See Backend.load_pods."""
        part = objects.load_pods(experiment, folder, self._spec, self._campaign_id, plan=plan)
        pods = KubernetesDeployment(self.api, part, clock=self._clock)
        try:
            pods.start(abort)
        except BaseException:
            pods.stop(timeout_s=0)
            raise
        return LoadJob(self.api, pods, folder / LOAD_LOG)

    def _switch(self, experiment: ExperimentSpec, abort: threading.Event, notice: Notify) -> None:
        if objects.placed(experiment, self._spec).device_plugin_configs is None:
            return
        api = self.api.until(abort)
        self.delete_all(api)  # its own pods hold GPUs, too
        switched = self._sharing.switch(api, experiment, abort, notice)
        self._switched = switched.facts() if switched else self._switched

    def _deployment(self, group: PodGroup, notice: Notify, **around: Any) -> KubernetesDeployment:
        how: dict[str, Any] = {"clock": self._clock, "record": self._record, "notice": notice, **around}
        return KubernetesDeployment(self.api, group, **how)

    def _start(
        self,
        deployment: KubernetesDeployment,
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


class LoadJob:
    """A Job with one pod for each shard of the load of scenario http, for nobody outside a cluster reaches a replica in it."""

    def __init__(self, api: KubernetesApi, pods: KubernetesDeployment, log: Path) -> None:
        self._api, self._pods, self._log = api, pods, log

    def stop(self) -> list[str]:
        """End the load, then the pods, and merge what the shards sent. See RunningLoad."""
        with ThreadPoolExecutor(collect.PARALLEL, thread_name_prefix="load") as pool:
            ends = list(pool.map(self._end, self._pods.replicas))
        logs = [log for log, _ in ends if log is not None]
        sentences = [*(sentence for _, sentence in ends if sentence), *self._pods.stop(timeout_s=0)]
        with storage_errors(self._log):
            merge(logs).tofile(self._log)
            for log in logs:
                log.unlink()
        return sentences

    def _end(self, shard: PodReplica) -> tuple[Path | None, str]:
        """Have one send no more, and fetch its log."""
        log = self._pods.group.folder / f"shard-{shard.index}.bin"
        patience_s = collect.QUICK_S if shard.pod in self._pods.over() else _LOAD_PATIENCE_S
        try:
            said = self._api.text(collect.proxy_path(shard, "finish"), patience_s=patience_s)
            self._api.download(collect.proxy_path(shard, "requests"), log, patience_s=patience_s)
            code = json.loads(said)["exit_code"]
        except (ClusterError, ValueError, KeyError) as error:
            return None, f"the requests that pod {shard.pod} sent could not be fetched: {error}"
        how = "did not end in time" if code is None else f"ended with {code}" if code else ""
        return log, f"the load generator in pod {shard.pod} {how}." if how else ""


def merge(logs: Sequence[Path]) -> Rows:
    """Every whole record of some logs, by intended time. Raises OSError."""
    parts = [np.fromfile(log, GENERATED, log.stat().st_size // GENERATED.itemsize) for log in logs]
    records = np.concatenate([np.empty(0, GENERATED), *parts])
    ordered: Rows = records[np.argsort(records["intended_ns"], kind="stable")]
    return ordered
