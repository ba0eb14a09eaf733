"""The CIS benchmark for Kubernetes, cis-1.12, judged on the files and the running processes of one node.

Sections are numbered as kube-bench numbers them. Scored ones pass or fail; one that the benchmark leaves to a person passes
or warns. What a machine cannot judge, sections 3.1 and 5, is not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property, partial
from typing import Any

import yaml

from harness.node.checks.kubernetes import kubelet_settings
from harness.node.checks.registry import CONTROL_PLANE, CannotLookError, Node, Observation, check, listed

PROFILE = "cis-1.12"
_MANIFESTS = "/etc/kubernetes/manifests"
_PKI = "/etc/kubernetes/pki"
_KUBELET_UNIT = "/usr/lib/systemd/system/kubelet.service"
FOLDERS = ("/etc/kubernetes", "/var/lib/etcd", "/var/lib/kubelet/config.yaml", _KUBELET_UNIT, "/etc/cni/net.d")
_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd", "kubelet")
STRONG_CIPHERS = {
    f"TLS_ECDHE_{kind}_WITH_{cipher}"
    for kind in ("ECDSA", "RSA")
    for cipher in ("AES_128_GCM_SHA256", "AES_256_GCM_SHA384", "CHACHA20_POLY1305_SHA256")
}
AUDIT_DAYS, AUDIT_FILES, AUDIT_MEGABYTES = 30, 10, 100

REASONS = {
    "1.1.9": "Written by the pod network and CRI-O about themselves, without credentials; those are in a file of their own, 600.",
    "1.1.12": "kubeadm runs etcd as root in a static pod; its folder is root's and nobody else may enter it.",
    "1.2.1": "Restricted by --authentication-config to health and to what a joining machine reads; false ends probes and joins.",
    "1.2.3": "Services with external addresses stay allowed: the harness makes none, and its account may make no Service.",
    "1.2.9": "One owner's cluster, whose campaigns ask the API server for little; a limit would delay them.",
    "1.2.11": "Images of one owner on one machine; a replica that starts would wait for a registry.",
    "4.2.7": "The node has the name that the inventory gives it, whatever the machine is called.",
    "4.2.9": "The kubelet's serving certificate is asked of the cluster's own authority, not given as a file.",
}
"""Why a section may fail or warn."""


class Result(StrEnum):
    """What came of a section."""

    PASS = "PASS"  # noqa: S105 - a result
    FAIL = "FAIL"
    WARN = "WARN"


@dataclass(frozen=True, slots=True)
class Section:
    """One judged section; ``reason`` says why it may fail or warn, empty where there is none."""

    number: str
    title: str
    result: Result
    found: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """Every section of one node."""

    host: str
    sections: list[Section]

    @property
    def failed(self) -> list[Section]:
        """Those that fail."""
        return [section for section in self.sections if section.result is Result.FAIL]

    @property
    def ok(self) -> bool:
        """Whether none fails or warns but those with a reason."""
        return bool(self.sections) and not self.unexplained

    @property
    def unexplained(self) -> list[Section]:
        """Those that fail or warn without a reason."""
        return [section for section in self.sections if section.result is not Result.PASS and not section.reason]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"host": self.host, "ok": self.ok, "sections": [asdict(section) for section in self.sections]}


class _Look:
    """What is read of a node, each once."""

    def __init__(self, node: Node) -> None:
        self.node = node

    @cached_property
    def files(self) -> dict[str, tuple[int, str]]:
        """Path -> mode and ``user:group`` of everything that a section may ask about; what is missing is not there."""
        said = self.node.machine.command("find", *FOLDERS, "-maxdepth", "3", "-printf", r"%m %u:%g %p\n").stdout
        lines = [line.split(" ", 2) for line in said.splitlines()]
        return {path: (int(mode, 8), owner) for mode, owner, path in lines}

    @cached_property
    def flags(self) -> dict[str, dict[str, str]]:
        """Program -> its flags, as the running process has them."""
        found: dict[str, dict[str, str]] = {}
        for line in self.node.machine.command("ps", "-e", "-ww", "-o", "args=").stdout.splitlines():
            words = line.split()
            # A pod may run programs of these names too; the node's own read their files here.
            if any("/etc/kubernetes/" in word for word in words):
                first = next((place for place, word in enumerate(words) if word.startswith("--")), len(words))
                names = [name for word in words[:first] if (name := word.rpartition("/")[2]) in _PROGRAMS]
                pairs = (word[2:].partition("=") for word in words[first:])
                found |= {name: {flag: value for flag, _, value in pairs} for name in names[:1]}
        return found

    def of(self, program: str) -> dict[str, str]:
        """The flags of one program; raises CannotLookError where it does not run."""
        if program not in self.flags:
            raise CannotLookError(f"no {program} runs")
        return self.flags[program]

    @cached_property
    def kubelet(self) -> dict[str, Any]:
        """The kubelet's configuration."""
        return kubelet_settings(self.node)

    @cached_property
    def proxy(self) -> dict[str, Any]:
        """The configuration of kube-proxy; empty where there is none."""
        maps = self.node.objects("configmaps", "--namespace=kube-system", "--field-selector=metadata.name=kube-proxy")
        text = next((one["data"].get("config.conf", "") for one in maps if one["metadata"]["name"] == "kube-proxy"), "")
        return yaml.safe_load(text) or {}


