"""What each backend can do for a campaign; what it cannot is refused when the campaign file is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.config import CampaignSpec, ScenarioKind
from harness.errors import CampaignFileError


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do.

    Attributes:
        sets_sharing: it brings about the sharing mode of each experiment, and MPS's limits; otherwise it can only see
            which mode there is.
        neighbours: it runs other workloads beside the measured one.
        layers: it puts a layer between replicas and the machine.
        stops_when_known: its rows and requests are there while it records.
        serves_http: its replicas can be reached by the load generator.
        starts_servers: it starts a server of the user's own in each replica.
    """

    sets_sharing: bool
    neighbours: bool
    layers: bool
    stops_when_known: bool
    serves_http: bool
    starts_servers: bool

    def refusals(self, spec: CampaignSpec) -> Iterator[str]:
        """What the campaign asks for and this backend cannot do, a sentence each, with what to do."""
        switches = spec.kubernetes is not None and spec.kubernetes.device_plugin_configs is not None
        if not (self.sets_sharing or switches) and len(spec.sharing) > 1:
            modes = " and ".join(mode.value for mode in spec.sharing)
            yield (
                f"one campaign cannot compare sharing {modes}: on a cluster its device plugin shares the GPUs, for all "
                "campaigns alike. Name the plugin's configurations in `kubernetes.device_plugin_configs`, and the campaign "
                "switches between them; or run one campaign per mode, with `harness sharing MODE` before each, and "
                "compare them: harness compare RESULTS RESULTS"
            )
        if not self.sets_sharing and spec.mps is not None:
            yield (
                "`mps` has no effect: on a cluster MPS gives each of N slices the N-th part of processors and memory. "
                "Remove it, and choose N: harness sharing mps --replicas N"
            )
        if not self.neighbours and any(each.neighbours for each in spec.conditions):
            yield "neighbours need backend local: a cluster's pods run without them."
        if not self.layers and any(each.layer for each in spec.conditions):
            yield "layers need backend local: a cluster's pods run without them."
        if not self.stops_when_known and spec.timing.stop_when_known is not None:
            yield (
                "`timing.stop_when_known` needs backend local: the rows and requests of a cluster are there only when "
                "its recording is over. Remove it, or shorten record_s."
            )
        for workload in spec.workloads:
            if not self.serves_http and workload.scenario and workload.scenario.kind is ScenarioKind.HTTP:
                yield (
                    f"the workload {workload.name} has scenario http, which runs with backend local only: "
                    "the load generator stands beside the replicas. Use scenario server on a cluster."
                )
            if not self.starts_servers and workload.server is not None:
                yield f"the workload {workload.name} is a server of your own, which runs with backend local only."


_BACKENDS = {
    "local": Capabilities(
        sets_sharing=True,
        neighbours=True,
        layers=True,
        stops_when_known=True,
        serves_http=True,
        starts_servers=True,
    ),
    "kubernetes": Capabilities(
        sets_sharing=False,
        neighbours=False,
        layers=False,
        stops_when_known=False,
        serves_http=False,
        starts_servers=False,
    ),
}


def require(spec: CampaignSpec, *, origin: str) -> None:
    """Raise CampaignFileError when the campaign asks for what its backend cannot do.

    Args:
        spec: the campaign.
        origin: names its file in the message.
    """
    refusals = list(_BACKENDS[spec.backend].refusals(spec))
    if refusals:
        lines = "\n".join(f"  {refusal}" for refusal in refusals)
        raise CampaignFileError(
            f"{origin} asks for what backend {spec.backend} cannot do:\n{lines}",
            advice="Mend the campaign file; nothing has been started.",
        )
