"""What `kubeadm init` does to a machine: checks, certificates, kubeconfigs, kubelet, manifests, first objects."""

import base64
import os
import random
import shutil
import socket
import ssl
import string
import subprocess
import tempfile
import time
from contextlib import suppress
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import cluster
import static_pods
import yaml
from recorded import API_PORT, CLUSTER_VERSION, CRIO_SOCKET, KUBELET_HEALTH_PORT, STATE, answers, fail, option

ETC = Path("/etc/kubernetes")
KUBELET = Path("/var/lib/kubelet")
ROTATED = KUBELET / "pki/kubelet-client-current.pem"
# Durations that kubeadm writes as 0s where nobody set them; the kubelet takes its own defaults for them.
UNSET_DURATIONS = (
    *("cpuManagerReconcilePeriod", "evictionPressureTransitionPeriod", "fileCheckFrequency", "httpCheckFrequency"),
    *("imageMaximumGCAge", "imageMinimumGCAge", "nodeStatusReportFrequency", "nodeStatusUpdateFrequency"),
    *("runtimeRequestTimeout", "shutdownGracePeriod", "shutdownGracePeriodCriticalPods"),
    *("streamingConnectionIdleTimeout", "syncFrequency", "volumeStatsAggPeriod"),
)
KUBECONFIGS = ("admin.conf", "super-admin.conf", "kubelet.conf", "controller-manager.conf", "scheduler.conf")
# Those of them that `kubeadm certs` knows: the kubelet renews its own.
RENEWED = ("admin.conf", "super-admin.conf", "controller-manager.conf", "scheduler.conf")
MANIFESTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd")
REQUIRED_PROGRAMS = ("conntrack", "ip", "iptables", "mount", "nsenter", "crictl")
SWITCHES = {
    "FileContent--proc-sys-net-bridge-bridge-nf-call-iptables": "/proc/sys/net/bridge/bridge-nf-call-iptables",
    "FileContent--proc-sys-net-ipv4-ip_forward": "/proc/sys/net/ipv4/ip_forward",
}
TOKEN_PREFIX = "bootstrap-token-"
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
KUBELET_PORT = 10250
CGROUPS = Path("/sys/fs/cgroup/cgroup.controllers")
# Of those that kubeadm wants, what the kernel lists there.
REQUIRED_CGROUPS = ("cpu", "cpuset", "memory", "pids")
REQUIRED_CPUS = 2
HEALTH_WITHIN_S = 240.0


def create(wanted: dict[str, Any], version: str, arguments: list[str]) -> None:
    """Make this machine a control plane as asked, or fail naming the check that failed."""
    registration = wanted.get("InitConfiguration", {}).get("nodeRegistration", {})
    ignored = {
        *option(arguments, "--ignore-preflight-errors").split(","),
        *registration.get("ignorePreflightErrors", ()),
    }
    refuse([*machine_errors(), *leftover_errors()], ignored)
    networking = wanted.get("ClusterConfiguration", {}).get("networking", {})
    wanted = wanted | {"KubeletConfiguration": kubelet_dns(networking) | wanted.get("KubeletConfiguration", {})}
    (ETC / "manifests").mkdir(parents=True, exist_ok=True)
    make_certificates(registration_address(wanted), certificate_names(wanted))
    for name in KUBECONFIGS:
        make_kubeconfig(name)
    start_kubelet(wanted["KubeletConfiguration"])
    wait_for_kubelet(wanted.get("InitConfiguration", {}).get("timeouts", {}).get("kubeletHealthCheck", ""))
    require_settings(wanted.get("ClusterConfiguration", {}))
    static_pods.write(wanted.get("ClusterConfiguration", {}), registration_address(wanted))
    static_pods.write_etcd(registration_address(wanted))
    wait_for_api()
    Path("/var/lib/etcd").mkdir(mode=0o700, exist_ok=True)
    Path("/var/lib/etcd/member").mkdir(mode=0o700, exist_ok=True)
    name_rotated_certificate()
    set_version(version)
    first_objects(registration, wanted)


