"""The tables of ``replica_energy``: each way's shares against the truth, of energy and of SM activity."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Phase = Mapping[str, Any]
LIMIT = 0.10


def print_tables(results: Mapping[str, Any]) -> None:
    phases = results["phases"]
    if others := results["gpu"].get("processes"):
        print(
            f"DISTURBED: processes {others} computed on the GPU, too: no energy and no SM activity below is that of the loads"
        )
    idle_w = {phase["mode"]: phase["energy_j"] / phase["seconds"] for phase in phases if phase["name"] == "idle"}
    print("idle: " + ", ".join(f"{mode} {watts:.1f} W" for mode, watts in idle_w.items()))
    solo = solo_figures(phases, idle_w)
    for name, facts in solo.items():
        print(f"alone {name[0]} x{name[1]}: " + ", ".join(f"{key} {_shown(value)}" for key, value in facts.items()))
    said = {
        (phase["mode"], name, rows)
        for phase in phases
        for name, rows in phase["process_samples"].items()
        if isinstance(rows, str)
    }
    for mode, name, problem in sorted(said):
        print(f"{mode}: {name}: {problem}")
    _print_devices(phases, idle_w)
    errors: dict[tuple[str, str], dict[str, float | None]] = {}
    fits = mix_truth(phases, idle_w)
    print(f"mix: joules of a unit in company {fits}")
    for phase in phases:
        truth = true_shares(phase, fits)
        if truth is None:
            continue
        weighed = weights(phase, solo)
        errors[phase["mode"], phase["name"]] = {name: worst(of, truth) for name, of in weighed.items()}
    _print_errors("Worst error of a replica's share, % (of energy above idle, and of SM activity)", errors)
    _print_errors("Worst error of the time with kernels on the GPU, absolute shares, %", activity(phases, solo))


def solo_figures(phases: Sequence[Phase], idle_w: Mapping[str, float]) -> dict[tuple[str, int], dict[str, float]]:
    """Of one request alone, by kind and units: joules above idle, milliseconds between events, of kernels, SM-milliseconds."""
    figures: dict[tuple[str, int], dict[str, float]] = {}
    for phase in phases:
        if not phase["name"].startswith("alone"):
            continue
        replica = phase["replicas"][0]
        requests = max(replica["requests"], 1)
        above_j = phase["energy_j"] - idle_w.get(phase["mode"], 0.0) * phase["seconds"]
        facts = {"joules": above_j / requests, "event_ms": replica["span_ms"] / requests}
        if isinstance(phase["gpm"], dict):
            facts["sm_ms"] = phase["gpm"]["sm_percent"] / 100 * phase["seconds"] * 1e3 / requests
        trace = replica.get("trace")
        if trace and trace["requests"]:
            facts["busy_ms"] = trace["busy_us"] / 1e3 / trace["requests"]
            facts["kernel_ms"] = kernel_ms(trace, by_sm=False)
        figures[replica["kind"], replica["units"]] = facts
    return figures


def kernel_ms(trace: Mapping[str, Any], *, by_sm: bool) -> float:
    """Of a request: calls times the median, which a kernel that was put aside for another process does not move."""
    total = sum(
        kernel["count"] * kernel["median_us"] * (min(kernel["blocks_per_sm"], 1.0) if by_sm else 1.0)
        for kernel in trace["kernels"]
    )
    return float(total / 1e3 / trace["requests"])


def mix_truth(phases: Sequence[Phase], idle_w: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """By mode, joules above idle of a unit of each kind beside the other: a fit to four pairs of rates."""
    fits = {}
    for mode in idle_w:
        mixes = [phase for phase in phases if phase["mode"] == mode and phase["name"].startswith("mix")]
        if len(mixes) < 3:
            continue
        kinds = sorted({replica["kind"] for replica in mixes[0]["replicas"]})
        counts = np.array([[_units(phase, kind) for kind in kinds] for phase in mixes], dtype=float)
        above = np.array([phase["energy_j"] - idle_w[mode] * phase["seconds"] for phase in mixes])
        fit, *_ = np.linalg.lstsq(counts, above, rcond=None)
        fits[mode] = {kind: float(joules) for kind, joules in zip(kinds, fit, strict=True)}
        fits[mode]["residual"] = float(np.abs(counts @ fit / above - 1).max())
    return fits


def _units(phase: Phase, kind: str) -> int:
    return sum(it["requests"] * it["units"] for it in phase["replicas"] if it and it["kind"] == kind)


def true_shares(phase: Phase, fits: Mapping[str, Mapping[str, float]]) -> list[float] | None:
    """Of the work: of units where they are the same for all, of the fitted energy in the mix."""
    replicas = phase["replicas"]
    if None in replicas or (phase["name"].startswith("mix") and phase["mode"] not in fits):
        return None
    kinds = {replica["kind"] for replica in replicas}
    joules = fits[phase["mode"]] if len(kinds) > 1 else dict.fromkeys(kinds, 1.0)
    return shares([replica["requests"] * replica["units"] * joules[replica["kind"]] for replica in replicas])


def shares(weights: Sequence[float | None]) -> list[float] | None:
    known = [weight for weight in weights if weight is not None]
    if len(known) < len(weights) or sum(known) <= 0:
        return None
    return [weight / sum(known) for weight in known]


def weights(phase: Phase, solo: Mapping[tuple[str, int], Mapping[str, float]]) -> dict[str, list[float | None]]:
    """Of each replica by every way; None: it tells nothing of this replica."""
    replicas, pids = phase["replicas"], phase["pids"]

    def alone(figure: str) -> list[float | None]:
        of = [solo.get((it["kind"], it["units"]), {}).get(figure) for it in replicas]
        return [None if value is None else value * it["requests"] for value, it in zip(of, replicas, strict=True)]

    def traced(of: Any) -> list[float | None]:
        return [of(it["trace"], it) if it.get("trace", {}).get("requests") else None for it in replicas]

    return {
        "requests": [float(it["requests"]) for it in replicas],
        "nvml": [utilization(phase, "nvml", pid) for pid in pids],
        "nvml info": [utilization(phase, "nvml_info", pid) for pid in pids],
        "events": [it["span_ms"] for it in replicas],
        "median event": [it["requests"] * (it["median_ms"] or 0.0) for it in replicas],
        "traced busy": traced(lambda trace, _: trace["busy_us"] / 1e6 / trace["seconds"]),
        "kernel sum": traced(
            lambda trace, it: sum(k["sum_us"] for k in trace["kernels"]) / trace["requests"] * it["requests"]
        ),
        "kernel median": traced(lambda trace, it: kernel_ms(trace, by_sm=False) * it["requests"]),
        "kernel low": traced(
            lambda trace, it: (
                sum(k["count"] * k["low_us"] for k in trace["kernels"]) / trace["requests"] * it["requests"]
            )
        ),
        "kernel median x SMs": traced(lambda trace, it: kernel_ms(trace, by_sm=True) * it["requests"]),
        "alone J": alone("joules"),
        "alone event": alone("event_ms"),
        "alone kernels": alone("kernel_ms"),
        "alone SM": alone("sm_ms"),
    }


def utilization(phase: Phase, name: str, pid: int) -> float | None:
    """Mean SM share of a process in percent over the samples of the phase; None where the driver tells nothing of it."""
    rows = phase["process_samples"].get(name)
    if not isinstance(rows, list):
        return None
    begin_us, end_us = phase["first"]["wall_us"], phase["last"]["wall_us"]
    of = sorted((row[1], row[2]) for row in rows if row[0] == pid and row[1] <= end_us)
    total = sum(
        percent * (time_us - max(before_us, begin_us))
        for (before_us, _), (time_us, percent) in itertools.pairwise(of)
        if time_us > begin_us
    )
    covered = (of[-1][0] - max(of[0][0], begin_us)) if of else 0
    return total / covered if covered > 0 else None


def worst(estimate: Sequence[float | None], truth: Sequence[float]) -> float | None:
    of = shares(estimate)
    return None if of is None else max(abs(a / b - 1) for a, b in zip(of, truth, strict=True) if b > 0)


def activity(
    phases: Sequence[Phase], solo: Mapping[tuple[str, int], Mapping[str, float]]
) -> dict[tuple[str, str], dict[str, float | None]]:
    """Time with kernels, as a share of the window, against units times the kernels' time of one alone."""
    errors: dict[tuple[str, str], dict[str, float | None]] = {}
    for phase in phases:
        replicas, window_ms = phase["replicas"], phase["seconds"] * 1e3
        if None in replicas or not replicas:
            continue
        of_unit = [solo.get((it["kind"], 1), {}) for it in replicas]
        if not all("busy_ms" in facts and it["requests"] for facts, it in zip(of_unit, replicas, strict=True)):
            continue
        truth = [
            it["requests"] * it["units"] * facts["busy_ms"] / window_ms
            for it, facts in zip(replicas, of_unit, strict=True)
        ]
        weighed = weights(phase, solo)
        absolute = {
            "nvml": [None if value is None else value / 100 for value in weighed["nvml"]],
            "nvml info": [None if value is None else value / 100 for value in weighed["nvml info"]],
            "events": [value and value / window_ms for value in weighed["events"]],
            "traced busy": weighed["traced busy"],
            "kernel median": [value and value / window_ms for value in weighed["kernel median"]],
        }
        row = {name: _worst_absolute(of, truth) for name, of in absolute.items()}
        if isinstance(phase["gpm"], dict) and all("sm_ms" in facts for facts in of_unit):
            parts = sum(
                it["requests"] * it["units"] * facts["sm_ms"] for it, facts in zip(replicas, of_unit, strict=True)
            )
            row["sum of SM alone / device"] = parts / (phase["gpm"]["sm_percent"] / 100 * window_ms) - 1
        errors[phase["mode"], phase["name"]] = row
    return errors


