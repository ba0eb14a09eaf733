"""The packages that Debian does not have, made small: upstream's names, versions and paths, recorders inside.

Versions come from the project's own table, so that a new row there is at once a package here.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.node.machine.image import WARM_SERVER_THERE
from tests.node.mirror.debs import File, Package
from tests.support.module_python import warm_client

RECORDERS = Path(__file__).parent / "recorders"
BYTECODE = "/var/cache/recorders"  # on the machine
LIBRARIES = "/usr/lib/python3/dist-packages"
PYTHON = f"/usr/bin/python3 -SXpycache_prefix={BYTECODE}"
# Called some sixty times in a run of the site: a Python that has read them already forks for each call.
OFTEN = ("kubectl", "crictl")
KUBERNETES_REVISION = "-1.1"
NVIDIA_REVISION = "-1"

CRIO_UNIT = """\
[Unit]
Description=Container Runtime Interface for OCI (CRI-O), recorded
Documentation=https://github.com/cri-o/cri-o
Wants=network-online.target
Before=kubelet.service
After=network-online.target

[Service]
Type=notify
EnvironmentFile=-/etc/default/crio
Environment=GOTRACEBACK=crash
ExecStart=/usr/bin/crio $CRIO_CONFIG_OPTIONS $CRIO_RUNTIME_OPTIONS $CRIO_STORAGE_OPTIONS $CRIO_NETWORK_OPTIONS \
          $CRIO_METRICS_OPTIONS
ExecReload=/bin/kill -s HUP $MAINPID
TasksMax=infinity
LimitNOFILE=1048576
LimitNPROC=1048576
LimitCORE=infinity
OOMScoreAdjust=-999
TimeoutStartSec=0
Restart=on-failure
RestartSec=10

[Install]
WantedBy=multi-user.target
Alias=cri-o.service
"""
CRIO_CONFIGURATION = """\
[crio.image]
signature_policy = "/etc/crio/policy.json"

[crio.runtime]
default_runtime = "crun"

[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
runtime_root = "/run/crun"
monitor_path = "/usr/libexec/crio/conmon"
allowed_annotations = ["io.containers.trace-syscall"]

[crio.runtime.runtimes.runc]
runtime_path = "/usr/libexec/crio/runc"
runtime_root = "/run/runc"
monitor_path = "/usr/libexec/crio/conmon"
"""
CRICTL_CONFIGURATION = """\
runtime-endpoint: "unix:///var/run/crio/crio.sock"
timeout: 0
debug: false
"""
BRIDGE = '{"cniVersion": "1.0.0", "name": "crio", "plugins": [{"type": "bridge", "bridge": "cni0"}]}\n'
KUBELET_NEEDS = "iptables (>= 1.4.21), kubernetes-cni (>= 1.2.0), mount, util-linux"
CNI_PLUGINS = (
    *("bandwidth", "bridge", "dhcp", "dummy", "firewall", "host-device", "host-local", "ipvlan", "loopback"),
    *("macvlan", "portmap", "ptp", "sbr", "static", "tap", "tuning", "vlan", "vrf"),
)
KUBELET_UNIT = """\
[Unit]
Description=kubelet: The Kubernetes Node Agent, recorded
Documentation=https://kubernetes.io/docs/
Wants=network-online.target
After=network-online.target

[Service]
ExecStart=/usr/bin/kubelet
Restart=always
StartLimitInterval=0
RestartSec=10

[Install]
WantedBy=multi-user.target
"""
KUBELET_DROP_IN = """\
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""
TOOLKIT_CONFIGURATION = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"

[nvidia-container-cli]
environment = []
ldconfig = "@/sbin/ldconfig"
load-kmods = true

[nvidia-container-runtime]
#debug = "/var/log/nvidia-container-runtime.log"
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]
"""
CDI_REFRESH_UNIT = """\
[Unit]
Description=Refresh NVIDIA CDI specification file, recorded
ConditionPathExists=|/usr/bin/nvidia-smi
ConditionPathExists=|/usr/sbin/nvidia-smi

[Service]
Type=oneshot
Environment=NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/var/run/cdi/nvidia.yaml
EnvironmentFile=-/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env
ExecStart=/usr/bin/nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml
CapabilityBoundingSet=CAP_SYS_MODULE CAP_SYS_ADMIN CAP_MKNOD

[Install]
WantedBy=multi-user.target
"""
CDI_REFRESH_PATH = """\
[Unit]
Description=Trigger CDI refresh on NVIDIA driver install / uninstall events, recorded

[Path]
PathChanged=/lib/modules/modules.dep
PathChanged=/lib/modules/modules.dep.bin