def require_settings(cluster: dict[str, Any]) -> None:
    """A file that a flag of the API server names has to be there, in a folder that its pod is given."""
    settings = cluster.get("apiServer") or {}
    volumes = [volume["mountPath"] for volume in settings.get("extraVolumes", ())]
    for one in settings.get("extraArgs", ()):
        path = Path(one["value"])
        if one["name"].endswith(("-config", "-config-file", "-policy-file")) and not (
            path.is_file() and str(path.parent) in volumes
        ):
            fail(
                f"error execution phase wait-control-plane: kube-apiserver: --{one['name']}: open {path}: no such file"
            )


def write_control_plane(wanted: dict[str, Any]) -> None:
    """Write the manifests again, by a configuration."""
    require_settings(wanted["ClusterConfiguration"])
    static_pods.write(wanted["ClusterConfiguration"], registration_address(wanted))


def keep_configuration(wanted: dict[str, Any]) -> None:
    """Put the cluster's configuration where the next upgrade finds it."""
    item = cluster.read(cluster.kind_of("configmap"), "kube-system", "kubeadm-config") or {}
    cluster.write(item | {"data": {"ClusterConfiguration": yaml.safe_dump(wanted["ClusterConfiguration"])}})


def refuse(found: list[str], ignored: set[str]) -> None:
    """End with every failed check that is not ignored, as kubeadm names them."""
    if errors := [error for error in found if "all" not in ignored and error.partition("]")[0] not in ignored]:
        fail("error: [preflight] Some fatal errors occurred:\n" + "\n".join(f"\t[ERROR {error}" for error in errors))


