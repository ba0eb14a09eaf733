"""A proxy as others put before their Prometheus or Mimir: TLS, a token, a tenant, and a path of its own."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.support.certificates import self_signed
from tests.support.http_double import Answering, Double, connection_to

BASE = "/team/prometheus"


@dataclass
class GuardedProxy:
    """Forwards ``url`` to ``upstream``; use it as a context.

    Attributes:
        folder: of its certificate, which is its own authority.
        authorization: that it asks for, whole; what it asks for may change.
        tenant: that it asks for.
        scrapes: whether it knows of targets; Mimir does not.
    """

    upstream: str
    folder: Path
    authorization: str = "Bearer s3cr3t"
    tenant: str = "team-a"
    scrapes: bool = True

    def __enter__(self):
        self.ca_file = self_signed(self.folder)
        self._server = Double(_Handler, certificate=self.ca_file)
        self._server.proxy = self
        self.url = f"{self._server.url}{BASE}"
        self._server.__enter__()
        return self

    def __exit__(self, *_):
        self._server.__exit__()


class _Handler(Answering):
    def reply(self):
        proxy = self.server.proxy
        if self.headers.get("Authorization") != proxy.authorization:
            self.answer(401, b"who are you?")
        elif self.headers.get("X-Scope-OrgID") != proxy.tenant:
            self.answer(401, b"no org id")
        elif not self.path.startswith(f"{BASE}/api/") or ("/targets" in self.path and not proxy.scrapes):
            self.answer(404, b"404 page not found")
        else:
            with closing(connection_to(proxy.upstream)) as upstream:
                upstream.request("GET", self.path.removeprefix(BASE))
                answer = upstream.getresponse()
                self.answer(answer.status, answer.read())
