"""What `kubeadm join` does to a machine: checks, discovery, the cluster's configuration, the kubelet's credentials."""

import base64
import re
import time
from typing import Any

import control_plane
import yaml
from control_plane import ETC
from recorded import fail, option, version_of
from remote import Refused, Server, authority_hash, kubeconfig

BOOTSTRAP = ETC / "bootstrap-kubelet.conf"
JOINED = ETC / "kubelet.conf"
AUTHORITY = ETC / "pki/ca.crt"
TOKEN = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}")
DISCOVERY_WITHIN_S = 20.0
NOT_FOUND = 404


def join(wanted: dict[str, Any], arguments: list[str]) -> None:
    """Make this machine a node of the cluster that the configuration names, or fail naming what failed."""
    asked = wanted.get("JoinConfiguration") or fail("error: no JoinConfiguration in the file")
    registration = asked.get("nodeRegistration", {})
    ignored = {
        *option(arguments, "--ignore-preflight-errors").split(","),
        *registration.get("ignorePreflightErrors", ()),
    }
    control_plane.refuse([*control_plane.machine_errors(control_plane=False), *leftover_errors()], ignored)
    server = discover(asked.get("discovery", {}).get("bootstrapToken", {}))
    settings = cluster_settings(server)
    refuse_taken(server, registration["name"])
    AUTHORITY.parent.mkdir(parents=True, exist_ok=True)
    AUTHORITY.write_text(server.authority)
    (ETC / "manifests").mkdir(exist_ok=True)
    control_plane.private(BOOTSTRAP, kubeconfig(server, {"token": server.token}))
    control_plane.start_kubelet(settings, f"--hostname-override={registration['name']}")
    timeouts = asked.get("timeouts", {})
    control_plane.wait_for_kubelet(timeouts.get("kubeletHealthCheck", ""))
    wait_for_credentials(control_plane.seconds(timeouts.get("tlsBootstrap", "5m")))
    BOOTSTRAP.unlink()


def leftover_errors() -> list[str]:
    """What an earlier cluster left."""
    present = [path for path in (JOINED, BOOTSTRAP, AUTHORITY) if path.exists()]
    found = [f"FileAvailable-{str(path).replace('/', '-')}]: {path} already exists" for path in present]
    return [*found, *control_plane.used_ports(control_plane.KUBELET_PORT)]


def discover(asked: dict[str, Any]) -> Server:
    """The cluster's address and authority from whoever answers, believed because the authority's key is the pinned one."""
    token, pins = str(asked.get("token", "")), asked.get("caCertHashes", [])
    if not TOKEN.fullmatch(token):
        fail(f'error: discovery.bootstrapToken.token: Invalid value: "{token}": the bootstrap token is invalid')
    if not pins:
        fail(
            "error: discovery.bootstrapToken.caCertHashes: using token-based discovery without caCertHashes can be unsafe"
        )
    anyone = Server(f"https://{asked['apiServerEndpoint']}")
    deadline_s = time.monotonic() + DISCOVERY_WITHIN_S
    while True:
        try:
            data = anyone.ask("/api/v1/namespaces/kube-public/configmaps/cluster-info")["data"]
            if f"jws-kubeconfig-{token.partition('.')[0]}" in data:
                break
            reason = (
                f'could not find a JWS signature in the cluster-info ConfigMap for token ID "{token.partition(".")[0]}"'
            )
        except (OSError, Refused) as error:
            reason = str(error)
        if time.monotonic() > deadline_s:
            fail(f"error execution phase preflight: couldn't validate the identity of the API Server: {reason}")
        time.sleep(1)
    found = yaml.safe_load(data["kubeconfig"])["clusters"][0]["cluster"]
    authority = base64.b64decode(found["certificate-authority-data"]).decode()
    if authority_hash(authority) not in pins:
        fail(
            "error execution phase preflight: cluster CA found in cluster-info ConfigMap is invalid: none of the pins fits"
        )
    return Server(found["server"], authority, token)


def cluster_settings(server: Server) -> dict[str, Any]:
    """The cluster's configuration of its kubelets; a kubelet that is newer than the cluster is refused."""
    place = "/api/v1/namespaces/kube-system/configmaps"
    try:
        cluster = yaml.safe_load(server.ask(f"{place}/kubeadm-config")["data"]["ClusterConfiguration"])
        kubelet = yaml.safe_load(server.ask(f"{place}/kubelet-config")["data"]["kubelet"])
    except (OSError, Refused) as error:
        fail(f"error execution phase preflight: unable to fetch the kubeadm-config ConfigMap: {error}")
    own, theirs = version_of("kubelet"), str(cluster["kubernetesVersion"]).lstrip("v")
    if control_plane.numbers(own)[:2] > control_plane.numbers(theirs)[:2]:
        fail(f"\t[ERROR KubeletVersion]: the kubelet version {own} is higher than the control plane version {theirs}")
    return dict(kubelet)


def refuse_taken(server: Server, name: str) -> None:
    """End where a node of this name is ready: it is another machine's, or left by a join that was undone without it."""
    try:
        node = server.ask(f"/api/v1/nodes/{name}")
    except Refused as error:
        if error.status == NOT_FOUND:
            return
        fail(f'error execution phase kubelet-start: cannot get Node "{name}": {error}')
    if any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"]["conditions"]):
        fail(
            f'error execution phase kubelet-start: a Node with name "{name}" and status "Ready" already exists in the cluster. '
            "You must delete the existing Node or change the name of this new joining Node"
        )


def wait_for_credentials(within_s: float) -> None:
    """The kubelet exchanges the token for a certificate of its own."""
    deadline_s = time.monotonic() + within_s
    while not JOINED.exists():
        if time.monotonic() > deadline_s:
            fail("error execution phase kubelet-start: timed out waiting for the kubelet's TLS bootstrap")
        time.sleep(0.2)
