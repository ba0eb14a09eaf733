"""Why a Prometheus has no samples of a replica, in the server's own words: its list of targets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from harness.errors import PrometheusError
from harness.metrics.prometheus.adapter import PrometheusServer

Target = Mapping[str, Any]


def active(server: PrometheusServer) -> list[Target]:
    """Everything that the server scrapes. Raises PrometheusError."""
    return list(server.read("targets", state="active")["activeTargets"])


def last_error(target: Target) -> str:
    """Why it is down."""
    return str(target.get("lastError") or "it does not say why")


def twice(server: PrometheusServer, label: str, replicas: Collection[str]) -> str:
    """Which replica the server scrapes more than once, so that whatever is summed is too high; empty: none, or it does not tell.

    Args:
        server: asked once.
        label: whose value tells replicas apart.
        replicas: values of the label.
    """
    try:
        targets = active(server)
    except (PrometheusError, KeyError, TypeError):
        return ""
    for name in replicas:
        jobs = [str(one["labels"].get("job")) for one in targets if one["labels"].get(label) == name]
        if len(jobs) > 1:
            return f"{server} scrapes {label}={name} {len(jobs)} times, as {' and '.join(jobs)}"
    return ""


def why_unseen(server: PrometheusServer, label: str, replicas: Collection[str]) -> str:
    """What keeps the server from seeing some of these replicas; empty when its targets do not tell.

    Args:
        server: asked once.
        label: whose value tells replicas apart.
        replicas: values of the label.
    """
    try:
        targets = active(server)
        found = {one["labels"].get(label, ""): one for one in targets}
        down = [found[name] for name in replicas if name in found and found[name].get("health") == "down"]
        if down:
            first = down[0]
            return f"{server} cannot scrape {first['scrapeUrl']}: {last_error(first)}"
    except (PrometheusError, KeyError, TypeError):
        return ""  # a store in front of several servers has no targets
    unknown = [name for name in replicas if name not in found]
    return (
        f"{server} has no target with the label {label}={unknown[0]}: its discovery does not find it" if unknown else ""
    )
