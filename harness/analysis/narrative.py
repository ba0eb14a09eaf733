"""The answer in sentences: what a report says first, then all of it, and everything that weakens it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from harness.analysis.campaign import (
    REPEATS_FOLLOWED,
    CampaignAnalysis,
    Cell,
    ConfigurationKey,
    LoadState,
    MeasuredRun,
    load_state,
)
from harness.analysis.client_result import read_scenarios
from harness.analysis.comparability import MACHINE, SURROUNDINGS, gpu_names, unlike_parts
from harness.analysis.contrasts.comparison import By, gather
from harness.analysis.contrasts.contrast import Contrasts
from harness.analysis.format import quantity, replicas_in_words, times, under, with_interval
from harness.analysis.goodput import Best
from harness.analysis.goodput import sentences as goodput_in_words
from harness.analysis.metrics.catalogue import ALL
from harness.analysis.questions.condition_overhead import Interference
from harness.analysis.questions.decision import decisions, in_one_sentence
from harness.analysis.statistics import Estimate, Outcome
from harness.errors import ResultsPathError, clipped, counted
from harness.metrics.telemetry import TOLD_SHARE
from harness.results.manifest import Status
from harness.spec.scenario import OPEN_LOOP, ScenarioKind
from harness.spec.workload import BUILTIN_WORKLOADS

FEW_REPEATS = 3
UNSTEADY_PERCENT = 5.0
MOST = 3
"""Sentences of a headline; what there is besides stands further down."""
MANY_DEGRADED = 5
_BEST_EFFORT = "BestEffort"
_DEVICE = "GPU device"
"""Of the surroundings; one replica needs fewer devices than two."""
_OF_SEVERAL = {"fairness", "jain"}
_CLOSED_LOOP = (
    "sends its next request when the last is answered (closed loop): latency is service time beside "
    "the other replicas, with no queue in front."
)
_OPEN_LOOP = (
    "come at times of their own: latency counts from the intended time, waiting included, and throughput is the rate "
    "that was sent unless replicas fell behind."
)


def headline(analysis: CampaignAnalysis, best: Sequence[Best], against_first: Interference | None) -> list[str]:
    """The answer to what the campaign asked, at most ``MOST`` sentences.

    Args:
        best: of a stress campaign with an objective, the highest goodput.
        against_first: of a campaign with conditions, what each costs.
    """
    if analysis.stress_series:
        raised = [sentence for series in analysis.stress_series for sentence in series.sentences()]
        return (goodput_in_words(best) or raised)[:MOST]
    if against_first and against_first.overheads:
        return [*against_first.worst(), *against_first.sentences(gravest=True)][:MOST]
    if analysis.progress and analysis.progress.rivals and any(cell.used for cell in analysis.cells):
        comparison = gather([analysis.folder], By.SHARING, unlike=True, read=lambda _folder: analysis)
        if made := decisions(comparison):
            return [it.headline for it in made][:MOST]
    if analysis.progress and (listed := analysis.progress.sentences()):
        return listed[:MOST]
    return (_decided(analysis) or answers(analysis))[:MOST]


def _decided(analysis: CampaignAnalysis) -> list[str]:
    """Which sharing mode to use, and what is unclear; nothing where one mode was measured."""
    if len({cell.mode for cell in analysis.cells if cell.used}) < 2:
        return []
    known = decisions(gather([analysis.folder], By.SHARING, unlike=True, read=lambda _folder: analysis))
    if len({decision.condition for decision in known}) > 1:
        return [decision.headline for decision in known]
    return [in_one_sentence(known), *filter(None, (decision.unclear for decision in known))] if known else []


def limits(analysis: CampaignAnalysis) -> list[str]:
    """In how many runs a scenario's latency limit was kept; nothing where none has one."""
    scenarios = {
        run.name: scenario
        for run in analysis.experiments
        if run.used and (scenario := run.data.manifest.experiment.workload.scenario)
    }
    try:
        results = read_scenarios(analysis.folder) if scenarios else []
    except ResultsPathError:  # all of them are damaged, which the commands that read them say
        return []
    met = {
        result["experiment"]: result["results"]["limit_met"]
        for result in results
        if result["experiment"] in scenarios and result["results"].get("limit_met") is not None
    }
    if not met:
        return []
    kept = f"kept in {sum(met.values())} of {len(met)} runs"
    limits_ms = sorted({scenarios[name].latency_limit_ms or 0.0 for name in met})
    limit = " or ".join(f"{limit_ms:g}" for limit_ms in limits_ms)
    broken = "" if all(met.values()) else ", broken in the others"
    return [f"Latency limit of {limit} ms for 99% of the requests: {kept}{broken}."]


