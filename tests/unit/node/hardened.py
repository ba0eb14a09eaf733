"""What `ps` and `find` say of a node on paper that keeps the CIS benchmark."""

from __future__ import annotations

from harness.node.checks.cis import FOLDERS

PKI = "/etc/kubernetes/pki"
PS = "ps -e -ww -o args="
FIND = f"find {' '.join(FOLDERS)} -maxdepth 3 -printf %m %u:%g %p\\n"
FLAGS = {
    "kube-apiserver": f"""
        audit-log-maxage=30 audit-log-maxbackup=10 audit-log-maxsize=100 audit-log-path=/var/log/kubernetes/audit.log
        audit-policy-file=/etc/kubernetes/api-server/audit-policy.yaml authorization-mode=Node,RBAC
        authentication-config=/etc/kubernetes/api-server/authentication.yaml client-ca-file={PKI}/ca.crt
        enable-admission-plugins=NodeRestriction encryption-provider-config=/etc/kubernetes/api-server/encryption.yaml
        etcd-cafile={PKI}/etcd/ca.crt etcd-certfile={PKI}/client.crt etcd-keyfile={PKI}/client.key
        kubelet-certificate-authority={PKI}/ca.crt kubelet-client-certificate={PKI}/kubelet.crt
        kubelet-client-key={PKI}/kubelet.key profiling=false service-account-extend-token-expiration=false
        service-account-key-file={PKI}/sa.pub tls-cert-file={PKI}/apiserver.crt
        tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 tls-private-key-file={PKI}/apiserver.key""",
    "kube-controller-manager": f"""
        bind-address=127.0.0.1 profiling=false root-ca-file={PKI}/ca.crt service-account-private-key-file={PKI}/sa.key
        terminated-pod-gc-threshold=100 use-service-account-credentials=true""",
    "kube-scheduler": "bind-address=127.0.0.1 kubeconfig=/etc/kubernetes/scheduler.conf profiling=false",
    "etcd": f"""
        cert-file={PKI}/etcd/server.crt client-cert-auth=true key-file={PKI}/etcd/server.key
        peer-cert-file={PKI}/etcd/peer.crt peer-client-cert-auth=true peer-key-file={PKI}/etcd/peer.key
        trusted-ca-file={PKI}/etcd/ca.crt""",
    "kubelet": "kubeconfig=/etc/kubernetes/kubelet.conf",
}
PRIVATE = (
    *(f"/etc/kubernetes/manifests/{name}.yaml" for name in FLAGS if name != "kubelet"),
    *(
        f"/etc/kubernetes/{name}.conf"
        for name in ("admin", "super-admin", "scheduler", "controller-manager", "kubelet")
    ),
    *("/var/lib/kubelet/config.yaml", "/usr/lib/systemd/system/kubelet.service", "/etc/cni/net.d/10-calico.conflist"),
    f"{PKI}/ca.key",
)
ENCRYPTION = "resources: [{resources: [secrets], providers: [{secretbox: {}}, {identity: {}}]}]\n"
KUBELET = """
authentication: {anonymous: {enabled: false}, x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}
authorization: {mode: Webhook}
podPidsLimit: 8192
rotateCertificates: true
seccompDefault: true
tlsCipherSuites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]
"""


def processes(**changed: str) -> str:
    """Every process's command line; changed: by program, with underscores, its flags instead; a pod has an etcd too."""
    lines = ["/usr/lib/systemd/systemd --switched-root", "etcd --data-dir=/data"]
    for name, flags in FLAGS.items():
        words = changed.get(name.replace("-", "_"), flags).split()
        lines.append(" ".join([f"/usr/bin/{name}", *(f"--{word}" for word in words)]))
    return "\n".join(lines) + "\n"


def files(**modes: str) -> str:
    """Modes and owners; modes: `mode user:group` by the last part of a path, dots and dashes as underscores."""
    found = dict.fromkeys(PRIVATE, "600 root:root") | {
        f"{PKI}/ca.crt": "644 root:root",
        "/var/lib/etcd": "700 root:root",
    }
    for path in found:
        name = path.rpartition("/")[2].replace("-", "_").replace(".", "_")
        found[path] = modes.get(name, found[path])
    return "".join(f"{said} {path}\n" for path, said in found.items())