Seen = tuple[bool, str]
Judge = Callable[[_Look], Seen]


@dataclass(frozen=True, slots=True)
class _Rule:
    number: str
    title: str
    judge: Judge
    scored: bool = True
    everywhere: bool = False


def _mode(path: str, most: int, look: _Look) -> Seen:
    if path not in look.files:
        return False, f"no {path}"
    mode = look.files[path][0]
    return not mode & ~most, f"{path} {mode:o}"


def _owner(path: str, look: _Look, wanted: str = "root:root") -> Seen:
    owner = look.files.get(path, (0, "absent"))[1]
    return owner == wanted, f"{path} {owner}"


def _below(folder: str, ending: str, most: int, look: _Look) -> Seen:
    bad = [
        f"{path} {mode:o}" for path, (mode, _) in look.files.items() if _is_below(path, folder, ending) and mode & ~most
    ]
    return not bad, ", ".join(bad) or f"all of {folder}/*{ending}"


def _owned_below(folder: str, look: _Look) -> Seen:
    bad = [
        f"{path} {owner}"
        for path, (_, owner) in look.files.items()
        if _is_below(path, folder, "") and owner != "root:root"
    ]
    return not bad, ", ".join(bad) or f"all of {folder}"


def _is_below(path: str, folder: str, ending: str) -> bool:
    return path.startswith(f"{folder}/") and path.endswith(ending)


def _both_modes(look: _Look) -> Seen:
    seen = [_mode(path, 0o600, look) for path in _administrators(look)]
    return bool(seen) and all(ok for ok, _ in seen), ", ".join(said for _, said in seen)


def _both_owners(look: _Look) -> Seen:
    seen = [_owner(path, look) for path in _administrators(look)]
    return bool(seen) and all(ok for ok, _ in seen), ", ".join(said for _, said in seen)


def _administrators(look: _Look) -> list[str]:
    return [path for path in ("/etc/kubernetes/admin.conf", "/etc/kubernetes/super-admin.conf") if path in look.files]


def _flag(program: str, flag: str, fits: Callable[[str | None], bool], look: _Look) -> Seen:
    value = look.of(program).get(flag)
    return fits(value), f"--{flag}={value}" if value is not None else f"no --{flag}"


def _given(*names: str) -> Callable[[str, _Look], Seen]:
    def judge(program: str, look: _Look) -> Seen:
        missing = [f"--{name}" for name in names if not look.of(program).get(name)]
        return not missing, f"without {', '.join(missing)}" if missing else ", ".join(f"--{name}" for name in names)

    return judge


def _setting(path: str, fits: Callable[[Any], bool], look: _Look) -> Seen:
    value: Any = look.kubelet
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return fits(value), f"{path} {value}" if value is not None else f"no {path}"


def _encrypted(look: _Look) -> Seen:
    path = look.of("kube-apiserver").get("encryption-provider-config", "")
    resources = (yaml.safe_load(look.node.text(path)) or {}).get("resources", []) if path else []
    first = [next(iter(one["providers"][0])) for one in resources if "secrets" in one["resources"]]
    good = bool(first) and set(first) <= {"aescbc", "kms", "secretbox"}
    return good, f"Secrets are written by {', '.join(first) or 'identity'}"


