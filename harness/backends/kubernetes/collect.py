"""What replicas in pods say and write: refused where they are not what was asked for, fetched at the end or while they serve.

Files come into the attempt's folder, in the layout of local ones.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from harness.backends.base import ReplicaDeath
from harness.backends.kubernetes.api import KubernetesApi
from harness.backends.kubernetes.objects import layer_in_pod, pods_path
from harness.backends.kubernetes.pods import CONTAINER, SERVER, End, PodReplica
from harness.errors import BackendError, ClusterError, ReasonCode
from harness.metrics.rows import Enough
from harness.results import layout
from harness.results.files import storage_errors
from harness.sharing.cluster import cluster_sharing
from harness.sharing.modes import mode_of
from harness.spec import Device, ExperimentSpec, KubernetesSpec

STATUS_FILE = "replica.json"
PATIENCE_S = 20.0
QUICK_S = 2.0
PARALLEL = 4
LAST_LINES = 5
MAX_LOG_BYTES = 64_000_000
PACE_S = 1.0
"""Between two requests for logs while replicas serve, as many for a hundred of them as for one: a round over more takes longer."""
SM_STEP = 2
"""MPS gives SMs in steps of so many, and rounds down."""
_SERVING = "serving"
_FILES = {
    "latencies": layout.RAW_LATENCIES,
    "services": layout.SERVICES,
    **{name: f"{name}.bin" for name in ("requests", "gaps", "answers", "turns")},
    "engine_metrics": "engine_metrics.csv",
}
"""What a replica wrote, by the route that hands it out."""
_NAMES = {"services": "service times", "engine_metrics": "server's own metrics"}
Status = Mapping[str, Any]
"""What a replica says of itself, with its pod and node."""
APART_ADVICE = (
    "The scheduler chooses the node and the device plugin the GPU: narrow `kubernetes.node_selector` to nodes with one GPU, "
    "with one neighbour at least for each; a workload of your own names its GPU as `device_uuid` of describe()."
)


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


def finished(api: KubernetesApi, replica: PodReplica) -> bool:
    """Have a replica send no more requests; whether each that it sent is answered, or given up, and written down. Raises ClusterError."""
    return bool(json.loads(api.text(proxy_path(replica, "finish"), patience_s=QUICK_S))["phase"] != _SERVING)


def refuse_what_differs(statuses: Sequence[Status], experiment: ExperimentSpec, spec: KubernetesSpec) -> None:
    """Raise BackendError for the first replica that would measure something else."""
    for status in statuses:
        for why, advice, code in _differences(status, experiment, spec):
            raise BackendError(f"replica {status['replica']} (pod {status['pod']}) {why}.", advice=advice, code=code)


def _differences(
    status: Status, experiment: ExperimentSpec, spec: KubernetesSpec
) -> Iterator[tuple[str, str, ReasonCode]]:
    """What of a replica is not as it was to be, and what to do."""
    workload, mode, layer = experiment.workload, mode_of(experiment.sharing), layer_in_pod(experiment)
    if layer and layer.preload and layer.preload not in status.get("preloaded", ()):  # with a mere remark of the loader
        needs = "what it needs itself" if layer.preload_image else "it"
        why = f"runs without the layer's library {layer.preload}: the loader did not load it"
        advice = (
            f"Is it built for `kubernetes.image`, and {needs} in there? The replica's log has what the loader says."
        )
        yield why, advice, ReasonCode.BACKEND
    may_be_on_cpu = not spec.gpus_per_replica or workload.device is Device.CPU or workload.factory is not None
    if status.get("device") == "cpu" and not may_be_on_cpu:
        has = f"{spec.slice_resource}: {spec.gpus_per_replica}" if spec.slice_resource else "a GPU"
        advice = (
            "Check `kubernetes.runtime_class` (a claim needs CDI in the node's container runtime) and that the image's torch is "
            "built with CUDA; or set device: cpu if this is wanted."
        )
        yield f"runs on the CPU although it was given {has}", advice, ReasonCode.NOT_ON_GPU
    if why := mode.contradiction(status):
        denied = "; ".join(["", *status.get("sharing_denied", ())])
        why = f"{why}, and it was to be under {experiment.sharing.value}{denied}"
        yield why, cluster_sharing(spec).log_advice, ReasonCode.BACKEND
    limits, share = mode.pod_environment(experiment), experiment.mps if mode.concurrent else None
    percent = share.percentage(experiment.replicas_per_gpu) if share else None
    sms, whole = status.get("multiprocessors"), (status.get("gpu") or {}).get("multiprocessors")
    if sms and whole and percent is not None and sms <= whole * percent / 100 - SM_STEP:
        why = f"has {sms} of the {whole} SMs of its GPU ({sms / whole:.1%}), and the campaign says {percent:g}%"
        advice = "Configure fewer slices, request less (`mps.share`), or remove `mps` to use what the slice has."
        yield why, advice, ReasonCode.BACKEND
    if limits and status.get("mps_limits", limits) not in (None, limits):  # None: it cannot be seen
        advice = "Leave CUDA_MPS_* out of the image, of `layer.environment` and of `server.env`."
        yield f"has the limits {status['mps_limits']} under MPS and not {limits}", advice, ReasonCode.BACKEND


def apart(measured: Sequence[Status], beside: Mapping[str, Sequence[Status]], *, by_node: bool) -> str:
    """Who is not where the others are, in a sentence; empty: every neighbour is beside a measured replica, and the other way round.

    ``beside``: the statuses of the neighbours, by workload; ``by_node``: the node counts, and not the GPU.
    """
    neighbours: Sequence[Status] = [status for statuses in beside.values() for status in statuses]
    named = [("", status, neighbours, "no neighbour") for status in measured]
    for workload, statuses in beside.items():
        named += [(f" of the neighbour {workload}", status, measured, "no measured replica") for status in statuses]
    for whose, status, others, nobody in named:
        who = f"replica {status['replica']}{whose} (pod {status['pod']})"
        on_gpu = not by_node and _may_use_gpu(status) and any(map(_may_use_gpu, others))
        key, what = ("gpu_uuid", "GPU") if on_gpu else ("node", "node")
        if not status.get(key):
            return f"{who} does not say on which GPU it is, so it is unknown whether it shares one."
        if status[key] not in {other.get(key) for other in others}:
            return f"{who} is on {what} {status[key]}, where {nobody} is."
    return ""


def _may_use_gpu(status: Status) -> bool:
    """A workload on the CPU says so."""
    return status.get("device") != Device.CPU


def save_log(
    api: KubernetesApi,
    pod: str,
    target: Path,
    *,
    container: str = CONTAINER,
    restarted: bool,
    patience_s: float = PATIENCE_S,
) -> None:
    """Write the log of a container, that before its last restart first. Raises ClusterError, StorageError."""
    query = {"container": container, "limitBytes": str(MAX_LOG_BYTES)}
    path = f"{pods_path(api.namespace)}/{pod}/log"
    before = api.text(path, {**query, "previous": "true"}, patience_s=patience_s) if restarted else ""
    now = api.text(path, query, patience_s=patience_s)
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(before + now, encoding="utf-8")


def keep_log(api: KubernetesApi, pod: str, folder: Path, replica: int, container: str, *, restarted: bool) -> None:
    """Save what can be had at once of a pod that answers nothing else. Raises StorageError."""
    # Where it never ran there is no log, and it may be gone with its pod: why is said already.
    with contextlib.suppress(BackendError):
        target = log_file(folder, replica, container)
        save_log(api, pod, target, container=container, restarted=restarted, patience_s=QUICK_S)


def last_lines(api: KubernetesApi, pod: str, *, container: str = CONTAINER, previous: bool) -> tuple[str, ...]:
    """The end of a container's log; empty when it cannot be had any more."""
    query = {"container": container, "tailLines": str(4 * LAST_LINES), **({"previous": "true"} if previous else {})}
    try:
        text = api.text(f"{pods_path(api.namespace)}/{pod}/log", query, patience_s=QUICK_S)
    except BackendError:
        return ()  # it is gone with its pod or its node: what is known is said without it
    return tuple(line.strip() for line in text.splitlines() if line.strip())[-LAST_LINES:]


