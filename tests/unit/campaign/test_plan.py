"""The matrix, its order, its hours and its disk."""

import pytest

from harness.campaign import plan
from harness.campaign.plan import at_most_gb, check_limits, estimate, expand, matrix
from harness.campaign.source import read_source
from harness.errors import UsageError
from harness.metrics.catalogue import select
from harness.spec import (
    CampaignSpec,
    ConditionSpec,
    KubernetesSpec,
    Limits,
    MpsLimits,
    MpsSpec,
    NeighbourSpec,
    Order,
    Sharing,
    StressSpec,
    Timing,
    WorkloadSpec,
)
from harness.spec.sweep import SweepSpec
from tests.support.experiments import campaign


def ids(spec: CampaignSpec) -> list[str]:
    return [experiment.experiment_id for experiment in expand(spec)]


def test_the_published_matrix_is_nine_experiments_of_ten_hours_and_135_files():
    experiments = expand(read_source("replica-scaling").spec)

    assert len(experiments) == 9
    assert sum(len(experiment.metrics) for experiment in experiments) == 135
    assert estimate(experiments).duration_s == 9 * (300 + 3600 + 120)
    replicas = 3 * (1 + 3 + 8)
    assert estimate(experiments).starts_s == pytest.approx(9 * 4 + 0.8 * replicas)


@pytest.mark.parametrize(
    ("order", "runs"),
    [(Order.LISTED, [(1, 1), (1, 2), (2, 1), (2, 2)]), (Order.INTERLEAVED, [(1, 1), (2, 1), (1, 2), (2, 2)])],
)
def test_listed_runs_the_repeats_of_a_cell_in_a_row_and_interleaved_one_of_everything_first(order, runs):
    names = [f"tiny_r{replicas}_time-slicing_rep{repeat}" for replicas, repeat in runs]

    assert ids(campaign(repeats=2, order=order)) == names


def test_random_is_a_permutation_within_each_repeat_and_the_same_for_the_same_seed():
    wishes = {"repeats": 3, "replicas": [1, 2, 3, 4, 5, 6], "order": Order.RANDOM}
    one, again, other = (ids(campaign(seed=seed, **wishes)) for seed in (1, 1, 2))

    assert one == again
    assert one != other
    assert sorted(one) == sorted(ids(campaign(repeats=3, replicas=[1, 2, 3, 4, 5, 6])))
    assert all(name.endswith("rep1") for name in one[:6])


SWITCHED = {
    "backend": "kubernetes",
    "kubernetes": {"device_plugin_configs": "nvidia/plugin-configs"},
    "sharing": [Sharing.EXCLUSIVE, Sharing.TIME_SLICING, Sharing.MPS],
    "workloads": [WorkloadSpec(name="resnet50"), WorkloadSpec(name="distilbert")],
    "replicas": [1, 3, 8],
    "repeats": 4,
}


def setups(spec):
    """Sharing mode, and under MPS the replicas, of each experiment; runs of the same count once."""
    each = [(one.sharing, one.replicas if one.sharing is Sharing.MPS else 0) for one in expand(spec)]
    return [setup for before, setup in zip([None, *each], each, strict=False) if setup != before]


@pytest.mark.parametrize("order", [Order.RANDOM, Order.INTERLEAVED])
def test_a_cluster_is_switched_as_seldom_as_one_repeat_after_the_other_allows(order):
    spec = campaign(**SWITCHED, order=order, seed=3)

    blocks = setups(spec)

    # Exclusive, time-slicing and mps with 1, 3, 8; a repeat begins where the last ended.
    assert len(blocks) == 5 + 3 * 4
    assert sorted(ids(spec)) == sorted(ids(campaign(**SWITCHED, order=Order.LISTED)))
    alone = campaign(**SWITCHED | {"sharing": [Sharing.TIME_SLICING]}, order=order, seed=3)
    local = campaign(**{key: value for key, value in SWITCHED.items() if key in {"workloads", "replicas", "repeats"}},
                     order=order, seed=3)  # fmt: skip
    assert ids(alone) == ids(local)


def test_the_order_of_the_modes_and_within_them_is_one_of_chance():
    orders = [expand(campaign(**SWITCHED, order=Order.RANDOM, seed=seed)) for seed in range(20)]
    firsts = {order[0].sharing for order in orders}
    sliced = {tuple(one.cell[0].name + str(one.replicas) for one in order if one.sharing is Sharing.TIME_SLICING)
              for order in orders}  # fmt: skip
    assert firsts == {Sharing.EXCLUSIVE, Sharing.TIME_SLICING, Sharing.MPS}
    assert len(sliced) == 20


def test_a_metric_that_is_not_in_the_catalogue_is_an_error_with_a_suggestion():
    with pytest.raises(UsageError, match="Did you mean latency_p"):
        expand(campaign(metrics=["latency_p59"]))


