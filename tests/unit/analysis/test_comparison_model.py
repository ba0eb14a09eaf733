"""The six questions on made-up results of known truth."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis.contrasts.comparison import Arm, By, CellKey, Comparison, gather, settings_of
from harness.analysis.format import quantity
from harness.analysis.questions.first_screen import first_screen
from harness.analysis.questions.isolation import overheads
from harness.analysis.questions.max_replicas import carried, memory_entry
from harness.analysis.questions.question import ComparisonQuery, QuestionAnswer, comparison_query
from harness.analysis.questions.recommendation import choices, costs
from harness.analysis.questions.sharing_cost import cost_of, gpu_hours_of, kwh_of, per_million, switching
from harness.analysis.report import answer_all, mps_limits, write_comparison
from harness.analysis.statistics import Estimate, Outcome, t_interval
from harness.errors import UsageError
from harness.spec import ConditionSpec, MpsLimits, Sharing
from tests.unit.results.synthetic import SERVICE_S, Shape, rates, write_campaign

SHAPE = Shape(record_s=4, noise=0.005)
MODES = [Sharing.EXCLUSIVE, Sharing.TIME_SLICING, Sharing.MPS]
POWER_W = 57.0


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("results") / "modes"
    return gather([write_campaign(folder, replicas=[1, 3, 8], repeats=3, shape=SHAPE, sharing=MODES)])


@pytest.fixture(scope="module")
def half_idle(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Time-slicing alone, once each, of a workload that leaves the GPU idle half of the time."""
    shape = replace(SHAPE, utilization_alone=45.0)
    folder = tmp_path_factory.mktemp("results") / "idle"
    return gather([write_campaign(folder, replicas=[1, 3], repeats=1, shape=shape)])


def test_no_mode_is_proposed_that_was_measured_or_that_nobody_can_set(pool: Comparison):
    assert pool.missing_modes() == []
    (one,) = [one for one in pool.arms if one.label == "mps"]
    (told,) = replace(pool, arms=[one]).missing_modes()
    assert told.startswith(
        "Not measured: exclusive, time-slicing. Run a campaign with sharing: [mps, exclusive, time-slicing]"
    )
    assert replace(pool, arms=[replace(one, sharing="as-found")]).missing_modes() == []


def setup(pool: Comparison, label: str) -> Arm:
    (found,) = [one for one in pool.arms if one.label == label]
    return found


def answered(pool: Comparison, wanted: ComparisonQuery | None = None) -> dict[str, QuestionAnswer]:
    return {answer.name: answer for answer in answers_to(pool, wanted or ComparisonQuery())}


# Answers are drawn as well, which takes seconds: once for each pool (kept, so that its id is nobody else's).
GIVEN: dict[tuple[int, ComparisonQuery], tuple[Comparison, list[QuestionAnswer]]] = {}


def answers_to(pool: Comparison, wanted: ComparisonQuery) -> list[QuestionAnswer]:
    key = (id(pool), wanted)
    if key not in GIVEN:
        GIVEN[key] = (pool, answer_all(pool, wanted))
    return GIVEN[key][1]


@pytest.mark.parametrize(("campaign", "rows"), [("h200-server-*", 5), ("h200-engine-*", 18)])
def test_rates_that_were_set_are_compared_as_no_speeds(
    campaign: str, rows: int, published: Callable[[str], list[Path]]
) -> None:
    compared = gather(published(campaign))
    given = answered(compared)
    cost = given["cost"]
    assert len(cost.table.rows) == rows
    streams = {"ttft_p50_exact", "itl_p50_exact", "itl_p99_exact"}
    assert (streams <= {test.contrast.metric for test in compared.tests}) == ("engine" in campaign)
    assert ("First token p50" in " ".join(cost.table.titles)) == ("engine" in campaign)
    assert "solo" not in cost.takeaway
    assert not {"throughput", "fairness"} & {choice.goal.metric for choice in choices(compared, ComparisonQuery())}
    assert not re.findall("law fits|linear", str(given["carrying"].table.rows))
    assert "slowest" not in given["isolation"].takeaway
    assert given["switching"].table is None