def death(
    api: KubernetesApi, replica: int, pod: str, end: End, at_s: float, neighbour: str, *, previous: bool
) -> ReplicaDeath:
    """How a replica ended, with the last words of the container that ended; ``previous``: it was started again since."""
    lines = last_lines(api, pod, container=end.container, previous=previous)
    return ReplicaDeath(replica, at_s, end.exit_code, lines, end.reason, neighbour, end.container == SERVER)


def log_file(folder: Path, replica: int, container: str) -> Path:
    """Where the log of a container lies in an attempt's folder."""
    return layout.replica_log(folder, replica) if container == CONTAINER else layout.server_log(folder, replica)


def part_of(target: Path) -> Path:
    """Where the beginning of a file lies: half a log must not look like a whole one."""
    return target.with_name(f".{target.name}")


def results(
    api: KubernetesApi,
    replicas: Sequence[PodReplica],
    folder: Path,
    routes: Sequence[str],
    restarted: Collection[tuple[str, str]],
) -> list[str]:
    """Fetch status, log and files of every replica; a sentence for each that could not be had.

    ``restarted``: pods with the containers of theirs that were started again, whose earlier log is kept, too.
    """
    with ThreadPoolExecutor(max_workers=PARALLEL, thread_name_prefix="collect") as pool:
        fetched = pool.map(lambda replica: _results(api, replica, folder, routes, restarted), replicas)
        return [sentence for sentences in fetched for sentence in sentences]