@pytest.mark.parametrize(
    ("limit", "words"), [({"max_hours": 0.0001}, "max_hours"), ({"max_disk_gb": 0.0001}, "max_disk_gb")]
)
def test_a_plan_beyond_its_own_limits_is_refused(limit, words):
    spec = campaign(limits=Limits(**limit))

    with pytest.raises(UsageError, match=words):
        check_limits(spec, estimate(expand(spec)))


def test_ids_differ_between_variants_of_one_model():
    workloads = [WorkloadSpec(name="resnet50"), WorkloadSpec(name="resnet50-fp16", model="resnet50", precision="fp16")]
    names = ids(campaign(workloads=workloads))

    assert len(set(names)) == len(names) == 4


def test_exclusive_is_left_out_where_replicas_outnumber_the_gpus():
    spec = campaign(sharing=[Sharing.EXCLUSIVE, Sharing.MPS], replicas=[1, 2, 3], gpus=2, mps=MpsSpec(share=["1/N"]))

    assert [(run.sharing, run.replicas, run.gpus, run.mps) for run in expand(spec)] == [
        (Sharing.EXCLUSIVE, 1, 2, None),
        (Sharing.EXCLUSIVE, 2, 2, None),
        *((Sharing.MPS, replicas, 2, MpsLimits(share="1/N")) for replicas in (1, 2, 3)),
    ]


SWEPT = {
    "sharing": [Sharing.TIME_SLICING, Sharing.MPS],
    "mps": MpsSpec(share=["all", "2/N"], pinned_memory_gb=[None, 4]),
}


def test_limits_of_mps_multiply_its_cells_alone_and_stand_in_the_ids():
    assert ids(campaign(replicas=[3], **SWEPT)) == [
        "tiny_r3_time-slicing_rep1",
        "tiny_r3_mps_rep1",
        "tiny_r3_mps_4gb_rep1",
        "tiny_r3_mps_2-over-n_rep1",
        "tiny_r3_mps_2-over-n-4gb_rep1",
    ]
    assert ids(campaign(replicas=[3], sharing=[Sharing.MPS], mps=MpsSpec(share=[12.5]))) == ["tiny_r3_mps_rep1"]


def test_every_load_of_a_stress_campaign_is_raised_under_each_limit_of_mps():
    stress = StressSpec(load="replicas", first=1, most=2, latency_limit_ms={"p99": 5})
    ladders = campaign(replicas=[1], stress=stress, **SWEPT).series()

    assert [(cells[0].mode, len(cells)) for cells in ladders] == [
        (mode, 2) for mode in ("time-slicing", "mps", "mps (4 GB)", "mps (2/N)", "mps (2/N, 4 GB)")
    ]


ALONE = ConditionSpec(name="alone")
BESIDE = ConditionSpec(
    name="beside-two",
    neighbours=[NeighbourSpec(workload=WorkloadSpec(name="other", factory="a:b"), replicas=2)],
)


def test_conditions_multiply_the_matrix_and_stand_in_the_ids():
    spec = campaign(replicas=[1], repeats=2, conditions=[ALONE, BESIDE])

    assert ids(spec) == [
        "tiny_r1_time-slicing_alone_rep1",
        "tiny_r1_time-slicing_beside-two_rep1",
        "tiny_r1_time-slicing_alone_rep2",
        "tiny_r1_time-slicing_beside-two_rep2",
    ]
    assert [cell.processes for cell in spec.cells()] == [1, 3]


@pytest.mark.parametrize("order", list(Order))
def test_the_conditions_of_a_cell_follow_each_other_within_each_repeat(order):
    spec = campaign(replicas=[1, 2, 3], repeats=4, conditions=[ALONE, BESIDE], order=order, seed=3, **SWEPT)
    planned = [(run.replicas, (run.repeat, run.cell.mode), run.condition_name) for run in expand(spec)]

    pairs = list(zip(planned[::2], planned[1::2], strict=True))

    assert all(one[:2] == other[:2] and one[2] != other[2] for one, other in pairs)
    assert ({one[2] for one, _ in pairs} == {"alone", "beside-two"}) is (order is Order.RANDOM)


def test_a_random_order_without_conditions_is_the_one_it_always_was():
    """A campaign that was begun before must go on in its own order."""
    names = ids(campaign(seed=1, repeats=2, replicas=[1, 2, 3, 4], order=Order.RANDOM))

    assert [int(name[6]) for name in names] == [4, 1, 3, 2, 4, 2, 1, 3]


def test_with_all_metrics_what_a_neighbour_publishes_of_its_own_is_recorded_too():
    session = ConditionSpec(name="beside", neighbours=[NeighbourSpec(workload=WorkloadSpec(name="notebook"))])
    alone, beside = (one.metrics for one in expand(campaign(replicas=[1], conditions=[ALONE, session])))

    assert len(alone) == 15
    assert beside[:15] == alone
    assert {metric.name for metric in select("all", workload="notebook")} == set(beside) > set(alone)


