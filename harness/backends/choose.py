"""The backend that a campaign names."""

from __future__ import annotations

from harness.backends.base import Backend
from harness.backends.local import LocalBackend
from harness.spec import CampaignSpec


def make_backend(spec: CampaignSpec, campaign_id: str) -> Backend:
    """Where the replicas of ``spec`` live; nothing is connected to or started yet.

    Args:
        spec: the campaign.
        campaign_id: marks everything that the backend starts, so that a later harness finds strays.
    """
    if spec.backend == "kubernetes" and spec.kubernetes is not None:
        from harness.backends.kubernetes.backend import KubernetesBackend

        return KubernetesBackend(spec.kubernetes, campaign_id, spec.workloads)
    return LocalBackend(campaign_id)
