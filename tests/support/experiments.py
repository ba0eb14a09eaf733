"""Small experiments and campaigns for tests."""

from pathlib import Path

from harness.campaign.journal import read_events
from harness.spec import CampaignSpec, ExperimentSpec, Limits, NeighbourSpec, Sharing, Timing, WorkloadSpec

TINY = "tests.support.tiny_workload"
FAST = {
    "step_s": 0.1,
    "stabilise_s": 0,
    "record_s": 0.5,
    "cooldown_s": 0,
    "ready_timeout_s": 120,
    "drain_timeout_s": 30,
}


def experiment(
    *,
    factory="steady",
    replicas=2,
    metrics=("throughput",),
    timing=None,
    limits=None,
    workload=None,
    sharing=Sharing.TIME_SLICING,
    mps=None,
    gpus=1,
    condition=None,
    **options,
) -> ExperimentSpec:
    factory = factory if ":" in factory else f"{TINY}:{factory}"
    return ExperimentSpec(
        workload=WorkloadSpec(name="tiny", factory=factory, warmup_requests=1, options=options, **(workload or {})),
        replicas=replicas,
        sharing=sharing,
        mps=mps,
        gpus=gpus,
        repeat=1,
        timing=Timing(**FAST | (timing or {})),
        metrics=list(metrics),
        limits=Limits(**(limits or {})),
        condition=condition,
    )


def neighbour(factory="steady", *, name="noisy", replicas=1, **options) -> NeighbourSpec:
    workload = WorkloadSpec(name=name, factory=f"{TINY}:{factory}", warmup_requests=1, options=options)
    return NeighbourSpec(workload=workload, replicas=replicas)


def campaign(**changes) -> CampaignSpec:
    values = {
        "name": "test",
        "workloads": [WorkloadSpec(name="tiny", factory=f"{TINY}:steady", warmup_requests=1)],
        "replicas": [1, 2],
        "timing": Timing(**FAST),
    }
    return CampaignSpec(**values | changes)


def begun(campaign: Path | None, step: str, experiment: str = "") -> bool:
    """Whether a step has begun in a campaign's folder, of this experiment or of any; not while there is no folder."""
    return campaign is not None and any(
        event["event"] == "step-begins" and event["step"] == step and experiment in event["experiment"]
        for event in read_events(campaign / "state.jsonl")
    )
