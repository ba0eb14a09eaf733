"""The part of a kubelet that an API server asks for logs."""

import base64
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.certificates import self_signed
from tests.support.http_double import Answering, Double


def mounted(api: Any, spec: dict[str, Any], folder: Path) -> dict[str, str]:
    """Writes what a pod's ConfigMaps hold into a folder of this machine, and says where it is in place of the pod's own."""
    sources = [one for volume in spec["volumes"] for one in volume.get("projected", {}).get("sources", [])]
    if not sources:
        return {}
    given = folder / "config-maps"
    given.mkdir(parents=True)
    for one in sources:
        found = api.get(f"/api/v1/namespaces/{api.namespace}/configmaps/{one['configMap']['name']}")
        for name, data in found["binaryData"].items():
            (given / name).write_bytes(base64.b64decode(data))
    return {"GIVEN_DIR": str(given)}


class Kubelet(Double):
    """Answers for the logs of pods, over TLS with a certificate of its own.

    Args:
        address: that it listens on, at any free port.
        folder: of its certificate.
        pods: by name, as they are at the time of asking; each with a folder of logs and the number of its restarts.
    """

    def __init__(self, address: str, folder: Path, pods: Mapping[str, Any]) -> None:
        super().__init__(_Handler, address, certificate=self_signed(folder))
        self.pods = pods


class _Handler(Answering):
    def reply(self):
        split = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(split.query))
        pod = self.server.pods.get(split.path.split("/")[3])
        if pod is None:
            self.send_error(404)
            return
        if split.path.split("/")[4] == "server":
            pod = pod.server
        number = pod.restarts - (query.get("previous") == "true")
        log = pod.folder / f"log-{number}"
        lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
        if "tailLines" in query:
            lines = lines[-int(query["tailLines"]) :]
        self.answer(200, "".join(f"{line}\n" for line in lines))