def test_a_neighbour_takes_disk_too_and_a_gpu_of_its_own_under_exclusive():
    spec = campaign(replicas=[1], conditions=[ALONE, BESIDE], sharing=[Sharing.EXCLUSIVE], gpus=1)

    assert ids(spec) == ["tiny_r1_exclusive_alone_rep1"]
    alone, beside = expand(campaign(replicas=[1], conditions=[ALONE, BESIDE], timing=Timing()))
    assert estimate([beside]).disk_bytes > 2 * estimate([alone]).disk_bytes


@pytest.mark.parametrize(("size_bytes", "shown"), [(1, "0.1 GB"), (1e8, "0.1 GB"), (2.01e9, "2.1 GB")])
def test_a_limit_of_the_disk_is_rounded_up_and_never_nothing(size_bytes, shown):
    assert at_most_gb(size_bytes) == shown


def test_replicas_that_share_no_gpu_are_called_those_of_the_cpu(monkeypatch):
    here = campaign(replicas=[2], repeats=1)
    cluster = campaign(replicas=[2], repeats=1, backend="kubernetes", kubernetes=KubernetesSpec(gpus_per_replica=0))

    monkeypatch.setattr(plan, "gpu_facts", lambda: ([], "no driver"))
    assert plan.titles(here) == {"tiny_r2_time-slicing_rep1": "tiny r2 CPU rep1"} == plan.titles(cluster)
    assert matrix(expand(here), gpus=plan.gives_gpus(here))[1] == [["tiny", "CPU", "2", 1, 1]]
    monkeypatch.setattr(plan, "gpu_facts", lambda: (["a GPU"], ""))
    assert plan.titles(here) == {}
    assert plan.titles(cluster.model_copy(update={"kubernetes": KubernetesSpec()})) == {}


def test_replicas_under_a_layer_are_not_forked_and_are_not_planned_so():
    conditions = [{"name": "plain"}, {"name": "wrapped", "layer": {"prefix": ["taskset", "-c", "0"]}}]
    text = {"name": "a", "workloads": [{"name": "resnet50"}], "replicas": [1], "repeats": 1, "conditions": conditions}
    plain, wrapped = expand(CampaignSpec.model_validate(text | {"timing": {"start": "forked"}}))

    fresh = {**text, "conditions": conditions[1:]}
    assert estimate([wrapped]) == estimate(expand(CampaignSpec.model_validate(fresh)))
    assert estimate([plain]).starts_s < estimate([wrapped]).starts_s


def test_a_neighbour_that_cannot_be_forked_is_planned_as_a_new_process():
    neighbour = {"replicas": 3, "workload": {"name": "launch-storm"}}
    conditions = [{"name": "beside", "neighbours": [neighbour]}]
    text = {"name": "a", "workloads": [{"name": "resnet50"}], "replicas": [2], "repeats": 1, "conditions": conditions}

    (beside,) = expand(CampaignSpec.model_validate(text | {"timing": {"start": "forked"}}))

    assert estimate([beside]).starts_s == pytest.approx(4.0 + 2 * 0.1 + 3 * 0.8)


def test_the_matrix_has_a_row_for_each_workload_mode_and_condition():
    conditions = [ConditionSpec(name="alone"), ConditionSpec(name="beside")]
    plain = campaign(replicas=[1, 3, 8], sharing=["time-slicing", "mps"], repeats=5)

    assert matrix(expand(plain)) == (
        ["workload", "mode", "replicas", "repeats", "runs"],
        [["tiny", mode, "1, 3, 8", 5, 15] for mode in ("time-slicing", "mps")],
    )
    titles, rows = matrix(expand(campaign(replicas=[2], repeats=3, conditions=conditions)))
    assert (titles[2], [row[2:] for row in rows]) == ("condition", [["alone", "2", 3, 3], ["beside", "2", 3, 3]])


def test_the_matrix_has_the_loads_of_a_sweep_in_ascending_order_whatever_the_order_they_are_served_in():
    server = {"command": ["serve", "{port}"], "protocol": "openai-chat"}
    llm = WorkloadSpec(name="llm", server=server, memory_gb=1)
    sweep = SweepSpec(concurrency=[4, 8, 16, 32], one_start=True)
    swept = campaign(workloads=[llm], sweep=sweep, sharing=["time-slicing", "mps"], replicas=[1, 2], repeats=3)

    _, rows = matrix(expand(swept))

    assert [row[:2] for row in rows] == [
        [f"llm-c{load}", mode] for mode in ("time-slicing", "mps") for load in (4, 8, 16, 32)
    ]