def registration_address(wanted: dict[str, Any]) -> str:
    """Where this API server is reached: as told, else the address that the default route leaves by."""
    told = wanted.get("InitConfiguration", {}).get("localAPIEndpoint", {}).get("advertiseAddress", "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return told or str(probe.getsockname()[0])


def machine_errors(*, control_plane: bool = True) -> list[str]:
    """What the machine lacks."""
    found = [
        f"{name}]: {path} contents are not set to 1"
        for name, path in SWITCHES.items()
        if not Path(path).exists() or Path(path).read_text().strip() != "1"
    ]
    missing = [name for name in REQUIRED_PROGRAMS if not shutil.which(name)]
    found += [f"FileExisting-{name}]: {name} not found in system path" for name in missing]
    if len(Path("/proc/swaps").read_text().splitlines()) > 1:
        found.append("Swap]: running with swap on is not supported. Please disable swap")
    if control_plane and (os.cpu_count() or 1) < REQUIRED_CPUS:
        found.append(f"NumCPU]: the number of available CPUs {os.cpu_count()} is less than {REQUIRED_CPUS}")
    found += system_errors()
    if not answers(str(CRIO_SOCKET)):
        found.append(f"CRI]: container runtime is not running: dial unix {CRIO_SOCKET}: connection refused")
    return found


def system_errors() -> list[str]:
    """What the kernel lacks: kubeadm looks again before it upgrades."""
    missing = sorted(set(REQUIRED_CGROUPS) - set(CGROUPS.read_text().split()))
    return [f"SystemVerification]: missing required cgroups: {' '.join(missing)}"] if missing else []


def leftover_errors() -> list[str]:
    """What an earlier cluster left."""
    present = [name for name in MANIFESTS if (ETC / "manifests" / f"{name}.yaml").exists()]
    found = [f"FileAvailable--etc-kubernetes-manifests-{name}.yaml]: {name}.yaml already exists" for name in present]
    if any(Path("/var/lib/etcd").glob("*")):
        found.append("DirAvailable--var-lib-etcd]: /var/lib/etcd is not empty")
    return [*found, *used_ports(KUBELET_PORT, API_PORT)]


def used_ports(*ports: int) -> list[str]:
    """Ports that somebody listens on."""
    return [f"Port-{port}]: Port {port} is in use" for port in ports if answers(("127.0.0.1", port))]


def certificate_names(wanted: dict[str, Any]) -> list[str]:
    """The names that a configuration gives the API server beside its own."""
    return list((wanted.get("ClusterConfiguration", {}).get("apiServer") or {}).get("certSANs") or [])


def make_certificates(address: str, names: list[str]) -> None:
    """The cluster's authority and the API server's certificate; existing ones are kept."""
    pki = ETC / "pki"
    pki.mkdir(parents=True, exist_ok=True)
    if not (pki / "ca.crt").exists():
        usage = ["-addext", "keyUsage=critical,digitalSignature,keyCertSign,cRLSign", "-days", "3650"]
        files = ["-keyout", str(pki / "ca.key"), "-out", str(pki / "ca.crt")]
        _openssl("req", "-x509", *NEW_KEY, "-subj", "/CN=kubernetes", *usage, *files)
    (pki / "etcd").mkdir(exist_ok=True)
    for name in ("ca.crt", "healthcheck-client.crt", "healthcheck-client.key"):
        if not (pki / "etcd" / name).exists():
            private(pki / "etcd" / name, "nobody asks for it here\n")
    make_serving_certificate(address, names)


def make_serving_certificate(address: str, names: list[str]) -> None:
    """The API server's certificate for its address and names; one that is there is kept, whatever its names."""
    pair = [ETC / "pki/apiserver.crt", ETC / "pki/apiserver.key"]
    if all(path.exists() for path in pair):
        return
    own = ["kubernetes", "localhost", *names]
    wanted = [f"IP:{address}", "IP:127.0.0.1", *(f"{'IP' if is_address(name) else 'DNS'}:{name}" for name in own)]
    with tempfile.TemporaryDirectory() as scratch:
        request = Path(scratch, "csr")
        subject = ("-subj", "/CN=kube-apiserver", "-keyout", str(pair[1]), "-out", str(request))
        _openssl("req", "-new", *NEW_KEY, *subject)
        pair[0].write_bytes(sign(request, f"subjectAltName={','.join(wanted)}\nextendedKeyUsage=serverAuth"))


def is_address(name: str) -> bool:
    """Whether a name is an address."""
    with suppress(ValueError):
        return bool(ip_address(name))
    return False


def serving_names() -> list[str]:
    """What the API server's certificate is valid for, each with its kind."""
    said = _openssl("x509", "-in", str(ETC / "pki/apiserver.crt"), "-noout", "-ext", "subjectAltName").decode()
    return said.replace("IP Address:", "IP:").splitlines()[1].strip().split(", ")


def sign(request: Path, extensions: str) -> bytes:
    """A certificate for a request, signed by the cluster's authority."""
    settings = request.with_suffix(".ext")
    settings.write_text(f"{extensions}\nauthorityKeyIdentifier=keyid\nkeyUsage=critical,digitalSignature\n")
    authority = ["-CA", str(ETC / "pki/ca.crt"), "-CAkey", str(ETC / "pki/ca.key"), "-days", "365"]
    number = ["-set_serial", str(random.getrandbits(63))]
    return _openssl("x509", "-req", "-in", str(request), *authority, *number, "-extfile", str(settings))


def _openssl(*arguments: str, given: bytes = b"") -> bytes:
    return subprocess.run(["openssl", *arguments], check=True, capture_output=True, input=given).stdout


def server_url() -> str:
    """Where the API server says that it is, from its certificate."""
    return f"https://{serving_names()[0].removeprefix('IP:')}:{API_PORT}"


def client_certificate(name: str) -> bytes:
    """The certificate in one of the kubeconfigs."""
    with tempfile.TemporaryDirectory() as scratch:
        request, subject = Path(scratch, "csr"), f"/O=kubeadm:cluster-admins/CN={name.removesuffix('.conf')}"
        _openssl("req", "-new", *NEW_KEY, "-subj", subject, "-keyout", f"{scratch}/key", "-out", str(request))
        return sign(request, "extendedKeyUsage=clientAuth")


def certificates() -> dict[str, bytes]:
    """The certificates that kubeadm renews, by the names that it gives them."""
    found = {"apiserver": (ETC / "pki/apiserver.crt").read_bytes()}
    for name in RENEWED:
        user = yaml.safe_load((ETC / name).read_text())["users"][0]["user"]
        found[name] = base64.b64decode(user["client-certificate-data"])
    return found


def seconds_left(certificate: bytes) -> int:
    """How long a certificate is still valid; negative once it has ended."""
    said = _openssl("x509", "-noout", "-enddate", given=certificate).decode().strip().removeprefix("notAfter=")
    return int(ssl.cert_time_to_seconds(said) - time.time())


def renew_certificates() -> None:
    """Make every certificate again for the same names, valid for another year."""
    address, *names = (name.partition(":")[2] for name in serving_names())
    for path in (ETC / "pki/apiserver.crt", ETC / "pki/apiserver.key"):
        path.unlink()
    make_certificates(address, names)
    for name in RENEWED:
        private(ETC / name, yaml.safe_dump(kubeconfig(name, client_certificate(name))))


def kubeconfig(name: str, certificate: bytes = b"") -> dict[str, Any]:
    """A kubeconfig with this cluster's authority and a user whose key nobody needs here."""
    user = name.removesuffix(".conf")
    authority = base64.b64encode((ETC / "pki/ca.crt").read_bytes()).decode()
    secret, known = (base64.b64encode(part).decode() for part in (f"{user}'s key".encode(), certificate))
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": f"{user}@kubernetes",
        "clusters": [
            {
                "name": "kubernetes",
                "cluster": {"server": server_url(), "certificate-authority-data": authority},
            }
        ],
        "contexts": [{"name": f"{user}@kubernetes", "context": {"cluster": "kubernetes", "user": user}}],
        "users": [{"name": user, "user": {"client-certificate-data": known, "client-key-data": secret}}],
    }