def test_each_question_is_answered_with_sentence_figures_and_picture(pool: Comparison) -> None:
    found = answered(pool, ComparisonQuery(0.012, 3.0, 0.25))
    assert list(found) == ["cost", "carrying", "isolation", "switching", "price"]
    for answer in found.values():
        assert answer.takeaway, answer.name
        assert all(len(row) == len(answer.table.columns) for row in answer.table.rows)
    assert found["switching"].pictures


def test_cost_is_told_against_one_alone(pool: Comparison) -> None:
    table = answered(pool)["cost"].table
    (sliced,) = [row for row in table.rows if row[1:3] == ["time-slicing", "8"]]
    ts, alone = sum(rates("resnet50", 8, SHAPE)), 1 / SERVICE_S["resnet50"]
    assert sliced[table.titles.index("throughput against alone")].value == pytest.approx(ts / alone, rel=0.02)


def test_one_alone_is_found_when_workloads_are_the_sides(pool: Comparison) -> None:
    by_workload = answered(gather([pool.analyses[0].folder], By.WORKLOAD))
    for name in ("cost", "isolation"):
        table = by_workload[name].table
        assert [row["p99 against alone"] for row in table.records()] == [
            row["p99 against alone"]
            for row in answered(pool)[name].table.records()  # type: ignore[union-attr]
        ]


def test_a_count_is_carried_only_when_its_whole_interval_keeps_the_limit(pool: Comparison) -> None:
    slicing = setup(pool, "time-slicing")
    p99 = {count: slicing.cells[CellKey("resnet50", count)].estimates["latency_p99_exact"] for count in (1, 3, 8)}
    three, eight = p99[3].high, p99[8].low
    held = carried(slicing, "resnet50", (three + eight) / 2)
    assert (held.most, held.breaks, held.undecided) == (3, 8, [])
    held = carried(slicing, "resnet50", p99[3].mean)
    assert (held.most, held.breaks, held.undecided) == (1, 8, [3])
    held = carried(slicing, "resnet50", p99[1].mean / 2)
    assert (held.most, held.breaks) == (0, 1)
    assert carried(slicing, "resnet50", 1.0).most == 8


def test_one_repeat_decides_nothing(half_idle: Comparison) -> None:
    held = carried(half_idle.arms[0], "resnet50", 1.0)
    assert (held.most, held.breaks, held.undecided) == (0, None, [1, 3])
    assert "repeat" in str(answered(half_idle, ComparisonQuery(latency_limit_s=1.0))["carrying"].table.rows)


def test_switching_is_the_time_that_a_request_takes_more(pool: Comparison) -> None:
    costs, _ = switching(pool)
    (mps,) = [one for one in costs if one.reference == "mps" and one.replicas == 8]
    mine, other = (sum(rates("resnet50", 8, replace(SHAPE, sharing=mode))) for mode in MODES[1:])
    assert mps.extra_s.mean == pytest.approx(1 / mine - 1 / other, rel=0.05)
    assert mps.extra_s.low < 1 / mine - 1 / other < mps.extra_s.high
    assert mps.p < 0.05
    (alone,) = [one for one in costs if one.reference == "alone" and one.replicas == 8]
    assert alone.extra_s.mean < 0


def test_a_gpu_that_is_idle_alone_tells_nothing_of_switching(half_idle: Comparison) -> None:
    answer = answered(half_idle)["switching"]
    assert answer.table is None
    assert any("45% busy" in sentence for sentence in answer.missing)
    assert any("mps" in sentence for sentence in answer.missing)


def test_the_choice_names_a_winner_only_where_it_differs(pool: Comparison) -> None:
    found = {choice.goal.name: choice for choice in choices(pool, ComparisonQuery())}
    most = found["highest throughput with many replicas"]
    assert most.clear
    assert (most.best[0], most.best[1].replicas) == ("mps", 8)
    fairest = found["fairest between many replicas"]
    assert not fairest.clear
    assert fairest.outcome is Outcome.NOT_SIGNIFICANT
    assert fairest.in_words["Best"] == "no clear winner"


