"""Files of this machine that the clients of servers read in their pods: compressed, in ConfigMaps of one attempt."""

from __future__ import annotations

import base64
import functools
import gzip
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.backends.kubernetes.api import OwnedObject
from harness.backends.workload_check import check_files
from harness.errors import CampaignFileError, Issue, IssueLevel
from harness.spec import ExperimentSpec, KubernetesSpec, ServerSpec, WorkloadSpec

FOLDER_VARIABLE, FOLDER = "GIVEN_DIR", "/var/run/given"
"""How the client is told of their folder, and that folder in a pod."""
PART_BYTES = 1_000_000
"""A ConfigMap holds 1 MiB."""
MOST_PARTS = 16
_TOKENIZER = "tokenizer.json"
KEPT = 8
"""Compressed files that are kept: those of two servers, each with 16 MB of them at most."""


def collection(namespace: str) -> str:
    """Path of the ConfigMaps."""
    return f"/api/v1/namespaces/{namespace}/configmaps"


def named(server: ServerSpec) -> dict[str, Path]:
    """The files that a server's requests are made of, by their names in the pod."""
    requests, paths = server.requests, {}
    if requests.file is not None:
        paths[f"requests{Path(requests.file).suffix}"] = Path(requests.file)
    if requests.tokenizer is not None:
        place = Path(requests.tokenizer)
        paths[_TOKENIZER] = place / _TOKENIZER if place.is_dir() else place
    if server.trace is not None:
        paths["trace.jsonl"] = Path(server.trace.file)
    return paths


def any_named(workloads: Sequence[WorkloadSpec]) -> bool:
    """Whether one of these is asked what a file says."""
    return any(workload.server is not None and named(workload.server) for workload in workloads)


def renamed(server: ServerSpec) -> ServerSpec:
    """The server as its client is told of it, with the names that the files have in its pod."""
    names = iter(named(server))
    return server.with_files(lambda _: next(names))


def carried(server: ServerSpec, spec: KubernetesSpec, name: str, labels: Mapping[str, str]) -> tuple[OwnedObject, ...]:
    """The ConfigMaps of an attempt, called as its Deployment or Job and numbered. Raises CampaignFileError."""
    maps = []
    for number, (key, data) in enumerate(_parts(server)):
        metadata = {"name": f"{name}-{number}", "namespace": spec.namespace, "labels": dict(labels)}
        binary = {key: base64.b64encode(data).decode()}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": binary}
        maps.append(OwnedObject(f"{collection(spec.namespace)}/{name}-{number}", body))
    return tuple(maps)


def check_carried(experiments: Sequence[ExperimentSpec]) -> Iterator[Issue]:
    """Whether what is asked can be read here, and carried into a pod."""
    workloads = [experiment.workload for experiment in experiments]
    for name, server in {workload.name: workload.server for workload in workloads if workload.server}.items():
        unreadable = check_files(name, server)
        yield from unreadable
        try:
            if not unreadable:
                list(_parts(server))
        except CampaignFileError as error:
            yield Issue(IssueLevel.ERROR, "server", f"the workload {name}: {error.message}", error.advice)


def _compressed(path: Path) -> bytes:
    """A file's content, compressed once for all attempts and checks of a campaign. Raises CampaignFileError."""
    try:
        facts = path.stat()
        return _compressed_as_seen(path, facts.st_mtime_ns, facts.st_size)
    except OSError as error:
        raise CampaignFileError(f"{path} cannot be read: {error.strerror}.", advice="Fix the path.") from error


@functools.lru_cache(maxsize=KEPT)
def _compressed_as_seen(path: Path, _mtime_ns: int, _size_bytes: int) -> bytes:
    return gzip.compress(path.read_bytes(), mtime=0)


def _parts(server: ServerSpec) -> Iterator[tuple[str, bytes]]:
    """Name and content of every part of the compressed files."""
    size = 0
    for name, path in named(server).items():
        data = _compressed(path)
        parts = range(0, len(data), PART_BYTES)
        size += len(parts)
        if size > MOST_PARTS:
            raise CampaignFileError(
                f"the files that its requests are made of are larger than {MOST_PARTS * PART_BYTES / 1e6:g} MB when compressed, "
                f"and no more is carried into a pod ({path}).",
                advice="Use fewer of its lines: they are sent in turn, repeatedly.",
            )
        for number, start in enumerate(parts):
            yield f"{name}.{number:03d}", data[start : start + PART_BYTES]
