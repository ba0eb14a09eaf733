"""Small experiments and campaigns for tests."""

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
    """workload: the whole of it, or more fields of the tiny one."""
    if not isinstance(workload, WorkloadSpec):
        factory = factory if ":" in factory else f"{TINY}:{factory}"
        tiny = {"name": "tiny", "factory": factory, "warmup_requests": 1, "options": options}
        workload = WorkloadSpec(**tiny, **(workload or {}))
    return ExperimentSpec(
        workload=workload,
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
