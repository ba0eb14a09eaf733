"""What would keep a server of the user's own from being started or asked, or a layer from being there without anyone noticing.

Looked at without starting or asking anything.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from harness.backends.local_replica import CAMPAIGN_VARIABLE, import_paths
from harness.errors import Issue, IssueLevel, LoadError
from harness.extras import absent, advice_on
from harness.spec import ExperimentSpec, LayerSpec, ServerSpec, WorkloadSpec
from harness.spec.replica import VARIABLES, ReplicaSpec
from harness.traffic.datasets import load_facts
from harness.traffic.http_client import tls_error

REACH_TIMEOUT_S = 5.0
MOST_SAID = 500
READER = (sys.executable, "-m", "harness.traffic.questions")
_PORTS = {"http": 80, "https": 443}
_CHECK = "layer"
_OF_A_LOAD = ("concurrency", "rate", "ramp_to", "arrivals", "burstiness")
_OWN = VARIABLES | {"PYTHONPATH", CAMPAIGN_VARIABLE}
"""Variables that the harness gives a replica, or that mean nothing beside those."""
_ELF = b"\x7fELF"
_OF_A_POD = frozenset({"HOME", "USER"})


def check_server(name: str, server: ServerSpec) -> list[Issue]:
    """Program, file of requests, key of the server of a workload called ``name``; address and certificate of one that runs."""
    return _said(name, _faults(server)) + [issue for url in server.url if (issue := _unreachable(name, url))]


def check_files(name: str, server: ServerSpec) -> list[Issue]:
    """Whether the files that a server's requests are made of can be read on this machine; of a workload called ``name``."""
    return _said(name, _faults_of_files(server))


def _said(name: str, faults: Iterable[tuple[str, str]]) -> list[Issue]:
    return [Issue(IssueLevel.ERROR, "server", f"the workload {name} {what}", advice) for what, advice in faults]


def _faults(server: ServerSpec) -> Iterator[tuple[str, str]]:
    program = server.command[0] if server.command else ""
    if program and shutil.which(program) is None:
        yield (
            f"starts {program}, and there is no such program.",
            "Install it, or give its whole path in server.command.",
        )
    yield from _faults_of_files(server)
    if server.api_key_env is not None and not os.environ.get(server.api_key_env):
        yield f"takes its key from {server.api_key_env}, which is not set.", f"Set it: export {server.api_key_env}=..."


def _faults_of_files(server: ServerSpec) -> Iterator[tuple[str, str]]:
    file, tokenizer = server.trace.file if server.trace else server.requests.file, server.requests.tokenizer
    if file is not None and not Path(file).is_file():
        yield f"asks what is in {file}, and there is no such file.", "Give its path from where the harness is started."
    elif tokenizer is not None and absent("tokenizers"):
        yield "needs tokenizers, which is not installed.", f"Install it: {advice_on('tokenizers')}"
    elif why := _why_not_read(server):
        yield f"cannot be asked: {why}", f"Fix {file}, or say in the campaign file how to read it."
    elif tokenizer is not None and (why := _why_not_asked(server)):
        yield f"cannot be asked: {why}", f"Fix {tokenizer}."


def _why_not_read(server: ServerSpec) -> str:
    """What is wrong with the file of requests, all of it read; empty where nothing is."""
    try:
        load_facts(server)
    except LoadError as error:
        return error.message
    return ""


def _why_not_asked(server: ServerSpec) -> str:
    """What the replica's own reader, which stands apart, says of the tokenizer; empty where it takes it."""
    whatever_load = server.model_copy(update=dict.fromkeys(_OF_A_LOAD))
    place = Path(server.requests.tokenizer or "")
    file = place / "tokenizer.json" if place.is_dir() else place
    return _said_by_reader(whatever_load.model_dump_json(), file.stat().st_mtime_ns if file.exists() else 0)