def _results(
    api: KubernetesApi,
    replica: PodReplica,
    folder: Path,
    routes: Sequence[str],
    restarted: Collection[tuple[str, str]],
) -> list[str]:
    def log(container: str) -> None:
        file, again = log_file(folder, replica.index, container), (replica.pod, container) in restarted
        save_log(api, replica.pod, file, container=container, restarted=again)

    place = layout.replica_folder(folder, replica.index)
    with storage_errors(place):
        place.mkdir(parents=True, exist_ok=True)
        if (replica.pod, CONTAINER) in restarted:
            part_of(place / layout.RAW_LATENCIES).unlink(missing_ok=True)  # it may have begun its log anew
    parts: dict[str, Callable[[], None]] = {
        **{
            _NAMES.get(route, route): partial(_download, api, replica, route, place / _FILES[route]) for route in routes
        },
        "status": lambda: _save_status(api, replica, place / STATUS_FILE),
        "log": lambda: log(CONTAINER),
        **({"server's log": lambda: log(SERVER)} if replica.asks_a_server else {}),
    }
    sentences = []
    for what, fetch in parts.items():
        try:
            fetch()
        except BackendError as error:
            sentences.append(f"the {what} of {replica.title} ({replica.pod}) could not be fetched: {error}")
    return sentences


def _download(api: KubernetesApi, replica: PodReplica, route: str, target: Path) -> None:
    """What is not here yet, through a file of another name."""
    part = part_of(target)
    with storage_errors(target):
        try:
            api.download(proxy_path(replica, route), part, patience_s=PATIENCE_S, resume=True)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)


def _save_status(api: KubernetesApi, replica: PodReplica, target: Path) -> None:
    facts = status(api, replica)
    with storage_errors(target):
        target.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


class PodLogTail:
    """Judges a recording by what its pods log while they serve: asks the judge about the rows whose requests are here.

    A round fetches what each replica has logged since the last one, and is begun when the judge would look: rounds are
    as rare as its looks, and as long as there are replicas. It judges, a round late, what a local campaign would, by the logs
    in ``folder``, where they lie as a local replica's own do. What was fetched of ``dead`` replicas before counts.
    """

    def __init__(
        self,
        api: KubernetesApi,
        replicas: Sequence[PodReplica],
        folder: Path,
        enough: Enough,
        notice: Callable[[str], None],
        dead: Callable[[], Collection[int]],
    ) -> None:
        self._closed = threading.Event()
        self._api, self._replicas, self._enough = api.until(self._closed), replicas, enough
        self._logs = [layout.replica_folder(folder, replica.index) / layout.RAW_LATENCIES for replica in replicas]
        self._notice, self._dead, self._noticed = notice, dead, False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="follow")
        self._round: tuple[int, Future[bool]] | None = None

    def due(self, rows: int) -> bool:
        """Whether the judge would look after this many rows."""
        return self._enough.due(rows)

    def __call__(self, rows: int) -> bool:
        """Whether the rows so far are enough, as far as it is known here. Raises StorageError."""
        if self._round is None and self.due(rows):
            self._round = rows, self._pool.submit(self._fetch)
        if self._round is None or not self._round[1].done():
            return False
        (rows_then, fetched), self._round = self._round, None
        return fetched.result() and self._enough(rows_then)

    def close(self) -> None:
        """Follow no more, and leave what is here as parts of logs, of which the rest is still to come. Raises StorageError."""
        self._closed.set()
        self._pool.shutdown(cancel_futures=True)
        for log in self._logs:
            with storage_errors(log), contextlib.suppress(FileNotFoundError):
                log.replace(part_of(log))

    def discard(self) -> None:
        """Leave no part of a log that was not completed. Raises StorageError."""
        for log in self._logs:
            with storage_errors(log):
                part_of(log).unlink(missing_ok=True)

    def _fetch(self) -> bool:
        """Fetch what is new of every log."""
        for replica, log in zip(self._replicas, self._logs, strict=True):
            try:
                with storage_errors(log):
                    log.parent.mkdir(parents=True, exist_ok=True)
                    self._api.download(proxy_path(replica, "latencies"), log, patience_s=QUICK_S, resume=True)
            except BackendError as error:
                if replica.index not in self._dead():
                    if not self._noticed and not self._closed.is_set():
                        self._notice(f"Whether enough is known cannot be judged now: {error}")
                        self._noticed = True
                    return False
            if self._closed.wait(PACE_S):
                return False
        return True