def test_a_limit_and_a_price_are_goals_of_their_own(pool: Comparison) -> None:
    slicing = setup(pool, "time-slicing")
    three, eight = (slicing.cells[CellKey("resnet50", count)].estimates["latency_p99_exact"] for count in (3, 8))
    limit_s = (three.high + eight.low) / 2
    found = {choice.goal.name: choice for choice in choices(pool, ComparisonQuery(limit_s, 3.0, 0.25))}
    limited = found[f"highest throughput with p99 within {quantity(limit_s, 's')}"]
    sides = [limited.best, limited.next]
    assert all(cell.estimates["latency_p99_exact"].high <= limit_s for _, cell in sides)
    assert ("time-slicing", 8) not in [(label, cell.replicas) for label, cell in sides]
    price = found["lowest price per million inferences"]
    assert t_interval(price.goal.figures(price.best[1])).mean < t_interval(price.goal.figures(price.next[1])).mean


def test_what_the_best_costs_elsewhere_is_named(pool: Comparison) -> None:
    most = next(choice for choice in choices(pool, ComparisonQuery()) if choice.goal.name == "highest throughput")
    rival = setup(pool, "exclusive").cells[CellKey("resnet50", 1)]
    (cost,) = [cost for cost in costs(pool.contrasts, most.best[1], rival) if cost.startswith("p99")]
    assert re.fullmatch(r"p99 \+\d+%", cost)


def test_campaigns_with_nothing_in_common_are_compared_by_mode(tmp_path: Path) -> None:
    modes = [*MODES[:2], MODES[0]]
    one, other, again = (
        write_campaign(tmp_path / str(seed), replicas=[1], repeats=1, shape=replace(SHAPE, seed=seed), sharing=[mode])
        for seed, mode in enumerate(modes)
    )
    assert gather([one, other]).by is By.SHARING
    assert gather([one, again]).by is By.CAMPAIGN


def test_energy_time_and_price_of_a_million(pool: Comparison) -> None:
    cell = setup(pool, "time-slicing").cells[CellKey("resnet50", 3)]
    rate = sum(rates("resnet50", 3, SHAPE))
    kwh, hours = per_million(cell, kwh_of), per_million(cell, gpu_hours_of)
    assert kwh.mean == pytest.approx(POWER_W / rate * 1e6 / 3.6e6, rel=0.02)
    assert hours.mean == pytest.approx(1e6 / rate / 3600, rel=0.02)
    cost = per_million(cell, cost_of(ComparisonQuery(price_per_gpu_hour=3.0, price_per_kwh=0.25)))
    assert cost.mean == pytest.approx(3 * hours.mean + 0.25 * kwh.mean)
    assert cost.half_width is not None
    assert per_million(cell, cost_of(ComparisonQuery())) is None


def test_half_of_a_cost_is_no_cost(tmp_path: Path) -> None:
    folder = write_campaign(tmp_path / "cpu", replicas=[1], repeats=1, shape=replace(SHAPE, gpu=False))
    (only,) = gather([folder]).arms
    cell = only.cells[CellKey("resnet50", 1)]
    assert per_million(cell, cost_of(ComparisonQuery(price_per_kwh=0.25))) is None
    assert per_million(cell, cost_of(ComparisonQuery(price_per_gpu_hour=3.0))) is not None


def test_what_is_missing_names_the_run_that_would_tell(half_idle: Comparison) -> None:
    found = answered(half_idle)
    assert any("sharing: [time-slicing, exclusive, mps]" in sentence for sentence in found["cost"].missing)
    assert any("--latency-limit-ms" in sentence for sentence in found["carrying"].missing)
    assert any("--price-per-gpu-hour" in sentence for sentence in found["price"].missing)
    assert choices(half_idle, ComparisonQuery()) == []
    assert "nothing to choose from" in first_screen(half_idle).sentence


@pytest.mark.parametrize(
    "given",
    [(-1.0, None, None), (0.0, None, None), (None, -3.0, None), (None, None, float("nan")), (None, 1e308, None)],
)
def test_impossible_limits_and_prices_are_refused(given: tuple[float | None, float | None, float | None]) -> None:
    with pytest.raises(UsageError, match="positive number"):
        comparison_query(*given)


@pytest.mark.parametrize("currency", ["US\nD", "\x1b[31m", "a" * 13])
def test_a_currency_is_a_short_word(currency: str) -> None:
    with pytest.raises(UsageError, match="a word of at most 12 characters"):
        comparison_query(None, 3.0, None, currency)
    assert comparison_query(None, 3.0, None, "€").currency == "€"


