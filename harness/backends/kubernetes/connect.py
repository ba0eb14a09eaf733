"""From a kubeconfig (or a pod's own account) to connections that carry its credentials."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import urllib3
import yaml

from harness.backends.kubernetes import kubeconfig, token_end
from harness.errors import ClusterError
from harness.spec import KubernetesSpec

CONNECTIONS = 16


@dataclass(frozen=True, slots=True)
class Connection:
    """An API server and how to speak to it.

    Attributes:
        url: e.g. ``https://127.0.0.1:6443``.
        pool: connections with the right certificates.
        authorization: fresh headers for the next request; never shown.
        verify: file of the authority to trust; True: the system's; False: the kubeconfig says not to check.
        certificate: files of the client's certificate and key, if it has one.
        token_ends_s: when the token ends that nothing renews by itself, seconds since the epoch; None: there is none such.
    """

    url: str
    pool: urllib3.PoolManager = field(repr=False)
    authorization: Callable[[], dict[str, str]] = field(repr=False)
    verify: str | bool = True
    certificate: tuple[str, str] | None = field(default=None, repr=False)
    token_ends_s: float | None = None


def connect(spec: KubernetesSpec) -> Connection:
    """Read the credentials; nothing is sent yet, unless a login plugin of the kubeconfig does so.

    Raises:
        ClusterError: no kubeconfig, no such context, a login program that fails, or credentials that cannot be read.
    """
    # The official client takes most of a second to import; who stays on this machine does not wait for it.
    from kubernetes import client, config

    configuration = client.Configuration()
    place = kubeconfig_place(spec)
    try:
        if place is None:
            config.load_incluster_config(client_configuration=configuration)
        else:
            with _login_complaints() as complaints:
                # Of several files the client would take the current context of the last, and kubectl takes the first's.
                context = spec.context or kubeconfig.current_context(place)
                config.load_kube_config(place, context=context, client_configuration=configuration)
            if complaints and not (configuration.api_key or configuration.cert_file):
                raise ClusterError(
                    f"The login program of the kubeconfig {place} gives no credentials: {'; '.join(complaints)}.",
                    advice="Install it or log in again; kubectl get pods uses the same program, and tells when it works.",
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
    return Connection(
        str(configuration.host).rstrip("/"),
        pool,
        authorization,
        verify=configuration.verify_ssl and (configuration.ssl_ca_cert or True),
        certificate=pair if all(pair) else None,
        token_ends_s=token_end.ends_s(place, spec.context, authorization().get("authorization", "")),
    )


@contextmanager
def _login_complaints() -> Iterator[list[str]]:
    """What the client says of a login program that fails: it logs that, and would go on as nobody."""
    said: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(" ".join(record.getMessage().split()).rstrip("."))

    keeper = Keeper(logging.ERROR)
    logging.getLogger().addHandler(keeper)
    try:
        yield said
    finally:
        logging.getLogger().removeHandler(keeper)


def kubeconfig_place(spec: KubernetesSpec) -> str | None:
    """The kubeconfig in use; None: there is none, and this is a pod with an account of its own."""
    if spec.kubeconfig is not None:
        return str(Path(spec.kubeconfig).expanduser())
    if os.environ.get("KUBECONFIG"):
        return os.environ["KUBECONFIG"]
    usual = Path("~/.kube/config").expanduser()
    if not usual.exists() and "KUBERNETES_SERVICE_HOST" in os.environ:
        return None
    return str(usual)


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
    known = _contexts(place)
    if spec.context is not None and known and spec.context not in known:
        return ClusterError(
            f"The kubeconfig {place} has no context {spec.context!r}; it has {', '.join(known)}.",
            advice="Name one of them in `kubernetes.context`.",
        )
    return ClusterError(
        f"The kubeconfig {place} cannot be used: {error}.", advice="Try it: kubectl config view; kubectl version"
    )


def _contexts(place: str) -> list[str]:
    from kubernetes import config

    try:
        contexts, _ = config.list_kube_config_contexts(place)
    except config.ConfigException:
        return []
    return [str(context["name"]) for context in contexts]
