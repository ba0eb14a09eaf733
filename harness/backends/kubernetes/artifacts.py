"""Brings what replicas wrote from their pods into the attempt's folder, in the layout of local ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness.backends.kubernetes.client import KubernetesApi
from harness.backends.kubernetes.objects import pods_path
from harness.backends.kubernetes.pods import CONTAINER, PodReplica
from harness.errors import BackendError, ClusterError
from harness.results import layout
from harness.results.files import storage_errors

STATUS_FILE = "replica.json"
PATIENCE_S = 20.0
QUICK_S = 2.0
PARALLEL = 4
LAST_LINES = 5
MAX_LOG_BYTES = 64_000_000


def proxy_path(replica: PodReplica, route: str) -> str:
    """Path by which the API server hands a request on to a replica."""
    return f"{pods_path(replica.namespace)}/{replica.pod}:{replica.port}/proxy/{route}"


def status(api: KubernetesApi, replica: PodReplica, *, patience_s: float = PATIENCE_S) -> dict[str, Any]:
    """What a replica says of itself. Raises ClusterError."""
    text = api.text(proxy_path(replica, "status"), patience_s=patience_s)
    try:
        answer: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise ClusterError(
            f"Replica {replica.index} (pod {replica.pod}) answers /status with no JSON: {text[:200]!r}.",
            advice="Does the image hold this version of the harness?",
        ) from error
    return answer


def log_path(replica_pod: str, namespace: str) -> str:
    """Path of a pod's log."""
    return f"{pods_path(namespace)}/{replica_pod}/log"


def save_log(api: KubernetesApi, pod: str, target: Path, *, restarted: bool, patience_s: float = PATIENCE_S) -> None:
    """Write the log of a pod, that of its container before the last restart first. Raises ClusterError, StorageError."""
    query = {"container": CONTAINER, "limitBytes": str(MAX_LOG_BYTES)}
    path = log_path(pod, api.namespace)
    before = api.text(path, {**query, "previous": "true"}, patience_s=patience_s) if restarted else ""
    now = api.text(path, query, patience_s=patience_s)
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(before + now, encoding="utf-8")


def last_lines(api: KubernetesApi, pod: str, *, previous: bool) -> tuple[str, ...]:
    """The end of a pod's log; empty when it cannot be had any more."""
    query = {"container": CONTAINER, "tailLines": str(4 * LAST_LINES)}
    try:
        path = log_path(pod, api.namespace)
        text = api.text(path, query | ({"previous": "true"} if previous else {}), patience_s=QUICK_S)
    except BackendError:
        return ()  # it is gone with its pod or its node: what is known is said without it
    return tuple(line.strip() for line in text.splitlines() if line.strip())[-LAST_LINES:]


def results(api: KubernetesApi, replicas: Sequence[PodReplica], folder: Path, *, services: bool) -> list[str]:
    """Fetch status, latencies and log of every replica; a sentence for each that could not be had.

    Args:
        api: of the cluster.
        replicas: to ask.
        folder: the attempt's.
        services: fetch the service times of a scenario, too.
    """
    with ThreadPoolExecutor(max_workers=PARALLEL, thread_name_prefix="collect") as pool:
        found = pool.map(lambda replica: _results(api, replica, folder, services=services), replicas)
        return [sentence for sentences in found for sentence in sentences]


def _results(api: KubernetesApi, replica: PodReplica, folder: Path, *, services: bool) -> list[str]:
    place = layout.replica_folder(folder, replica.index)
    with storage_errors(place):
        place.mkdir(parents=True, exist_ok=True)
    parts: dict[str, Callable[[], None]] = {
        "latencies": lambda: _download(api, replica, "latencies", place / layout.RAW_LATENCIES),
        "status": lambda: _save_status(api, replica, place / STATUS_FILE),
        "log": lambda: save_log(api, replica.pod, layout.replica_log(folder, replica.index), restarted=False),
    }
    if services:
        parts["service times"] = lambda: _download(api, replica, "services", place / layout.SERVICES)
    sentences = []
    for what, fetch in parts.items():
        try:
            fetch()
        except BackendError as error:
            sentences.append(f"the {what} of replica {replica.index} ({replica.pod}) could not be fetched: {error}")
    return sentences


def _download(api: KubernetesApi, replica: PodReplica, route: str, target: Path) -> None:
    """Through a file of another name: half a log must not look like a whole one."""
    partial = target.with_name(f".{target.name}")
    with storage_errors(target):
        try:
            api.download(proxy_path(replica, route), partial, patience_s=PATIENCE_S)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


def _save_status(api: KubernetesApi, replica: PodReplica, target: Path) -> None:
    facts = status(api, replica)
    with storage_errors(target):
        target.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