def _worst_absolute(estimate: Sequence[float | None], truth: Sequence[float]) -> float | None:
    if None in estimate:
        return None
    return max(abs((a or 0.0) / b - 1) for a, b in zip(estimate, truth, strict=True))


def _print_devices(phases: Sequence[Phase], idle_w: Mapping[str, float]) -> None:
    print("\nmode, phase: W, requests, J above idle per unit, SM %, DRAM %")
    for phase in phases:
        replicas = [replica for replica in phase["replicas"] if replica]
        counts = [replica["requests"] for replica in replicas]
        units = sum(replica["requests"] * replica["units"] for replica in replicas)
        watts = phase["energy_j"] / phase["seconds"]
        above = (watts - idle_w.get(phase["mode"], 0.0)) * phase["seconds"] / units if units else None
        gpm = phase["gpm"] if isinstance(phase["gpm"], dict) else {}
        row = [f"{watts:.1f}", counts, _shown(above), *(_shown(value) for value in gpm.values())]
        print(f"{phase['mode']:13} {phase['name']:20}", *row, phase.get("trace_problem", ""))


def _print_errors(title: str, errors: Mapping[tuple[str, str], Mapping[str, float | None]]) -> None:
    print(f"\n{title}")
    if not errors:
        print("nothing to compare")
        return
    names = list(dict.fromkeys(name for row in errors.values() for name in row))
    width = 9
    heads = [name.split() for name in names]
    for line in range(max(len(head) for head in heads)):
        cells = [(head[line] if line < len(head) else "")[:width].rjust(width) for head in heads]
        print(" " * 34 + " ".join(cells))
    for (mode, phase), row in errors.items():
        cells = [_percent(row.get(name)).rjust(width) for name in names]
        print(f"{mode:13} {phase:20}" + " ".join(cells))


def _percent(error: float | None) -> str:
    if error is None:
        return "-"
    return f"{100 * error:.1f}{'' if abs(error) <= LIMIT else '!'}"


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