@functools.cache
def _said_by_reader(server: str, _changed_ns: int) -> str:
    """Once for all loads of a sweep: a vocabulary of 150,000 takes seconds."""
    spec = ReplicaSpec(workload=WorkloadSpec(name="requests", server=ServerSpec.model_validate_json(server)))
    environment = {**os.environ, "PYTHONPATH": import_paths(), **spec.environment()}
    done = subprocess.run(READER, env=environment, capture_output=True, text=True, check=False)
    return done.stderr.strip()[-MOST_SAID:] if done.returncode else ""


def _unreachable(name: str, url: str) -> Issue | None:
    """Why the address takes no connection, or shows a certificate that nobody vouches for; None where all is well."""
    parts = urlsplit(url)
    asks = f"the workload {name} asks {url}, "
    try:
        with socket.create_connection((parts.hostname, parts.port or _PORTS[parts.scheme]), REACH_TIMEOUT_S) as reached:
            if parts.scheme == "https":
                ssl.create_default_context().wrap_socket(reached, server_hostname=parts.hostname).close()
    except ssl.SSLCertVerificationError as error:
        message = f"{asks}whose certificate is not valid here: {error.verify_message.rstrip('.')}."
        advice = (
            "It must be of this address, and its authority's in the file that SSL_CERT_FILE names "
            f"({os.environ.get('SSL_CERT_FILE') or 'not set'})."
        )
        return Issue(IssueLevel.ERROR, "server", message, advice)
    except ssl.SSLError as error:
        message = f"{asks}and {tls_error(error, parts.hostname or '', parts.port or _PORTS[parts.scheme])}."
        return Issue(IssueLevel.ERROR, "server", message, "Fix `server.url`.")
    except OSError as error:
        message = f"{asks}which cannot be reached: {error.strerror or error}."
        return Issue(IssueLevel.ERROR, "server", message, "Start it, or fix `server.url`.", away=True)
    return None


def check_layer_of_image(experiment: ExperimentSpec) -> Iterator[Issue]:
    """The same for a replica in a pod: what the image holds is seen when one runs."""
    for where, layer in _layer(experiment):
        yield from _taken(where, layer, _OWN | _OF_A_POD)
        if layer.preload is not None and not layer.preload.startswith("/"):
            message = f"{where} preloads {layer.preload}, and on a cluster that is a library of the replicas' image."
            yield Issue(IssueLevel.ERROR, _CHECK, message, "Give its whole path there, or in `preload_image`.")


def check_layer(experiment: ExperimentSpec) -> Iterator[Issue]:
    """Findings on the layer of one experiment's condition; none where it has none."""
    for where, layer in _layer(experiment):
        yield from _check(where, layer)


def _layer(experiment: ExperimentSpec) -> Iterator[tuple[str, LayerSpec]]:
    condition = experiment.condition
    if condition is not None and condition.layer is not None:
        yield f"the layer of condition {condition.name}", condition.layer


def _check(where: str, layer: LayerSpec) -> Iterator[Issue]:
    if layer.prefix and shutil.which(layer.prefix[0]) is None:
        message = f"{where} starts with {layer.prefix[0]}, and there is no such command."
        yield Issue(IssueLevel.ERROR, _CHECK, message, "Install it, or give its path.")
    yield from _taken(where, layer, _OWN)
    if layer.preload is not None and not _is_library(Path(layer.preload)):
        message = f"{where} preloads {layer.preload}, and that is not a shared library."
        advice = "Give the path of a .so file, from where the harness is started. The loader would start without it."
        yield Issue(IssueLevel.ERROR, _CHECK, message, advice)


def _taken(where: str, layer: LayerSpec, own: frozenset[str]) -> Iterator[Issue]:
    taken = sorted(layer.environment.keys() & own)
    if taken:
        message = f"{where} sets {', '.join(taken)}, which the harness sets itself."
        yield Issue(IssueLevel.ERROR, _CHECK, message, "Say it with the workload's own fields, or leave it out.")


def _is_library(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_ELF)) == _ELF
    except OSError:
        return False
