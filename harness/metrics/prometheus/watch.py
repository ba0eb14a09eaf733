"""Watches a Prometheus server while it records: what it stops seeing is said within seconds, not after the hour.

Ages are taken by the server's own clock, so that a clock that differs here makes no difference. Every
series that was there once is expected to stay; what is missing at the end of the recording is in the rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from harness.errors import NoDataError, PrometheusError, PrometheusUnavailableError
from harness.metrics.catalogue import CATALOGUE, Level, Metric
from harness.metrics.prometheus.adapter import PrometheusServer
from harness.metrics.prometheus.series import Key, key_labels, natural
from harness.metrics.promql import Beside, Dialect, render

_SUBJECT = "metric"
"""Label that the query adds, to tell what a row of the answer belongs to."""
_LARGEST_WINDOW_S = 3600.0

Target = Mapping[str, Any]
"""What the server says of one thing that it scrapes."""
Absence = tuple[Level, Key, str]
"""Level, key and metric of a series that should be there; without a key, the metric as a whole."""


class Watch:
    """What is fresh, what is not, and since when.

    Args:
        server: asked with a short timeout, so that a look never holds the recording up.
        names: of the replicas, the neighbours' among them, by key, for the sentences.
        stale_s: how old a sample may be.
    """

    def __init__(
        self,
        server: PrometheusServer,
        *,
        metrics: Sequence[Metric],
        dialect: Dialect,
        names: Mapping[Key, str],
        stale_s: float,
        beside: Sequence[Beside] = (),
    ) -> None:
        self._server = server
        self._metrics = metrics
        self._dialect = dialect
        self._names = names
        self._stale_s = stale_s
        own = [metric for metric in self._leaders() if metric.level is Level.REPLICA]
        asked = [(dialect, self._leaders()), *((one.dialect, own) for one in beside)]
        self._query = " or ".join(self._age(metric, where) for where, metrics in asked for metric in metrics)
        self._expected: dict[str, set[Key]] = {
            metric.name: set(names) if metric.level is Level.REPLICA else set() for metric in self._leaders()
        }
        self._missing: dict[Absence, float] = {}
        self._away_since_s: float | None = None
        self._started_at: str | None = None
        self._looked = False

    def poll(self, now_s: float) -> list[str]:
        """Look once; sentences for what is different from the last look, each with its time."""
        try:
            ages = self._ages()
            restarted = list(self._restart())
        except PrometheusError as error:  # also one that knows us no more: a token may have ended
            if self._away_since_s is not None:
                return []
            self._away_since_s = now_s
            return [f"{_clock(now_s)} {error.message}"]
        sentences = [f"{_clock(now_s)} {text}" for text in (*self._returned(now_s), *restarted)]
        gone = self._gone(ages)
        back = {absence: self._missing.pop(absence) for absence in self._missing.keys() - gone}
        new = gone - self._missing.keys()
        self._missing |= dict.fromkeys(new, now_s)
        sentences += [
            f"{_clock(now_s)} {what} is there again after {now_s - min(back.values()):.0f} s."
            for what in self._described(back.keys())
        ]
        sentences += [
            f"{_clock(now_s)} {self._server} has no sample of {what} {self._since()}." for what in self._described(new)
        ]
        sentences += [f"{_clock(now_s)} {why}." for why in self._why(new)]
        self._looked = True
        return sentences

    def _since(self) -> str:
        return f"from the last {self._stale_s:g} s" if self._looked else "at the beginning of the recording"

    def _why(self, absences: Iterable[Absence]) -> Iterator[str]:
        """What the server says of the replicas among them."""
        replicas = sorted({key[0] for level, key, _ in absences if level is Level.REPLICA and key})
        why = why_unseen(self._server, self._dialect.by, replicas) if replicas else ""
        if why:
            yield why

    def _returned(self, now_s: float) -> Iterator[str]:
        if self._away_since_s is not None:
            yield f"{self._server} answers again after {now_s - self._away_since_s:.0f} s."
            self._away_since_s = None

    def _restart(self) -> Iterator[str]:
        """A sentence when the server is not the process that it was."""
        try:
            started_at = str(self._server.read("status/runtimeinfo")["startTime"])
        except PrometheusUnavailableError:
            raise
        except (PrometheusError, KeyError, TypeError):
            return  # a store in front of several servers does not say when it was started
        if self._started_at not in {None, started_at}:
            yield f"{self._server} was restarted at {started_at}: what it did not scrape meanwhile is missing."
        self._started_at = started_at

    def _ages(self) -> dict[str, dict[Key, float]]:
        """Seconds since the newest sample, by metric and key."""
        try:
            answer = self._server.query(self._query)
        except NoDataError:
            return {}
        labels = {metric.name: key_labels(metric, self._dialect) for metric in self._leaders()}
        ages: dict[str, dict[Key, float]] = defaultdict(dict)
        for series in answer.series:
            metric = series.labels[_SUBJECT]
            key = tuple(series.labels.get(label, "") for label in labels[metric])
            ages[metric][key] = float(series.values[-1])
        return ages

    def _gone(self, ages: Mapping[str, Mapping[Key, float]]) -> set[Absence]:
        """Everything that has no fresh sample and should have."""
        gone: set[Absence] = set()
        for leader in self._leaders():
            expected = self._expected[leader.name]
            fresh = {key for key, age_s in ages.get(leader.name, {}).items() if age_s <= self._stale_s}
            expected |= fresh
            # A metric that no device or node ever had has no key to be missed under.
            gone |= {(leader.level, key, leader.name) for key in (expected - fresh if expected else {()})}
        return gone

    def _described(self, absences: Iterable[Absence]) -> Iterator[str]:
        """One phrase for each replica, device or node, with the metrics that are concerned."""
        metrics: dict[tuple[Level, Key], list[str]] = defaultdict(list)
        for level, key, metric in sorted(absences, key=lambda absence: (absence[0], natural(absence[1]))):
            metrics[level, key].append(metric)
        for (level, key), names in metrics.items():
            label = " ".join(part for part in key if part)
            who = f"{self._names.get(key, 'replica')} ({label})" if level is Level.REPLICA else f"{level.value} {label}"
            yield f"{', '.join(sorted(map(self._raw_name, names)))} of {who if label else f'any {level.value}'}"

    def _raw_name(self, metric: str) -> str:
        return render(CATALOGUE[metric], self._dialect, _LARGEST_WINDOW_S).raw.partition("{")[0]

    def _leaders(self) -> list[Metric]:
        """One metric of each selector: several metrics come from the same samples."""
        by_raw: dict[str, Metric] = {}
        for metric in self._metrics:
            by_raw.setdefault(render(metric, self._dialect, _LARGEST_WINDOW_S).raw, metric)
        return list(by_raw.values())

    def _age(self, metric: Metric, dialect: Dialect) -> str:
        raw = render(metric, dialect, _LARGEST_WINDOW_S).raw
        by = ", ".join(key_labels(metric, self._dialect))
        return f'label_replace(time() - max by ({by}) (timestamp({raw})), "{_SUBJECT}", "{metric.name}", "", "")'


def _clock(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%H:%M:%SZ")


def active(server: PrometheusServer) -> list[Target]:
    """Everything that the server scrapes. Raises PrometheusError."""
    return list(server.read("targets", state="active")["activeTargets"])


def last_error(target: Target) -> str:
    """Why it is down."""
    return str(target.get("lastError") or "it does not say why")


def twice(server: PrometheusServer, label: str, replicas: Collection[str]) -> str:
    """Which replica the server scrapes more than once, so that whatever is summed is too high; empty: none, or it does not tell."""
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
    """What keeps the server from seeing some of these replicas; empty when its targets do not tell."""
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
