"""Preflight: can NVIDIA's DRA driver give the replicas their GPUs, and does nobody else lend the same ones?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from harness.backends.kubernetes import claims
from harness.backends.kubernetes.api import Api
from harness.backends.kubernetes.nodes import Object, selected
from harness.errors import Finding, Severity, counted
from harness.sharing.modes import mode_of
from harness.spec import ExperimentSpec, KubernetesSpec, Sharing

_DRIVER_ADVICE = "Install NVIDIA's DRA driver (docs/cluster.md has its settings), or: `sharing_by: device-plugin`."
_TWICE_ADVICE = (
    "Neither knows what the other gives away: take one of them from the node. Without the device plugin: keep its DaemonSet "
    "from the node with a label. Without the driver: `sharing_by: device-plugin`, and the driver's DaemonSet likewise."
)


def check_claims(
    api: Api, usable: Sequence[Object], spec: KubernetesSpec, experiments: Sequence[ExperimentSpec], campaign_id: str
) -> Iterator[Finding]:
    """Whether every experiment's claims can be had on the usable nodes. Raises ClusterError."""
    if api.find(claims.API) is None:
        message = "the API server has no resource.k8s.io/v1."
        yield Finding(
            Severity.ERROR, "claims", message, "Use Kubernetes 1.34 or newer, or: `sharing_by: device-plugin`."
        )
        return
    for name in dict.fromkeys(claims.device_class(one.sharing) for one in experiments):
        if api.find(f"{claims.API}/deviceclasses/{name}") is None:
            yield Finding(Severity.ERROR, "claims", f"there is no DeviceClass {name}.", _DRIVER_ADVICE)
    nodes = {one["metadata"]["name"]: one for one in usable if selected(one, spec)}
    listed = [each for each in claims.devices(api.list(claims.SLICES)) if each[0] in nodes]
    yield from _lent_twice(listed, nodes.values(), spec)
    others = claims.given(api.list(claims.CLAIMS), campaign_id)
    for mode in dict.fromkeys(one.sharing for one in experiments):
        own = mode_of(mode).each_its_own
        needed = max(
            one.cell.processes if own else claims.shared_gpus(one) for one in experiments if one.sharing is mode
        )
        yield from _check_mode(mode, needed, listed, others, nodes.keys())


def check_lent_twice(api: Api, usable: Sequence[Object], spec: KubernetesSpec) -> Iterator[Finding]:
    """Whether the driver lists GPUs of nodes whose device plugin lends them, for campaigns without claims. Raises ClusterError."""
    if spec.gpus_per_replica and api.find(claims.API) is not None:
        nodes = {one["metadata"]["name"]: one for one in usable if selected(one, spec)}
        listed = [each for each in claims.devices(api.list(claims.SLICES)) if each[0] in nodes]
        yield from _lent_twice(listed, nodes.values(), spec)


def _check_mode(
    mode: Sharing,
    needed: int,
    listed: Sequence[tuple[str, claims.Device, Object]],
    others: dict[claims.Device, str],
    nodes: Iterable[str],
) -> Iterator[Finding]:
    fit = [device for _, device, attributes in listed if claims.of_class(attributes, mode)]
    what = "MIG instance" if mode_of(mode).own_instance else "GPU"
    if not fit:
        message = f"the ResourceSlices of {claims.DRIVER} list no {what} on {', '.join(nodes) or 'any node'}."
        yield Finding(Severity.ERROR, "claims", message, _DRIVER_ADVICE, away=True)  # as while the driver restarts
        return
    free = [device for device in fit if device not in others]
    held = sorted({others[device] for device in fit if device in others})
    if len(free) < needed:
        message = f"{mode.value} needs {counted(needed, what)}, and {len(free)} of {len(fit)} are free"
        holders = f"; the others belong to {', '.join(held)}" if held else ""
        yield Finding(Severity.ERROR, "gpus", f"{message}{holders}.", "Use fewer replicas, or delete those claims.")


def _lent_twice(
    listed: Sequence[tuple[str, claims.Device, Object]], nodes: Iterable[Object], spec: KubernetesSpec
) -> Iterator[Finding]:
    by_driver = {name for name, _, _ in listed}
    for node in nodes:
        lent = (node.get("status") or {}).get("allocatable") or {}
        plugins = {
            name: count for name, count in lent.items() if name.startswith("nvidia.com/") or name == spec.gpu_resource
        }
        both = [f"{count} {name}" for name, count in plugins.items() if int(count) > 0]
        if both and node["metadata"]["name"] in by_driver:
            message = (
                f"node {node['metadata']['name']} lends its GPUs twice: {', '.join(both)} by the device plugin, and "
                "the same to claims by the DRA driver."
            )
            yield Finding(Severity.ERROR, "claims", message, _TWICE_ADVICE)
