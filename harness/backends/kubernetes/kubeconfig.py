"""From a kubeconfig, or a pod's own account, to a connection that carries its credentials."""

from __future__ import annotations

import base64
import binascii
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import urllib3
import yaml

from harness.errors import ClusterError
from harness.spec import KubernetesSpec
from harness.spec.yaml_tree import SAFE_LOADER

CONNECTIONS = 16
_RENEWED_BY = {"exec", "auth-provider"}


@dataclass(frozen=True, slots=True)
class ClusterConnection:
    """An API server and how to speak to it.

    ``verify``: file of the authority to trust, or whether to check by the system's; ``certificate``: files of the client's and its key;
    ``token_ends_s``: when the token ends that nothing renews by itself, seconds since the epoch; None: there is none such.
    """

    url: str
    pool: urllib3.PoolManager = field(repr=False)
    authorization: Callable[[], dict[str, str]] = field(repr=False)
    verify: str | bool = True
    certificate: tuple[str, str] | None = field(default=None, repr=False)
    token_ends_s: float | None = None


def connect(spec: KubernetesSpec) -> ClusterConnection:
    """Read the credentials; nothing is sent yet, unless a login program does so. Raises ClusterError, and ModuleNotFoundError without the extra."""
    # The official client takes more than a second to import; who stays on this machine does not wait for it.
    from kubernetes import client, config

    configuration = client.Configuration()
    place = _place(spec)
    try:
        if place is None:
            config.load_incluster_config(client_configuration=configuration)
        else:
            # Of several files the client would take the current context of the last, and kubectl takes the first's.
            context = spec.context or _current_context(place)
            with _login_complaints() as keeper:
                config.load_kube_config(place, context=context, client_configuration=configuration)
            complaints = [" ".join(record.getMessage().split()).rstrip(".") for record in keeper.buffer]
            if complaints and not (configuration.api_key or configuration.cert_file):
                raise ClusterError(
                    f"The login program of the kubeconfig {place} gives no credentials: {'; '.join(complaints)}.",
                    advice="Install it or log in again; kubectl get pods uses the same program: try that first.",
                )
    except config.ConfigException as error:
        raise _unusable(spec, place, error) from error
    # Login plugins and half-written files raise whatever their parsers do.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise ClusterError(
            f"The kubeconfig {place} cannot be read: {' '.join(str(error).split())}.",
            advice="Try it: kubectl config view",
        ) from error
    api = client.ApiClient(configuration)
    if not configuration.verify_ssl:
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # the kubeconfig says so on purpose

    def authorization() -> dict[str, str]:
        headers: dict[str, str] = {}
        api.update_params_for_auth(headers, [], ["BearerToken"])
        return headers

    pool: Any = api.rest_client.pool_manager
    pool.connection_pool_kw["maxsize"] = CONNECTIONS
    pair = (configuration.cert_file, configuration.key_file)
    renewed = place is None or _RENEWED_BY & _user(place, spec.context).keys()  # by the kubelet, or a login program
    return ClusterConnection(
        str(configuration.host).rstrip("/"),
        pool,
        authorization,
        verify=configuration.verify_ssl and (configuration.ssl_ca_cert or True),
        certificate=pair if all(pair) else None,
        token_ends_s=None if renewed else _end_of_token(authorization().get("authorization", "")),
    )


@contextmanager
def _login_complaints() -> Iterator[BufferingHandler]:
    """Keeps what the client says of a login program that fails: it logs that, and would go on as nobody."""
    keeper = BufferingHandler(capacity=1000)
    keeper.setLevel(logging.ERROR)
    logging.getLogger().addHandler(keeper)
    try:
        yield keeper
    finally:
        logging.getLogger().removeHandler(keeper)


def _place(spec: KubernetesSpec) -> str | None:
    """Path, or paths, of the kubeconfig; None: there is none, and this is a pod with an account of its own."""
    if spec.kubeconfig is not None:
        return str(Path(spec.kubeconfig).expanduser())
    usual = Path("~/.kube/config").expanduser()
    in_pod = not usual.exists() and "KUBERNETES_SERVICE_HOST" in os.environ
    return os.environ.get("KUBECONFIG") or (None if in_pod else str(usual))


def _unusable(spec: KubernetesSpec, place: str | None, error: Exception) -> ClusterError:
    if place is None:
        return ClusterError(
            f"This pod has no account that could be used: {error}.",
            advice="Mount the token of a service account, or give `kubernetes.kubeconfig`.",
        )
    if not any(Path(part).exists() for part in place.split(os.pathsep)):
        return ClusterError(
            f"There is no kubeconfig at {place}, so no cluster is known.",
            advice="Give its path in KUBECONFIG or in `kubernetes.kubeconfig` of the campaign file.",
        )
    contexts = [str(entry.get("name")) for entry in _entries(place, "contexts")]
    if spec.context is not None and contexts and spec.context not in contexts:
        return ClusterError(
            f"The kubeconfig {place} has no context {spec.context!r}; it has {', '.join(dict.fromkeys(contexts))}.",
            advice="Name one of them in `kubernetes.context`.",
        )
    return ClusterError(
        f"The kubeconfig {place} cannot be used: {error}.", advice="Try it: kubectl config view; kubectl version"
    )


def _current_context(place: str) -> str | None:
    return next((str(file["current-context"]) for file in _files(place) if file.get("current-context")), None)


def _user(place: str, context: str | None) -> dict[str, Any]:
    """How the user of a context logs in; of several entries of a name the first counts, as for kubectl."""

    def named(collection: str, name: object) -> dict[str, Any]:
        entry = next((entry for entry in _entries(place, collection) if entry.get("name") == name), {})
        value = entry.get(collection.removesuffix("s"))
        return value if isinstance(value, dict) else {}

    return named("users", named("contexts", context or _current_context(place)).get("user"))


def _entries(place: str, collection: str) -> list[dict[str, Any]]:
    return [entry for file in _files(place) for entry in file.get(collection) or () if isinstance(entry, dict)]


def _files(place: str) -> Iterator[dict[str, Any]]:
    """The content of each file; what is wrong with one is said by the client that reads it, too."""
    for part in filter(None, place.split(os.pathsep)):
        try:
            content = yaml.load(Path(part).expanduser().read_text(encoding="utf-8"), SAFE_LOADER)  # noqa: S506 - it is safe
        except (OSError, ValueError, yaml.YAMLError):
            continue
        if isinstance(content, dict):
            yield content


def _end_of_token(authorization: str) -> float | None:
    """What a token says of its own end, seconds since the epoch, if it is one of those that do."""
    kind, _, token = authorization.partition(" ")
    parts = token.split(".")
    if kind != "Bearer" or len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError):
        return None
    end = claims.get("exp") if isinstance(claims, dict) else None
    return float(end) if isinstance(end, int | float) else None