def test_conditions_show_their_overhead_on_the_page(tmp_path: Path) -> None:
    conditions = [ConditionSpec(name="alone"), ConditionSpec(name="beside")]
    folder = write_campaign(tmp_path / "c", replicas=[1], repeats=2, shape=SHAPE, conditions=conditions)
    pool = gather([folder])
    found = overheads(pool)
    assert "beside against alone" in found.sentences()[0]
    page = write_comparison(tmp_path / "page.html", first_screen(pool), [], "", ComparisonQuery()).read_text()
    assert "How much worse each condition is than alone" in page


def test_energy_may_be_free() -> None:
    assert comparison_query(50.0, 3.0, 0.0) == ComparisonQuery(0.05, 3.0, 0.0)


def test_the_page_needs_nothing_else_and_text_of_others_is_text(pool: Comparison, tmp_path: Path) -> None:
    given = answer_all(pool, ComparisonQuery())
    given[0].takeaway = "<b>bold</b>"
    path = write_comparison(
        tmp_path / "page.html", first_screen(pool), given, "harness compare 'a <b>'", ComparisonQuery()
    )
    page = path.read_text()
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", page)
    assert not re.search(r"<script(?!>| type=.application/json.>)", page)
    assert "<b>bold" not in page
    assert "&lt;b&gt;bold" in page
    assert len(page.encode()) < 1_000_000
    parts = ['class="sentence"', 'class="numbers"', 'id="decision"', "<nav", 'id="modes"', 'id="choosing"', 'id="cost"']
    assert [page.index(part) for part in parts] == sorted(page.index(part) for part in parts)
    with pytest.raises(UsageError, match=r"ending in \.html"):
        write_comparison(tmp_path / "absent" / "page.html", first_screen(pool), given, "", ComparisonQuery())


@pytest.mark.parametrize(
    ("limits", "used_gb", "expected"),
    [
        (None, 0.1, "48, all that MPS takes, would fit"),
        (MpsLimits(pinned_memory_gb=2), 0.1, "8 would fit"),
        (MpsLimits(pinned_memory_gb=0.1), 1.0, "17 would fit"),
    ],
)
def test_replicas_that_would_fit_are_no_more_than_mps_and_its_limits_take(
    pool: Comparison, limits: MpsLimits | None, used_gb: float, expected: str
) -> None:
    cell = setup(pool, "mps").cells[CellKey("resnet50", 3)]
    first = cell.used[0]
    spec = first.data.manifest.experiment.model_copy(update={"mps": limits})
    manifest = first.data.manifest.model_copy(update={"experiment": spec})
    run = replace(first, data=replace(first.data, manifest=manifest))
    memory = Estimate(3 * used_gb * 1e9, None, None, 1, None)
    entry = memory_entry(replace(cell, experiments=[run], estimates={**cell.estimates, "gpu_memory": memory}))
    assert entry.small == (expected,)
    assert mps_limits([manifest]) == ["no limit" if limits is None else f"{limits.pinned_memory_gb:g} GB of GPU memory"]


@pytest.mark.parametrize("mode", ["exclusive", "time-slicing"])
def test_how_many_fit_is_said_of_a_gpu_that_is_shared(pool: Comparison, mode: str) -> None:
    told = memory_entry(setup(pool, mode).cells[CellKey("resnet50", 1)])
    assert bool(told.small) == (mode == "time-slicing")


@pytest.mark.parametrize(("inputs", "said"), [(80, "batch 8 (8 inputs a request)"), (10, "batch 8")])
def test_a_batch_is_told_as_the_inputs_of_a_request_where_it_is(pool: Comparison, inputs: int, said: str) -> None:
    manifest = setup(pool, "mps").cells[CellKey("resnet50", 3)].used[0].data.manifest
    workload = manifest.experiment.workload.model_copy(update={"batch_size": 8})
    experiment = manifest.experiment.model_copy(update={"workload": workload})
    update = {"experiment": experiment, "replicas": [{"requests": 10, "inputs": inputs}]}
    found = settings_of([manifest.model_copy(update=update)])
    assert found == {"resnet50": f"{said}, fp32, eager"}
