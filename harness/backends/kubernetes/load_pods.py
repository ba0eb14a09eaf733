"""The pods that send the requests of scenario http, for nobody outside a cluster reaches a replica in it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness.backends.base import Load
from harness.backends.kubernetes import artifacts
from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.deployment import KubernetesDeployment
from harness.backends.kubernetes.parts import PodGroup
from harness.backends.kubernetes.pods import PodReplica
from harness.clock import Clock
from harness.errors import ClusterError

PATIENCE_S = 30.0


class LoadPods:
    """A Job with one pod for each shard of the load.

    Args:
        api: of the cluster.
        part: the Job.
        clock: real time.
    """

    def __init__(self, api: KubernetesApi, part: PodGroup, clock: Clock) -> None:
        self._api, self._folder = api, part.folder
        self._pods = KubernetesDeployment(api, part.spec, part.workload, part.experiment, part.folder, clock=clock)

    def start(self, abort: threading.Event) -> None:
        """Return when every pod sends. Raises BackendError."""
        try:
            self._pods.start(abort)
        except BaseException:
            self._pods.stop(timeout_s=0)
            raise

    def stop(self) -> tuple[list[Path], Sequence[str]]:
        """End the load, then the pods: the logs of the shards, and a sentence for whatever did not end well."""
        with ThreadPoolExecutor(artifacts.PARALLEL, thread_name_prefix="load") as pool:
            found = list(pool.map(self._end, self._pods.replicas))
        logs = [log for log, _ in found if log is not None]
        sentences = [sentence for _, sentence in found if sentence]
        return logs, [*sentences, *self._pods.stop(timeout_s=0)]

    def _end(self, shard: PodReplica) -> tuple[Path | None, str]:
        """Have one send no more, and fetch its log."""
        log = self._folder / f"shard-{shard.index}.bin"
        patience_s = artifacts.QUICK_S if shard.pod in self._pods.over() else PATIENCE_S
        try:
            said = self._api.text(artifacts.proxy_path(shard, "finish"), patience_s=patience_s)
            self._api.download(artifacts.proxy_path(shard, "requests"), log, patience_s=patience_s)
            code = json.loads(said)["exit_code"]
        except (ClusterError, ValueError, KeyError) as error:
            return None, f"the requests that pod {shard.pod} sent could not be fetched: {error}"
        how = "did not end in time" if code is None else f"ended with {code}" if code else ""
        return log, f"the load generator in pod {shard.pod} {how}." if how else ""


class Asked:
    """A canary that serves whoever asks, and what asks it.

    Args:
        canary: one replica that serves.
        timeout_s: that it is given to end where nothing asks it.

    Attributes:
        remarks: a sentence for each request that was not sent as it should be; known once it was stopped.
    """

    def __init__(self, canary: KubernetesDeployment, *, timeout_s: float) -> None:
        self._canary, self._timeout_s = canary, timeout_s
        self._load: Load | None = None
        self.remarks: Sequence[str] = ()

    def begin(self, load: Callable[[], Load]) -> None:
        """Have it asked; where that cannot be, end it. Raises BackendError, StorageError."""
        try:
            self._load = load()
        except BaseException:
            self.stop(timeout_s=self._timeout_s)
            raise

    def stop(self, *, timeout_s: float) -> Sequence[str]:
        """End what asks, and then the canary."""
        try:
            if self._load is not None:
                self.remarks = self._load.stop()
        finally:
            ended = self._canary.stop(timeout_s=timeout_s)
        return ended
