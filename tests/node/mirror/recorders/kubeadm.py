"""Recorder of kubeadm: the same refusals, the same files, the same order; no containers behind them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import control_plane
import join as joining
import yaml
from recorded import STATE, fail, option, record, version_of
from remote import authority_hash

SUPPORTED = {"kubeadm.k8s.io/v1beta4", "kubeadm.k8s.io/v1beta3"}
IMAGES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy")


def main() -> None:
    arguments = sys.argv[1:]
    record("kubeadm", arguments)
    words = [word for word in arguments if not word.startswith("-")]
    verbs = {
        "version": version,
        "config": config,
        "init": init,
        "join": join,
        "reset": reset,
        "token": token,
        "upgrade": upgrade,
        "certs": certs,
    }
    verb = words[0] if words else ""
    if verb not in verbs:
        fail(f"this recorder does not know: kubeadm {' '.join(arguments)}")
    verbs[verb](arguments)


def own_version() -> str:
    """Version of this kubeadm, with its v."""
    return f"v{version_of('kubeadm')}"


def version(arguments: list[str]) -> None:
    if option(arguments, "-o", "--output") == "short":
        print(own_version())
    elif option(arguments, "-o", "--output") == "json":
        print(json.dumps({"clientVersion": {"gitVersion": own_version()}}))
    else:
        print(f'kubeadm version: &version.Info{{GitVersion:"{own_version()}"}}')


def documents(arguments: list[str]) -> dict[str, Any]:
    """The configuration file by kind, or defaults; a version this kubeadm does not read is refused."""
    path = option(arguments, "--config")
    if not path:
        return {}
    if not Path(path).exists():
        fail(f'error: unable to read config from "{path}": open {path}: no such file or directory')
    found = {}
    for document in yaml.safe_load_all(Path(path).read_text()):
        api, kind = document.get("apiVersion", ""), document.get("kind", "")
        if api.startswith("kubeadm.k8s.io/") and api not in SUPPORTED:
            fail(f'error: your configuration file uses an unsupported API version: "{api}", kind {kind}')
        found[kind] = document
    return found


def asked_version(wanted: dict[str, Any]) -> str:
    """Version of the control plane that is asked for; newer than this kubeadm is refused."""
    asked = str(wanted.get("ClusterConfiguration", {}).get("kubernetesVersion", own_version()))
    asked = asked if asked.startswith("v") else f"v{asked}"
    if control_plane.numbers(asked) > control_plane.numbers(own_version()):
        fail(
            f"error: the requested Kubernetes version ({asked}) is higher than the one this kubeadm supports "
            f"({own_version()})"
        )
    return asked


def config(arguments: list[str]) -> None:
    wanted = documents(arguments)
    if arguments[1:3] == ["images", "list"]:
        for name in IMAGES:
            print(f"registry.k8s.io/{name}:{asked_version(wanted)}")
    elif arguments[1:2] == ["validate"]:
        print("ok")
    elif arguments[1:3] != ["images", "pull"]:
        fail(f"this recorder does not know: kubeadm {' '.join(arguments)}")


def init(arguments: list[str]) -> None:
    wanted = documents(arguments)
    if arguments[1:4] == ["phase", "control-plane", "all"]:
        control_plane.write_control_plane(wanted)
        return
    if arguments[1:4] == ["phase", "upload-config", "kubeadm"]:
        control_plane.keep_configuration(wanted)
        return
    if arguments[1:4] == ["phase", "certs", "apiserver"]:
        names = control_plane.certificate_names(wanted)
        control_plane.make_serving_certificate(control_plane.registration_address(wanted), names)
        return
    if arguments[1:4] == ["phase", "kubeconfig", "kubelet"]:
        control_plane.make_kubeconfig("kubelet.conf")
        return
    if arguments[1:4] == ["phase", "kubelet-finalize", "enable-client-cert-rotation"]:
        control_plane.name_rotated_certificate()
        return
    if arguments[1:2] == ["phase"]:
        fail(f"this recorder does not know: kubeadm {' '.join(arguments)}")
    control_plane.create(wanted, asked_version(wanted), arguments)
    print("Your Kubernetes control-plane has initialized successfully!")


def join(arguments: list[str]) -> None:
    joining.join(documents(arguments), arguments)
    print("This node has joined the cluster")


def reset(arguments: list[str]) -> None:
    if not {"-f", "--force"} & set(arguments):
        fail("error: aborted reset operation (no answer on standard input)")
    subprocess.run(["systemctl", "stop", "kubelet"], check=False)
    for path in ("/etc/kubernetes/manifests", "/etc/kubernetes/pki", "/var/lib/etcd", "/var/lib/kubelet"):
        for child in Path(path).glob("*") if Path(path).is_dir() else ():
            shutil.rmtree(child) if child.is_dir() else child.unlink()
    for name in (*control_plane.KUBECONFIGS, joining.BOOTSTRAP.name):
        Path("/etc/kubernetes", name).unlink(missing_ok=True)
    shutil.rmtree(STATE / "objects", ignore_errors=True)
    print("The reset process does not clean CNI configuration, network traffic rules and $HOME/.kube.")


def token(arguments: list[str]) -> None:
    if arguments[1:2] == ["create"]:
        made = control_plane.make_token(option(arguments, "--ttl"), option(arguments, "--description"))
        pin = authority_hash((control_plane.ETC / "pki/ca.crt").read_text())
        endpoint = control_plane.server_url().removeprefix("https://")
        print(f"kubeadm join {endpoint} --token {made} --discovery-token-ca-cert-hash {pin}")
    elif arguments[1:2] == ["delete"] and len(arguments) > 2:
        control_plane.remove_token(arguments[2])
        print(f'bootstrap token "{arguments[2]}" deleted')
    else:
        fail(f"this recorder does not know: kubeadm {' '.join(arguments)}")


def upgrade(arguments: list[str]) -> None:
    verb = arguments[1] if len(arguments) > 1 else ""
    if verb in {"apply", "node"}:
        control_plane.refuse(
            control_plane.system_errors(), set(option(arguments, "--ignore-preflight-errors").split(","))
        )
    if verb == "apply":
        words = [word for word in arguments[2:] if word.startswith("v")]
        wanted = documents(arguments)
        # Of the cluster's own configuration a file changes nothing here.
        if option(arguments, "--config") and "UpgradeConfiguration" not in wanted:
            fail("error: no UpgradeConfiguration found in the supplied config")
        target = words[0] if words else asked_version(wanted)
        if target != own_version():
            fail(f"error: this kubeadm ({own_version()}) upgrades to its own version only, not to {target}")
        control_plane.set_version(target)
        print(f'[upgrade] SUCCESS! A control plane node of your cluster was upgraded to "{target}".')
    elif verb == "plan":
        print(f"You can now apply the upgrade by executing: kubeadm upgrade apply {own_version()}")
    elif verb != "node":
        fail(f"this recorder does not know: kubeadm {' '.join(arguments)}")


def certs(arguments: list[str]) -> None:
    if arguments[1:3] == ["renew", "all"]:
        control_plane.renew_certificates()
        print(
            "Done renewing certificates. You must restart the kube-apiserver, kube-controller-manager, kube-scheduler and etcd"
        )
    elif arguments[1:2] == ["check-expiration"] and option(arguments, "-o", "--output") == "json":
        found = [
            {
                "name": name,
                "residualTime": control_plane.seconds_left(content),
                "externallyManaged": False,
                "missing": False,
            }
            for name, content in control_plane.certificates().items()
        ]
        print(json.dumps({"kind": "CertificateExpirationInfo", "certificates": found, "certificateAuthorities": []}))
    else:
        fail(f"this recorder does not know: kubeadm {' '.join(arguments)}")
