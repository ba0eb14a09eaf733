"""The fields of configuration kinds that are no API objects, as their own references list them.

Only kinds that the templates use; a nested None is a value of any shape.
"""

from typing import Any

_ARGUMENTS = [{"name": None, "value": None}]
_ENVIRONMENT = [None]
_REGISTRATION = {
    "name": None,
    "criSocket": None,
    "taints": [None],
    "kubeletExtraArgs": _ARGUMENTS,
    "ignorePreflightErrors": [None],
    "imagePullPolicy": None,
    "imagePullSerial": None,
}
_TIMEOUTS = dict.fromkeys(
    (
        "controlPlaneComponentHealthCheck",
        "kubeletHealthCheck",
        "kubernetesAPICall",
        "etcdAPICall",
        "tlsBootstrap",
        "discovery",
        "upgradeManifests",
    )
)
_COMPONENT = {"extraArgs": _ARGUMENTS, "extraVolumes": [None], "extraEnvs": _ENVIRONMENT}

KUBEADM: dict[str, Any] = {
    "InitConfiguration": {
        "bootstrapTokens": [None],
        "dryRun": None,
        "nodeRegistration": _REGISTRATION,
        "localAPIEndpoint": {"advertiseAddress": None, "bindPort": None},
        "certificateKey": None,
        "skipPhases": [None],
        "patches": None,
        "timeouts": _TIMEOUTS,
    },
    "ClusterConfiguration": {
        "etcd": None,
        "networking": {"serviceSubnet": None, "podSubnet": None, "dnsDomain": None},
        "kubernetesVersion": None,
        "controlPlaneEndpoint": None,
        "apiServer": {**_COMPONENT, "certSANs": [None]},
        "controllerManager": _COMPONENT,
        "scheduler": _COMPONENT,
        "dns": None,
        "proxy": None,
        "certificatesDir": None,
        "imageRepository": None,
        "featureGates": None,
        "clusterName": None,
        "encryptionAlgorithm": None,
        "certificateValidityPeriod": None,
        "caCertificateValidityPeriod": None,
    },
    "JoinConfiguration": {
        "dryRun": None,
        "nodeRegistration": _REGISTRATION,
        "caCertPath": None,
        "discovery": {
            "bootstrapToken": {
                "token": None,
                "apiServerEndpoint": None,
                "caCertHashes": [None],
                "unsafeSkipCAVerification": None,
            },
            "file": None,
            "tlsBootstrapToken": None,
        },
        "controlPlane": None,
        "skipPhases": [None],
        "patches": None,
        "timeouts": _TIMEOUTS,
    },
    "KubeletConfiguration": dict.fromkeys(
        (
            *("cgroupDriver", "failSwapOn", "serverTLSBootstrap", "evictionHard", "evictionSoft", "clusterDNS"),
            *("imageGCHighThresholdPercent", "imageGCLowThresholdPercent", "imageMinimumGCAge", "imageMaximumGCAge"),
            *("containerLogMaxSize", "containerLogMaxFiles", "shutdownGracePeriod", "shutdownGracePeriodCriticalPods"),
            *("podPidsLimit", "seccompDefault", "streamingConnectionIdleTimeout", "tlsCipherSuites"),
            *("maxPods", "resolvConf", "clusterDomain", "containerRuntimeEndpoint", "systemReserved", "kubeReserved"),
        )
    ),
    "KubeProxyConfiguration": dict.fromkeys(("mode", "metricsBindAddress", "clusterCIDR", "iptables", "nftables")),
}
EVICTION_SIGNALS = {
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
}


def unknown(document: dict[str, Any]) -> list[str]:
    """Fields of a document that its kind does not have, as paths."""
    shape = {**KUBEADM[document["kind"]], "apiVersion": None, "kind": None}
    return sorted(_unknown(document, shape, document["kind"]))


def _unknown(value: Any, shape: Any, path: str) -> list[str]:
    if isinstance(shape, dict) and isinstance(value, dict):
        extra = [f"{path}.{name}" for name in value if name not in shape]
        known = [name for name in value if name in shape]
        return extra + [found for name in known for found in _unknown(value[name], shape[name], f"{path}.{name}")]
    if isinstance(shape, list) and isinstance(value, list):
        return [found for item in value for found in _unknown(item, shape[0], f"{path}[]")]
    return [path] if isinstance(shape, (dict, list)) else []