[Install]
WantedBy=multi-user.target
"""


def crio(version: str) -> list[Package]:
    """CRI-O's one package."""
    programs = {"/usr/bin/crio": "crio", "/usr/bin/pinns": "plain"}
    below = ("conmon", "conmonrs", "crio-credential-provider", "crun", "runc")
    programs |= {f"/usr/libexec/crio/{name}": "plain" for name in below}
    files = {
        "/etc/crio/crio.conf.d/10-crio.conf": File(CRIO_CONFIGURATION, conffile=False),
        "/etc/crio/policy.json": File('{"default": [{"type": "insecureAcceptAnything"}]}\n', conffile=False),
        "/etc/cni/net.d/10-crio-bridge.conflist.disabled": File(BRIDGE),
        "/etc/containers/registries.conf.d/crio.conf": File('unqualified-search-registries = ["docker.io"]\n'),
        # Written over by the role of the Kubernetes packages, which comes later.
        "/etc/crictl.yaml": File(CRICTL_CONFIGURATION),
        "/etc/default/crio": File("# CRIO_NETWORK_OPTIONS=\n"),
        "/usr/lib/systemd/system/crio.service": File(CRIO_UNIT),
    }
    return [_recorded("cri-o", version + KUBERNETES_REVISION, programs, files)]


def builder() -> Package:
    """buildah, newer than Debian's own: the real one would fetch an image that no mirror here has."""
    return _recorded("buildah", "99.0-1", {"/usr/bin/buildah": "buildah"})


def kubernetes(versions: dict[str, Any]) -> list[Package]:
    """The five packages of the Kubernetes repository."""
    release = versions["kubernetes"] + KUBERNETES_REVISION
    unit = "/usr/lib/systemd/system/kubelet.service"
    kubelet_files = {
        unit: File(KUBELET_UNIT),
        "/etc/default/kubelet": File("KUBELET_EXTRA_ARGS=\n"),
    }
    drop_in = {f"{unit}.d/10-kubeadm.conf": File(KUBELET_DROP_IN)}
    plugins = {f"/opt/cni/bin/{name}": "plain" for name in CNI_PLUGINS}
    return [
        _recorded("kubeadm", release, {"/usr/bin/kubeadm": "kubeadm"}, drop_in, depends="openssl"),
        _recorded("kubelet", release, {"/usr/bin/kubelet": "kubelet"}, kubelet_files, depends=KUBELET_NEEDS),
        _recorded("kubectl", release, {"/usr/bin/kubectl": "kubectl"}),
        _recorded("cri-tools", versions["cri_tools"] + KUBERNETES_REVISION, {"/usr/bin/crictl": "crictl"}),
        _recorded("kubernetes-cni", versions["kubernetes_cni"] + KUBERNETES_REVISION, plugins),
    ]


def nvidia(version: str) -> list[Package]:
    """The toolkit's four packages."""
    full = version + NVIDIA_REVISION
    base_programs = {
        "/usr/bin/nvidia-container-runtime": "plain",
        "/usr/bin/nvidia-ctk": "nvidia_ctk",
        "/usr/bin/nvidia-cdi-hook": "plain",
    }
    base_files = {
        "/etc/nvidia-container-runtime/config.toml": File(TOOLKIT_CONFIGURATION),
        "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env": File("# NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=\n"),
        "/usr/lib/systemd/system/nvidia-cdi-refresh.service": File(CDI_REFRESH_UNIT),
        "/usr/lib/systemd/system/nvidia-cdi-refresh.path": File(CDI_REFRESH_PATH),
    }
    base = f"nvidia-container-toolkit-base (= {full}), libnvidia-container-tools (= {full})"
    return [
        _recorded("nvidia-container-toolkit", full, {"/usr/bin/nvidia-container-runtime-hook": "plain"}, depends=base),
        _recorded("nvidia-container-toolkit-base", full, base_programs, base_files),
        _recorded(
            "libnvidia-container-tools",
            full,
            {"/usr/bin/nvidia-container-cli": "plain"},
            depends=f"libnvidia-container1 (= {full})",
        ),
        _recorded("libnvidia-container1", full, {}),
    ]


def _recorded(
    name: str,
    version: str,
    programs: dict[str, str],
    files: dict[str, File] | None = None,
    *,
    depends: str = "",
) -> Package:
    """A package whose programs (path -> recorder) are recorders; it brings their code with it."""
    contents = dict(files or {})
    folder = f"/usr/lib/recorders/{name}"
    for path, recorder in programs.items():
        contents[path] = File(_launcher(folder, recorder), 0o755)
        if recorder in OFTEN:
            plain = f"{folder}/plain/{Path(path).name}"
            contents[plain] = contents[path]
            contents[path] = File(_warm_launcher(folder, plain), 0o755)
    contents |= {f"{folder}/{source.name}": File(source.read_text()) for source in _sources()}
    contents[f"{folder}/VERSION"] = File(version.rpartition("-")[0] + "\n")
    needs = ", ".join(filter(None, ["python3, python3-yaml", depends]))
    description = f"recorder in the place of {name}, for a test"
    return Package(name, version, contents, needs, description)


def _sources() -> Iterator[Path]:
    yield from sorted(RECORDERS.glob("*.py"))


def _launcher(folder: str, recorder: str) -> str:
    # Its bytecode is kept, and not where dpkg would have to remove it, and nothing is made ready (-S) but the way to
    # Debian's yaml.
    paths = f'sys.path.insert(0, "{folder}")\nsys.path.append("{LIBRARIES}")\n'
    return f"#!{PYTHON}\nimport sys\n{paths}import {recorder}\n{recorder}.main()\n"


def _warm_launcher(folder: str, plain: str) -> str:
    server = f"{PYTHON} {WARM_SERVER_THERE}"
    return warm_client(plain, server, "/run/warm_recorders", programs=[folder, LIBRARIES])