def make_kubeconfig(name: str) -> None:
    """Write one with a certificate of its own; one that is there is kept, whatever its certificate."""
    if not (ETC / name).exists():
        private(ETC / name, yaml.safe_dump(kubeconfig(name, client_certificate(name))))


def name_rotated_certificate() -> None:
    """Have the kubelet's kubeconfig name the place where the kubelet renews its certificate."""
    if not ROTATED.exists():
        fail(f"error execution phase kubelet-finalize: rotated kubelet client certificate {ROTATED} does not exist")
    content = yaml.safe_load((ETC / "kubelet.conf").read_text())
    content["users"][0]["user"] = {"client-certificate": str(ROTATED), "client-key": str(ROTATED)}
    private(ETC / "kubelet.conf", yaml.safe_dump(content))


def kubelet_dns(networking: dict[str, Any]) -> dict[str, Any]:
    """The server that the kubelet gives to pods: the tenth address of the services, as kubeadm says it."""
    services = ip_network(networking.get("serviceSubnet", "10.96.0.0/12"))
    return {"clusterDNS": [str(services[10])], "clusterDomain": networking.get("dnsDomain", "cluster.local")}


def start_kubelet(settings: dict[str, Any], flags: str = "") -> None:
    """Write what the kubelet reads and start it, as kubeadm does."""
    KUBELET.mkdir(parents=True, exist_ok=True)
    defaults = dict.fromkeys(UNSET_DURATIONS, "0s") | {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(ETC / "pki/ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "rotateCertificates": True,
    }
    (KUBELET / "config.yaml").write_text(yaml.safe_dump(defaults | settings))
    (KUBELET / "kubeadm-flags.env").write_text(f'KUBELET_KUBEADM_ARGS="{flags}"\n')
    for command in (["daemon-reload"], ["stop", "kubelet"], ["start", "kubelet"]):
        subprocess.run(["systemctl", *command], check=False)


def wait_for_kubelet(limit: str) -> None:
    """Give the kubelet the time that the configuration allows (a Go duration, or empty)."""
    within_s = seconds(limit) if limit else HEALTH_WITHIN_S
    if not _answers_within(KUBELET_HEALTH_PORT, within_s):
        fail(f"error execution phase wait-control-plane: The kubelet is not healthy after {within_s:.0f}s")


def wait_for_api() -> None:
    """Wait until the port of the API server answers."""
    if not _answers_within(API_PORT, 60):
        fail("error execution phase wait-control-plane: the API server is not healthy after 60s")


def first_objects(registration: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Namespaces, the node, and kubeadm's own add-ons."""
    for folder in (cluster.OBJECTS, cluster.HEARTBEATS):
        shutil.rmtree(folder, ignore_errors=True)
    for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
        cluster.write({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    name = registration.get("name") or socket.gethostname()
    labels = {"kubernetes.io/hostname": name, "node-role.kubernetes.io/control-plane": ""}
    taint = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": registration.get("taints", [taint]), "podCIDR": first_subnet(wanted)},
    }
    cluster.write(node)
    for name, key, kind in (
        ("kubeadm-config", "ClusterConfiguration", "ClusterConfiguration"),
        ("kubelet-config", "kubelet", "KubeletConfiguration"),
        ("kube-proxy", "config.conf", "KubeProxyConfiguration"),
    ):
        place, data = {"name": name, "namespace": "kube-system"}, {key: yaml.safe_dump(wanted.get(kind, {}))}
        cluster.write({"apiVersion": "v1", "kind": "ConfigMap", "metadata": place, "data": data})
    for kind, addon in (("DaemonSet", "kube-proxy"), ("Deployment", "coredns")):
        place = {"name": addon, "namespace": "kube-system"}
        cluster.write({"apiVersion": "apps/v1", "kind": kind, "metadata": place, "spec": {}})


def first_subnet(wanted: dict[str, Any]) -> str:
    """The part of the pod network that the first node hands out."""
    network = wanted.get("ClusterConfiguration", {}).get("networking", {}).get("podSubnet", "10.0.0.0/8")
    return str(next(ip_network(network).subnets(new_prefix=24)))


def make_token(ttl: str, description: str) -> str:
    """A bootstrap token, kept as the Secret that kubeadm keeps it as."""
    letters = random.choices(string.ascii_lowercase + string.digits, k=22)
    token = f"{''.join(letters[:6])}.{''.join(letters[6:])}"
    place = {"name": TOKEN_PREFIX + token[:6], "namespace": "kube-system"}
    data = {"token": token, "expiration": str(time.time() + seconds(ttl or "24h"))}
    said = {"description": base64.b64encode(description.encode()).decode()}
    cluster.write({"apiVersion": "v1", "kind": "Secret", "metadata": place, "stringData": data, "data": said})
    return token


def tokens() -> list[str]:
    """The bootstrap tokens that are valid."""
    found = [
        item["stringData"]
        for item in cluster.listing(cluster.kind_of("secret"), "kube-system")
        if item["metadata"]["name"].startswith(TOKEN_PREFIX)
    ]
    return [data["token"] for data in found if float(data["expiration"]) > time.time()]


def remove_token(identity: str) -> None:
    """Forget a token, known by its first part."""
    if not cluster.delete(cluster.kind_of("secret"), "kube-system", TOKEN_PREFIX + identity.partition(".")[0]):
        fail(f'error: failed to delete bootstrap token "{identity}": not found')


def set_version(version: str) -> None:
    """Remember which version the control plane runs at."""
    STATE.mkdir(parents=True, exist_ok=True)
    CLUSTER_VERSION.write_text(version)


def _answers_within(port: int, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if answers(("127.0.0.1", port)):
            return True
        time.sleep(0.2)
    return False


def seconds(duration: str) -> float:
    """Read a Go duration (`4m0s`)."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0}
    total, number = 0.0, ""
    for character in duration:
        if character in units:
            total, number = total + float(number) * units[character], ""
        else:
            number += character
    return total


def numbers(version: str) -> tuple[int, ...]:
    """A version's parts, to compare by."""
    return tuple(int(part) for part in version.lstrip("v").split("."))


def private(path: Path, text: str) -> None:
    """Write a file that only root reads."""
    path.write_text(text)
    path.chmod(0o600)
