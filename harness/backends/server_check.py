"""What would keep a server of the user's own from being started or asked; looked at without starting or asking it."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from harness.backends.local_replica import import_paths
from harness.errors import Issue, IssueLevel
from harness.extras import absent, advice_on
from harness.spec import ServerSpec, WorkloadSpec
from harness.spec.replica import ReplicaSpec

REACH_TIMEOUT_S = 5.0
MOST_SAID = 500
READER = (sys.executable, "-m", "harness.replica.engine")
_PORTS = {"http": 80, "https": 443}


def check_server(name: str, server: ServerSpec) -> list[Issue]:
    """Program, file of requests, key; address and certificate of one that runs already.

    Args:
        name: of the workload.
        server: it has.
    """
    return _said(name, _faults(server)) + [found for url in server.url if (found := _unreachable(name, url))]


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
    elif (file or tokenizer) and (why := _why_not_asked(server)):
        yield f"cannot be asked: {why}", f"Mend {' or '.join(filter(None, (file, tokenizer)))}."


def _why_not_asked(server: ServerSpec) -> str:
    """What the replica's own reader, which stands apart, says of the file of requests; empty where it takes it."""
    spec = ReplicaSpec(workload=WorkloadSpec(name="asked", server=server))
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
    except OSError as error:
        message = f"{asks}which cannot be reached: {error.strerror or error}."
        return Issue(IssueLevel.ERROR, "server", message, "Start it, or mend `server.url`.", away=True)
    return None
