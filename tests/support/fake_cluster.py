"""A Kubernetes API server in this process, for tests and trials without a cluster.

It speaks the part of the REST interface that the harness uses: get, list with selectors, watch with resource versions
and expiry, create (dry runs with admission, too), server-side apply, merge patch, deletion with grace and finalizers, and handing requests on to pods and
their logs to a kubelet. Nothing runs by itself: like a bare API server it has no controllers and no nodes, whoever uses it
plays them. The integration tests hold it against the real kube-apiserver.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import orjson

from tests.support.fake_admission import admitted
from tests.support.fake_cluster_store import Refusal, Store, Target, parse_path
from tests.support.http_double import Answering, Double, connection_to, write_kubeconfig

TOKEN = "fake-cluster"
CHUNK_BYTES = 1 << 16
RELAY_S = 30.0


@dataclass(frozen=True, slots=True)
class Review:
    """One request as the access rules see it."""

    verb: str
    resource: str


@dataclass(slots=True)
class FakeCluster:
    """The server; ``with FakeCluster() as cluster`` runs it on a free port of loopback, at ``url``.

    Attributes:
        token: that is accepted; change it and every client's has expired.
        denied: what nobody may do.
        store: the objects.
        claims: whether it has resource.k8s.io/v1, as from Kubernetes 1.34 on.
        minor: its version, after the 1.
        ahead_s: its clock is before this machine's.
        before: called with verb and target before a request is served; it may change objects, refuse, or break the
            connection (ConnectionError).
    """

    token: str = TOKEN
    denied: set[Review] = field(default_factory=set)
    store: Store = field(default_factory=Store)
    claims: bool = True
    minor: str = "36"
    ahead_s: float = 0.0
    before: Callable[[str, Target], None] = lambda _verb, _target: None
    url: str = ""
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Self:
        server = _Server(_Handler)
        server.cluster = self
        self._stack.enter_context(server)
        self._stack.callback(self.store.close)
        self.url = server.url
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write_kubeconfig(self, path: Path) -> Path:
        """Write the credentials for it; returns the path."""
        return write_kubeconfig(path, self.url, self.token)


class _Server(Double):
    cluster: FakeCluster


class _Handler(Answering):
    server: _Server

    def date_time_string(self, timestamp: float | None = None) -> str:
        """By the clock of the cluster."""
        return super().date_time_string((timestamp or time.time()) + self.server.cluster.ahead_s)

    def reply(self) -> None:
        split = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(split.query))
        body = json.loads(self.body() or b"{}")
        try:
            self._authorise()
            if split.path == "/version":
                minor = self.server.cluster.minor
                self._send(200, {"major": "1", "minor": minor, "gitVersion": f"v1.{minor}"})
                return
            if split.path == "/apis/resource.k8s.io/v1" and self.server.cluster.claims:
                self._send(200, {"kind": "APIResourceList", "groupVersion": "resource.k8s.io/v1", "resources": []})
                return
            target = parse_path(urllib.parse.unquote(split.path))
            if target.resource == "selfsubjectaccessreviews":
                self._send(201, self._review(body))
                return
            self._permit(target, query)
            self._serve(target, query, body)
        except Refusal as refusal:
            self._send(refusal.code, refusal.status())

    def _authorise(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {self.server.cluster.token}":
            raise Refusal(401, "Unauthorized", "Unauthorized")

    def _review(self, body: dict[str, Any]) -> dict[str, Any]:
        wanted = body["spec"]["resourceAttributes"]
        resource = "/".join(part for part in (wanted.get("resource"), wanted.get("subresource")) if part)
        allowed = Review(str(wanted["verb"]), resource) not in self.server.cluster.denied
        return {**body, "status": {"allowed": allowed}}

    def _permit(self, target: Target, query: dict[str, str]) -> None:
        verb = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}[self.command]
        if verb == "get" and not target.name:
            verb = "watch" if query.get("watch") == "true" else "list"
        self.server.cluster.before(verb, target)
        resource = "/".join(part for part in (target.resource, target.subresource.partition("/")[0]) if part)
        if Review(verb, resource) in self.server.cluster.denied:
            where = f' in the namespace "{target.namespace}"' if target.namespace else " at the cluster scope"
            group = target.group.split("/")[1] if target.group.startswith("apis/") else ""
            raise Refusal(
                403,
                "Forbidden",
                f'{target.resource} is forbidden: User "tester" cannot {verb} resource "{resource}" in API group "{group}"{where}',
            )

    def _serve(self, target: Target, query: dict[str, str], body: dict[str, Any]) -> None:
        store = self.server.cluster.store
        if self.command == "POST":
            dry_run = query.get("dryRun") == "All"
            made = admitted(store, target, body, dry_run=dry_run)
            self._send(201, made if dry_run else store.create(target, body))
        elif self.command == "PATCH":
            applying = "apply-patch" in str(self.headers.get("Content-Type"))
            if applying and target.namespace and not store.has(target):
                admitted(store, target, body, dry_run=False)
            self._send(200, store.apply(target, body) if applying else store.merge(target, body))
        elif self.command == "DELETE":
            self._send(200, store.delete(target, body))
        elif not target.name and query.get("watch") == "true":
            self._watch(target, query)
        elif not target.name:
            self._send(200, store.listing(target, query))
        elif target.subresource.startswith("proxy"):
            self._hand_on(target)
        elif target.subresource == "log":
            self._log(target, query)
        else:
            self._send(200, store.get(target))

    def _send(self, code: int, answer: dict[str, Any]) -> None:
        self.answer(code, orjson.dumps(answer))

    def _watch(self, target: Target, query: dict[str, str]) -> None:
        events = self.server.cluster.store.watch(target, query)
        first = next(events)  # raises Refusal before anything was sent
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in itertools.chain([first], events):
            if event is None:
                continue  # nothing happened for a moment
            line = orjson.dumps(event) + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")

    def _hand_on(self, target: Target) -> None:
        """Ask the pod, as the API server's proxy does."""
        name, _, port = target.name.partition(":")
        pod = self.server.cluster.store.get(target.named(name))
        address = (pod.get("status") or {}).get("podIP")
        if not address:
            raise Refusal(503, "ServiceUnavailable", f"no endpoints available for pod {name!r}")
        wanted = {"Range": self.headers["Range"]} if self.headers.get("Range") else {}
        self._relay(f"http://{address}:{port}/{target.subresource.partition('/')[2]}", wanted)

    def _log(self, target: Target, query: dict[str, str]) -> None:
        """Ask the kubelet of the pod's node, as the API server does."""
        store = self.server.cluster.store
        pod = store.get(Target(target.group, target.namespace, target.resource, target.name))
        node = store.get(Target("api/v1", "", "nodes", str(pod["spec"].get("nodeName"))))
        address = node["status"]["addresses"][0]["address"]
        port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        words = urllib.parse.urlencode({name: value for name, value in query.items() if name != "container"})
        place = f"containerLogs/{target.namespace}/{target.name}/{query.get('container', '')}"
        self._relay(f"https://{address}:{port}/{place}?{words}", {})

    def _relay(self, url: str, headers: dict[str, str]) -> None:
        split = urllib.parse.urlsplit(url)
        # An API server knows its kubelets' certificates; this one believes them.
        with contextlib.closing(connection_to(url, RELAY_S)) as connection:
            try:
                connection.request("GET", f"{split.path}?{split.query}", headers=headers)
                answer = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                raise Refusal(503, "ServiceUnavailable", f"error trying to reach service: {error}") from error
            self._pass_on(answer)

    def _pass_on(self, answer: http.client.HTTPResponse) -> None:
        self.send_response(answer.status)
        for name in ("Content-Type", "Content-Range", "Content-Length"):
            if answer.headers.get(name):
                self.send_header(name, answer.headers[name])
        if not answer.headers.get("Content-Length"):
            self.close_connection = True
            self.send_header("Connection", "close")
        self.end_headers()
        while chunk := answer.read(CHUNK_BYTES):
            self.wfile.write(chunk)