def answers(analysis: CampaignAnalysis) -> list[str]:
    """What the campaign found, one sentence or two per workload, sharing mode and condition."""
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in analysis.cells:
        if "throughput" in cell.estimates:
            groups.setdefault(cell.key.curve, []).append(cell)
    several, contrasts = len({cell.mode for cell in analysis.cells}) > 1, Contrasts([analysis])
    sentences = []
    for cells in groups.values():
        mode = f" {under(cells[0].mode)}" if several else ""
        condition = f" ({cells[0].condition})" if cells[0].condition else ""
        scaled = sorted(cells, key=lambda cell: cell.replicas)
        sentences.append(f"{cells[0].workload}{mode}{condition}: {_answer(scaled)}{_saturation(contrasts, scaled)}")
    return sentences


def _answer(cells: Sequence[Cell]) -> str:
    """What most replicas serve together, against one."""
    first, last = cells[0], cells[-1]
    rate = with_interval(last.estimates["throughput"], "requests/s")
    idle = max((run.replica_throughput.count(0.0) for run in last.used), default=0)
    serve = f"{f', of which {idle} served nothing,' if idle else ''} {'serves' if last.replicas == 1 else 'serve'}"
    parts = [f"{replicas_in_words(last.replicas)}{serve} {rate}"]
    speed_up, efficiency = (last.estimates.get(name) for name in ("speed_up", "efficiency"))
    if last is not first and speed_up and efficiency:
        gain, each_percent = times(speed_up, "95% interval "), 100 * efficiency.mean
        parts.append(f"{gain} one replica, each at {each_percent:.0f}% of its solo speed")
    p99, alone = (cell.estimates.get("latency_p99_exact") for cell in (last, first))
    if p99 and alone and last is not first:
        parts.append(f"p99 latency goes from {quantity(alone.mean, 's')} to {quantity(p99.mean, 's')}")
    elif p99:
        parts.append(f"p99 latency is {quantity(p99.mean, 's')}")
    return f"{'; '.join(parts)}."


def _saturation(contrasts: Contrasts, cells: Sequence[Cell]) -> str:
    """What the last step up in replicas brought, where the rate was not set."""
    before, last = cells[-2:] if len(cells) > 2 else (None, cells[-1])
    contrast = None if before is None or last.paced else contrasts.of(before, last, "throughput")
    if before is None or contrast is None:
        return ""
    outcome = contrast.sentence
    if contrast.outcome is Outcome.INCONCLUSIVE:
        outcome = f"{100 * (contrast.ratio.mean - 1):+.1f}% (too few runs to call it significant)"
    return f" From {before.replicas} to {last.replicas} replicas, throughput: {outcome}."


class Weakness(NamedTuple):
    """What a reader has to know before using a number: in a few words, where they stand beside the answer, and in sentences."""

    words: str
    sentences: list[str]


def concerns(analysis: CampaignAnalysis) -> list[str]:
    """What a reader has to know before anything else, in a few words each; empty when nothing weakens the answer."""
    return [weakness.words for weakness in _weaknesses(analysis) if weakness.words]


def concerns_of_all(analyses: Sequence[CampaignAnalysis]) -> list[str]:
    """The same of several campaigns, each with its name."""
    if len(analyses) == 1:
        return concerns(analyses[0])
    return [
        f"{analysis.spec.name if analysis.spec else analysis.name}: {'; '.join(weak)}"
        for analysis in analyses
        if (weak := concerns(analysis))
    ]


def caveats(analysis: CampaignAnalysis) -> list[str]:
    """What a careful reader must know before using a number, the gravest first."""
    return [sentence for weakness in _weaknesses(analysis) for sentence in weakness.sentences]


