"""The pods that send the requests of scenario http, for nobody outside a cluster reaches a replica in it."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness.backends.kubernetes import collect
from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.deployment import KubernetesDeployment
from harness.backends.kubernetes.objects import PodGroup
from harness.backends.kubernetes.pods import PodReplica
from harness.clock import Clock
from harness.errors import ClusterError

PATIENCE_S = 30.0


class LoadJob:
    """A Job with one pod for each shard of the load."""

    def __init__(self, api: KubernetesApi, part: PodGroup, clock: Clock) -> None:
        self._api, self._folder = api, part.folder
        self._pods = KubernetesDeployment(api, part, clock=clock)

    def start(self, abort: threading.Event) -> None:
        """Return when every pod sends. Raises BackendError."""
        try:
            self._pods.start(abort)
        except BaseException:
            self._pods.stop(timeout_s=0)
            raise

    def stop(self) -> tuple[list[Path], Sequence[str]]:
        """End the load, then the pods: the logs of the shards, and a sentence for whatever did not end well."""
        with ThreadPoolExecutor(collect.PARALLEL, thread_name_prefix="load") as pool:
            ends = list(pool.map(self._end, self._pods.replicas))
        logs = [log for log, _ in ends if log is not None]
        sentences = [sentence for _, sentence in ends if sentence]
        return logs, [*sentences, *self._pods.stop(timeout_s=0)]

    def _end(self, shard: PodReplica) -> tuple[Path | None, str]:
        """Have one send no more, and fetch its log."""
        log = self._folder / f"shard-{shard.index}.bin"
        patience_s = collect.QUICK_S if shard.pod in self._pods.over() else PATIENCE_S
        try:
            said = self._api.text(collect.proxy_path(shard, "finish"), patience_s=patience_s)
            self._api.download(collect.proxy_path(shard, "requests"), log, patience_s=patience_s)
            code = json.loads(said)["exit_code"]
        except (ClusterError, ValueError, KeyError) as error:
            return None, f"the requests that pod {shard.pod} sent could not be fetched: {error}"
        how = "did not end in time" if code is None else f"ended with {code}" if code else ""
        return log, f"the load generator in pod {shard.pod} {how}." if how else ""