def _ciphers(value: str | None) -> bool:
    return bool(value) and set(str(value).split(",")) <= STRONG_CIPHERS


def _least(number: int) -> Callable[[str | None], bool]:
    return lambda value: value is not None and value.isdigit() and int(value) >= number


def _is(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


def _has(word: str) -> Callable[[str | None], bool]:
    return lambda value: word in (value or "").split(",")


def _without(word: str) -> Callable[[Any], bool]:
    return lambda value: word not in (str(value or "")).split(",")


def _set(value: Any) -> bool:
    return value not in (None, "")


def _files() -> Iterator[_Rule]:
    pods = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd")
    for place, name in enumerate(pods):
        path = f"{_MANIFESTS}/{name}.yaml"
        yield _Rule(f"1.1.{2 * place + 1}", f"manifest of {name} at most 600", partial(_mode, path, 0o600))
        yield _Rule(f"1.1.{2 * place + 2}", f"manifest of {name} is root's", partial(_owner, path))
    yield _Rule("1.1.9", "CNI files at most 600", partial(_below, "/etc/cni/net.d", "", 0o600), scored=False)
    yield _Rule("1.1.10", "CNI files are root's", partial(_owned_below, "/etc/cni/net.d"), scored=False)
    yield _Rule("1.1.11", "etcd's folder at most 700", partial(_mode, "/var/lib/etcd", 0o700))
    yield _Rule("1.1.12", "etcd's folder is etcd's", partial(_owner, "/var/lib/etcd", wanted="etcd:etcd"))
    yield _Rule("1.1.13", "administrators' credentials 600", _both_modes)
    yield _Rule("1.1.14", "administrators' credentials are root's", _both_owners)
    for place, name in enumerate(("scheduler.conf", "controller-manager.conf")):
        path = f"/etc/kubernetes/{name}"
        yield _Rule(f"1.1.{2 * place + 15}", f"{name} at most 600", partial(_mode, path, 0o600))
        yield _Rule(f"1.1.{2 * place + 16}", f"{name} is root's", partial(_owner, path))
    yield _Rule("1.1.19", "the PKI is root's", partial(_owned_below, _PKI))
    yield _Rule("1.1.20", "certificates at most 644", partial(_below, _PKI, ".crt", 0o644), scored=False)
    yield _Rule("1.1.21", "keys at most 600", partial(_below, _PKI, ".key", 0o600), scored=False)


def _api_server() -> Iterator[_Rule]:
    flag, given = partial(partial, _flag, "kube-apiserver"), "kube-apiserver"
    plugins, off = "enable-admission-plugins", "disable-admission-plugins"
    yield _Rule("1.2.1", "no anonymous requests", flag("anonymous-auth", _is("false")), scored=False)
    yield _Rule("1.2.2", "no token file", flag("token-auth-file", _is(None)))
    yield _Rule(
        "1.2.3", "no Services with external addresses", flag(plugins, _has("DenyServiceExternalIPs")), scored=False
    )
    pair = _given("kubelet-client-certificate", "kubelet-client-key")
    yield _Rule("1.2.4", "a client certificate for kubelets", partial(pair, given))
    yield _Rule("1.2.5", "kubelets are verified", flag("kubelet-certificate-authority", _set))
    yield _Rule("1.2.6", "not everything is allowed", flag("authorization-mode", _without("AlwaysAllow")))
    yield _Rule("1.2.7", "authorization by node", flag("authorization-mode", _has("Node")))
    yield _Rule("1.2.8", "authorization by role", flag("authorization-mode", _has("RBAC")))
    yield _Rule("1.2.9", "a limit of events", flag(plugins, _has("EventRateLimit")), scored=False)
    yield _Rule("1.2.10", "not everything is admitted", flag(plugins, _without("AlwaysAdmit")))
    yield _Rule("1.2.11", "images are always pulled", flag(plugins, _has("AlwaysPullImages")), scored=False)
    yield _Rule("1.2.12", "service accounts are admitted", flag(off, _without("ServiceAccount")))
    yield _Rule("1.2.13", "namespaces have a lifecycle", flag(off, _without("NamespaceLifecycle")))
    yield _Rule("1.2.14", "a kubelet changes its own node only", flag(plugins, _has("NodeRestriction")))
    yield _Rule("1.2.15", "no profiling", flag("profiling", _is("false")))
    yield _Rule("1.2.16", "an audit log", flag("audit-log-path", _set))
    yield _Rule("1.2.17", f"audit log for {AUDIT_DAYS} days", flag("audit-log-maxage", _least(AUDIT_DAYS)))
    yield _Rule("1.2.18", f"audit log of {AUDIT_FILES} files", flag("audit-log-maxbackup", _least(AUDIT_FILES)))
    yield _Rule("1.2.19", f"of {AUDIT_MEGABYTES} MB each", flag("audit-log-maxsize", _least(AUDIT_MEGABYTES)))
    yield _Rule("1.2.21", "tokens are looked up", flag("service-account-lookup", _is(None, "true")))
    yield _Rule("1.2.22", "a key for tokens", flag("service-account-key-file", _set))
    yield _Rule("1.2.23", "a certificate for etcd", partial(_given("etcd-certfile", "etcd-keyfile"), given))
    yield _Rule("1.2.24", "a certificate of its own", partial(_given("tls-cert-file", "tls-private-key-file"), given))
    yield _Rule("1.2.25", "an authority for clients", flag("client-ca-file", _set))
    yield _Rule("1.2.26", "an authority for etcd", flag("etcd-cafile", _set))
    yield _Rule("1.2.27", "encryption at rest", flag("encryption-provider-config", _set), scored=False)
    yield _Rule("1.2.28", "by a strong provider", _encrypted, scored=False)
    yield _Rule("1.2.29", "strong ciphers", flag("tls-cipher-suites", _ciphers), scored=False)
    yield _Rule("1.2.30", "tokens end in time", flag("service-account-extend-token-expiration", _is("false")))


def _others() -> Iterator[_Rule]:
    manager = partial(partial, _flag, "kube-controller-manager")
    scheduler = partial(partial, _flag, "kube-scheduler")
    etcd = partial(partial, _flag, "etcd")
    yield _Rule("1.3.1", "finished pods are collected", manager("terminated-pod-gc-threshold", _set), scored=False)
    yield _Rule("1.3.2", "no profiling", manager("profiling", _is("false")))
    yield _Rule("1.3.3", "an account per controller", manager("use-service-account-credentials", _is("true")))
    yield _Rule("1.3.4", "a key for tokens", manager("service-account-private-key-file", _set))
    yield _Rule("1.3.5", "an authority for pods", manager("root-ca-file", _set))
    gate = "RotateKubeletServerCertificate=false"
    yield _Rule("1.3.6", "serving certificates rotate", manager("feature-gates", _without(gate)))
    yield _Rule("1.3.7", "on this machine only", manager("bind-address", _is(None, "127.0.0.1")))
    yield _Rule("1.4.1", "no profiling", scheduler("profiling", _is("false")))
    yield _Rule("1.4.2", "on this machine only", scheduler("bind-address", _is(None, "127.0.0.1")))
    yield _Rule("2.1", "etcd's certificate", partial(_given("cert-file", "key-file"), "etcd"))
    yield _Rule("2.2", "clients show a certificate", etcd("client-cert-auth", _is("true")))
    yield _Rule("2.3", "none of its own making", etcd("auto-tls", _is(None, "false")))
    yield _Rule("2.4", "etcd's certificate for peers", partial(_given("peer-cert-file", "peer-key-file"), "etcd"))
    yield _Rule("2.5", "peers show a certificate", etcd("peer-client-cert-auth", _is("true")))
    yield _Rule("2.6", "none of its own making", etcd("peer-auto-tls", _is(None, "false")))
    yield _Rule("2.7", "an authority of its own", etcd("trusted-ca-file", _is(f"{_PKI}/etcd/ca.crt")), scored=False)
    yield _Rule("3.2.1", "an audit policy", partial(_flag, "kube-apiserver", "audit-policy-file", _set), scored=False)


def _kubelet() -> Iterator[_Rule]:
    setting, rule = partial(partial, _setting), partial(_Rule, everywhere=True)
    conf, config = "/etc/kubernetes/kubelet.conf", "/var/lib/kubelet/config.yaml"
    yield rule("4.1.1", "the kubelet's unit at most 600", partial(_mode, _KUBELET_UNIT, 0o600))
    yield rule("4.1.2", "the kubelet's unit is root's", partial(_owner, _KUBELET_UNIT))
    yield rule("4.1.5", "kubelet.conf at most 600", partial(_mode, conf, 0o600))
    yield rule("4.1.6", "kubelet.conf is root's", partial(_owner, conf))
    yield rule("4.1.7", "the authority at most 644", partial(_mode, f"{_PKI}/ca.crt", 0o644), scored=False)
    yield rule("4.1.8", "the authority is root's", partial(_owner, f"{_PKI}/ca.crt"), scored=False)
    yield rule("4.1.9", "the kubelet's configuration at most 600", partial(_mode, config, 0o600))
    yield rule("4.1.10", "the kubelet's configuration is root's", partial(_owner, config))
    yield rule("4.2.1", "no anonymous requests", setting("authentication.anonymous.enabled", _is(False)))
    yield rule("4.2.2", "not everything is allowed", setting("authorization.mode", _is("Webhook")))
    yield rule("4.2.3", "an authority for clients", setting("authentication.x509.clientCAFile", _set))
    yield rule("4.2.4", "no port without a name", setting("readOnlyPort", _is(None, 0)), scored=False)
    idle = setting("streamingConnectionIdleTimeout", lambda value: str(value) not in ("0", "0s"))
    yield rule("4.2.5", "idle connections end", idle, scored=False)
    yield rule("4.2.6", "its own chains of iptables", setting("makeIPTablesUtilChains", _is(None, True)))
    hostname = partial(_flag, "kubelet", "hostname-override", _is(None))
    yield rule("4.2.7", "the machine's own name", hostname, scored=False)
    yield rule("4.2.8", "events are kept", setting("eventRecordQPS", lambda value: (value or 0) >= 0), scored=False)
    yield rule("4.2.9", "a serving certificate by file", setting("tlsCertFile", _set), scored=False)
    yield rule("4.2.10", "client certificates rotate", setting("rotateCertificates", _is(None, True)))
    gate = setting("featureGates.RotateKubeletServerCertificate", _is(None, True))
    yield rule("4.2.11", "serving certificates rotate", gate, scored=False)
    strong = setting("tlsCipherSuites", lambda value: _ciphers(",".join(value or ())))
    yield rule("4.2.12", "strong ciphers", strong, scored=False)
    yield rule("4.2.13", "a limit of processes", setting("podPidsLimit", lambda value: (value or 0) > 0), scored=False)
    yield rule("4.2.14", "a filter of system calls", setting("seccompDefault", _is(True)), scored=False)
    yield _Rule("4.3.1", "kube-proxy's metrics on this machine only", _proxy_metrics)


def _proxy_metrics(look: _Look) -> Seen:
    address = str(look.proxy.get("metricsBindAddress") or "127.0.0.1")
    return address.startswith("127.0.0.1"), address


RULES = (*_files(), *_api_server(), *_others(), *_kubelet())


def judge(host: str, node: Node) -> Report:
    """Every section that applies to this node."""
    look = _Look(node)
    rules = [rule for rule in RULES if rule.everywhere or node.expected.kind == CONTROL_PLANE]
    return Report(host, [_section(rule, look) for rule in rules])


@check(
    "cis/sections",
    advice="`harness verify-node --profile cis` lists every section; run the cluster's roles again (playbooks/cluster.yml).",
)
def sections_are_kept(node: Node) -> Observation:
    """Every section of the CIS benchmark is kept that a machine can judge, but for those with a reason."""
    report = judge("", node)
    left = [f"{one.number} {one.title} ({one.found})" for one in report.unexplained]
    found = listed(left) if left else f"{len(report.sections)} judged, {len(report.failed)} failed with a reason"
    return Observation(report.ok, f"{PROFILE} without a failure that has no reason", found)


def _section(rule: _Rule, look: _Look) -> Section:
    try:
        good, found = rule.judge(look)
    except CannotLookError as error:
        good, found = False, str(error)
    result = Result.PASS if good else Result.FAIL if rule.scored else Result.WARN
    return Section(rule.number, rule.title, result, found, "" if good else REASONS.get(rule.number, ""))