def _weaknesses(analysis: CampaignAnalysis) -> list[Weakness]:
    damaged = [run for run in analysis.experiments if run.damage]
    invalid = [run for run in analysis.experiments if not run.damage and not run.used]
    degraded = [run for run in analysis.experiments if run.used and run.status is Status.DEGRADED]
    runs, on_cpu = f"of {len(analysis.experiments)} runs are", _on_cpu(analysis)
    missing = f"{len(analysis.unfinished)} of {analysis.planned} experiments are missing"
    listed = [
        Weakness(
            f"{len(invalid)} {runs} INVALID and left out",
            [f"{run.name} is INVALID and left out of every average: {_reasons(run)}" for run in invalid],
        ),
        Weakness(
            f"{len(damaged)} {runs} damaged and left out",
            [
                f"{run.name} is left out of every average: its files are not what its manifest says ({'; '.join(run.damage)})."
                for run in damaged
            ],
        ),
        Weakness(
            missing,
            [
                f"The campaign is not finished: {missing} (listed below). Go on with: harness resume results/{analysis.name}"
            ]
            if analysis.unfinished
            else [],
        ),
        Weakness("", changed_file(analysis)),
        Weakness(f"{len(degraded)} {runs} DEGRADED and included", _degraded(degraded)),
        Weakness(
            "replicas ran on the CPU although there is a GPU",
            ["This machine has a GPU, and replicas ran on the CPU."] if on_cpu else [],
        ),
        *_of_cells(analysis),
        Weakness("", [REPEATS_FOLLOWED] if analysis.progress else []),
        *(Weakness("", of(analysis)) for of in (_last_in_line, _absent, _mixed, _nature)),
    ]
    return [weakness for weakness in listed if weakness.sentences]


def _of_cells(analysis: CampaignAnalysis) -> list[Weakness]:
    """What holds in some configurations, which are named with its percent where it has one."""

    def over(metric: str, percent: Callable[[Estimate], float], least: float) -> dict[ConfigurationKey, float]:
        percents = {cell.key: percent(cell.estimates[metric]) for cell in analysis.cells if metric in cell.estimates}
        return {key: value for key, value in percents.items() if value > least}

    repeats = {cell.key: len(cell.used) for cell in analysis.cells}
    of_cells: list[tuple[str, Mapping[ConfigurationKey, float | None], str]] = [
        (
            "one run only, so without an interval,",
            {key: None for key, used in repeats.items() if used == 1},
            f" No difference can be called significant there: repeat at least {FEW_REPEATS} times.",
        ),
        ("two runs only, so with wide intervals,", {key: None for key, used in repeats.items() if used == 2}, ""),
        (
            f"throughput varies by more than {UNSTEADY_PERCENT:g}% between repeats",
            over("throughput", lambda rate: 100 * (rate.cv or 0.0), UNSTEADY_PERCENT),
            "",
        ),
        (
            "the power cap set the GPU's clock",
            over("gpu_power_capped", lambda capped: capped.mean, 100 * TOLD_SHARE),
            " Another cap gives other figures.",
        ),
    ]
    weaknesses = []
    for words, where, advice in of_cells:
        places = [
            _cell(analysis, key) + ("" if percent is None else f" ({percent:.0f}%)") for key, percent in where.items()
        ]
        head = f"{words} in {len(places)} of {len(analysis.cells)} configurations"
        sentence = f"{head[0].upper()}{head[1:]}: {', '.join(places)}.{advice}"
        weaknesses.append(Weakness(head, [sentence] if places else []))
    return weaknesses


def changed_file(analysis: CampaignAnalysis) -> list[str]:
    """That the kept campaign file is not the one that was run, where somebody edited it."""
    if not analysis.file_changed:
        return []
    sentence = f"campaign.yaml in {analysis.name} was changed since the campaign began"
    return [f"{sentence}: the report is of the campaign as it was run, and to run that file is another campaign."]


def _degraded(degraded: Sequence[MeasuredRun]) -> list[str]:
    if len(degraded) > MANY_DEGRADED:
        names = ", ".join(run.name for run in degraded)
        return [f"{len(degraded)} experiments are DEGRADED and included; each lists its reasons below: {names}."]
    return [f"{run.name} is DEGRADED and included: {_reasons(run)}" for run in degraded]


def _reasons(experiment: MeasuredRun) -> str:
    text = " ".join(reason.rstrip(".") + "." for reason in experiment.data.manifest.verdict.reasons)
    return clipped(text) or "no reason was recorded."


def _on_cpu(analysis: CampaignAnalysis) -> bool:
    """Whether replicas ran on the CPU of a machine that has a GPU."""
    manifests = [run.data.manifest for run in analysis.experiments]
    on_cpu = any(replica.get("device") == "cpu" for manifest in manifests for replica in manifest.replicas)
    return on_cpu and any(manifest.provenance.gpus for manifest in manifests)


def _last_in_line(analysis: CampaignAnalysis) -> list[str]:
    """Pods of class BestEffort have next to no weight where processors are short."""
    waited = [
        (experiment.name, percent)
        for experiment in analysis.experiments
        if (percent := experiment.figures.get("cpu_psi")) is not None
        and load_state(percent) is not LoadState.EMPTY
        and any(replica.get("qos_class") == _BEST_EFFORT for replica in experiment.data.manifest.replicas)
    ]
    if not waited:
        return []
    most, percent = max(waited, key=lambda wait: wait[1])
    sentence = (
        f"The replicas of {counted(len(waited), 'experiment')} reserved nothing (class {_BEST_EFFORT}) on a node where processes waited "
        f"for a processor, for up to {percent:.0f}% of the time ({most}): other processes there came before them. "
        "With kubernetes.reserve: {cpu: ...} they have a share of their own."
    )
    return [sentence]


def _absent(analysis: CampaignAnalysis) -> list[str]:
    by_reason: dict[str, dict[str, None]] = {}
    for cell in analysis.cells:
        for name, reason in cell.absent.items():
            if cell.used and name in ALL and not (name in _OF_SEVERAL and cell.replicas == 1):
                by_reason.setdefault(reason, {})[ALL[name].title] = None
    return [f"Not measured: {'; '.join(titles)} ({clipped(reason)})." for reason, titles in by_reason.items()]


def absent_of(experiment: MeasuredRun) -> dict[str, list[str]]:
    """Titles of the figures that one experiment does not give, by reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in experiment.absent.items():
        by_reason.setdefault(reason, []).append(ALL[name].title)
    return by_reason


def remarks(experiment: MeasuredRun) -> list[str]:
    """What the quality check and the figures add, without what the verdict or an absent metric has said."""
    manifest = experiment.data.manifest
    findings = [
        str(finding.get("message"))
        for finding in manifest.findings
        if finding.get("metric") not in manifest.absent_metrics
        and finding.get("message") not in manifest.verdict.reasons
    ]
    return findings + experiment.notes


def _mixed(analysis: CampaignAnalysis) -> list[str]:
    manifests = [experiment.data.manifest for experiment in analysis.experiments]
    sentences = []
    for name, fact in {**MACHINE, **SURROUNDINGS}.items():
        values = list(dict.fromkeys(map(fact, manifests)))
        if len(values) > 1 and name != _DEVICE:
            sentences.append(f"The experiments differ in {name}: {'; '.join(values)}.")
    sentences += [f"The runs of one configuration differ in {what}" for what in unlike_parts(manifests)]
    devices = {gpu.uuid for manifest in manifests for gpu in manifest.gpus}
    most = max((len(manifest.gpus) for manifest in manifests), default=0)
    if len(devices) > most and len(set(map(gpu_names, manifests))) == 1:
        sentences.append(f"The experiments ran on {len(devices)} different devices of the same model.")
    if any(manifest.provenance.software.git_dirty for manifest in manifests):
        sentences.append("The harness had uncommitted changes when it ran.")
    return sentences


def _nature(analysis: CampaignAnalysis) -> list[str]:
    """Who makes the requests, what latency means then, and what the answers are worth."""
    specs = [experiment.data.manifest.experiment.workload for experiment in analysis.experiments]
    workloads = list({workload.name: workload for workload in specs}.values())
    sentences = []
    closed = [workload.name for workload in workloads if workload.scenario is None and workload.server is None]
    by_scenario: dict[ScenarioKind, list[str]] = {}
    for workload in workloads:
        if workload.server is not None:
            ran = " that ran already" if workload.server.url else ""
            sentences.append(
                f"{workload.name} is a server of your own{ran}; each is sent {workload.server.load_in_words()}, and latency is the "
                "client's, from the intended time."
            )
        if workload.scenario is not None:
            by_scenario.setdefault(workload.scenario.kind, []).append(workload.name)
    if closed:
        who = "Every replica" if len(closed) == len(workloads) else f"Every replica of {', '.join(closed)}"
        sentences.append(f"{who} {_CLOSED_LOOP}")
    for kind, names in by_scenario.items():
        how = _OPEN_LOOP if kind in OPEN_LOOP else "come from LoadGen, one query after another."
        sentences.append(f"Requests of {', '.join(names)} (scenario {kind.value}) {how}")
    random = [it.name for it in workloads if it.checkpoint is None and it.target in BUILTIN_WORKLOADS]
    if random:
        whose = ", ".join(random)
        sentences.append(f"Weights are random, from a seed ({whose}): the speed is real, the answers mean nothing.")
    return sentences


def _cell(analysis: CampaignAnalysis, key: ConfigurationKey) -> str:
    mode = key.mode if len({cell.mode for cell in analysis.cells}) > 1 else ""
    return " ".join(filter(None, (key.workload, f"r{key.replicas}", mode, key.condition)))
