"""The commands about one workload alone (a campaign of its settings, written from options) and about the turns of one GPU."""

from __future__ import annotations

import threading
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from harness.cli import output
from harness.cli.options import Json, NoWait, Results, Verbose, positive
from harness.errors import UsageError

KNEE_PRECISION, MEMORY_PRECISION = 0.25, 0.02
_ROWS = 10
_LEAST_STEP_S = 0.1


def profile(
    workload: Annotated[str, Argument(help="A built-in workload, or your own as module:factory.")],
    *,
    batch: Annotated[str, Option(help="Batch sizes, e.g. 1,8,64.")] = "1,8,32",
    precision: Annotated[str, Option(help="fp32, fp16, bf16; several with commas.")] = "fp32",
    execution: Annotated[str, Option(help="eager, compiled, cuda-graph; several with commas.")] = "eager",
    size: Annotated[str, Option(help="Model sizes (option model_size), e.g. small,large.")] = "",
    epochs: Annotated[str, Option(help="Epochs after which training is evaluated; several with commas.")] = "",
    samples: Annotated[str, Option(help="Samples in an epoch; several with commas.")] = "",
    option: Annotated[list[str] | None, Option(help="NAME=VALUE for the workload itself; may be repeated.")] = None,
    repeats: Annotated[int, Option(min=1, max=30, help="How often each setting is measured, in random order.")] = 3,
    seconds: Annotated[float, Option(callback=positive, help="Seconds to measure each setting for.")] = 5.0,
    capacity: Annotated[
        Literal["knee", "memory"] | None,
        Option(
            help="Raise the batch from the smallest of --batch: while throughput grows, or until 85% of the GPU's memory is in use."
        ),
    ] = None,
    most_batch: Annotated[int, Option(min=1, help="Largest batch that --capacity tries.")] = 65536,
    trace: Annotated[
        bool, Option("--trace/--no-trace", help="Trace kernels after each recording, to find the bottleneck.")
    ] = True,
    device: Annotated[Literal["auto", "cpu", "cuda"], Option(help="Device that it runs on.")] = "auto",
    results: Results = Path("results"),
    kubernetes: Annotated[
        Path | None, Option(help="Run on the cluster that this campaign file's section `kubernetes` names.")
    ] = None,
    write: Annotated[Path | None, Option(help="Write the campaign file, a new one, and run nothing.")] = None,
    no_wait: NoWait = False,
    verbose: Verbose = False,  # noqa: ARG001 - output.is_verbose says it
    json: Json = False,  # noqa: ARG001 - output.is_json says it
) -> None:
    """Profile a workload: speed at each setting, the bottleneck, and how far the batch goes.

    This is a campaign like any other, from a file with lists in its workload: `resume`, `report`, `verify` and `compare` take its
    folder. A setting that runs out of memory is recorded as such.
    """
    import yaml

    from harness.campaign.source import given
    from harness.campaign.thresholds import thresholds
    from harness.cli.campaign import run_source
    from harness.results.files import atomic_write

    if bool(epochs) != bool(samples):
        raise UsageError("--epochs and --samples go together: an epoch is so many samples.")
    batches = _numbers("--batch", batch)
    axes: dict[str, list[Any]] = {"precision": _words(precision), "execution": _words(execution)}
    if not capacity:
        axes["batch_size"] = batches
    lists: dict[str, list[Any]] = {
        "model_size": _words(size),
        "epochs": _numbers("--epochs", epochs),
        "samples": _numbers("--samples", samples),
    }
    name = workload.rpartition(":")[0].rpartition(".")[2] or workload
    own = {"name": name.replace("_", "-").lower(), "factory": workload} if ":" in workload else {"name": workload}
    spec: dict[str, Any] = {
        "name": f"profile-{own['name']}",
        "workloads": [
            {
                **own,
                **_several(axes),
                "device": "cuda" if kubernetes and device == "auto" else device,
                "trace": trace,
                "options": _several(lists) | dict(map(_option, option or [])),
            }
        ],
        "replicas": [1],
        "repeats": repeats,
        "order": "random",
        "limits": {"retries": 0},
        **_where(kubernetes, seconds),
    }
    if capacity:
        memory = capacity == "memory"
        spec["stress"] = {
            "load": "batch",
            "first": min(batches, default=1),
            "most": max(most_batch, *batches),
            "precision": MEMORY_PRECISION if memory else KNEE_PRECISION,
            **({"least_gain_percent": 0} if memory else {}),
        }
    text = yaml.safe_dump(spec, sort_keys=False)
    source = given(text)
    if write is not None:
        atomic_write(write, text)
        output.sentence(f"{write} written. Run it with: harness run {write}")
        return
    run_source(source, results, thresholds(None, None, None), no_wait=no_wait)


def probe(
    *,
    sharing: Annotated[str | None, Option(help="Sharing mode to probe: time-slicing (the default) or mps.")] = None,
    processes: Annotated[int, Option(min=2, max=48, help="Processes that want the GPU at the same time.")] = 2,
    seconds: Annotated[
        float, Option(callback=positive, max=60, help="Seconds to watch them for in each repeat.")
    ] = 1.0,
    repeats: Annotated[int, Option(min=1, max=100, help="How often to measure, each time with new processes.")] = 5,
    no_wait: NoWait = False,
    json: Json = False,
) -> None:
    """Measure the time-slice length and the context-switch time of this GPU.

    Each process runs one kernel that reads the GPU's clock without pause, and sees the times in which it was taken off.
    """
    from harness.analysis.questions.time_slices import rows, sentence, time_slices
    from harness.campaign.probe import gpu_to_probe
    from harness.campaign.probe import probe as measure
    from harness.clock import SystemClock
    from harness.host import WAIT_S, DeviceLocks
    from harness.sharing.modes import ANYWHERE
    from harness.spec import Sharing

    try:
        mode = Sharing(sharing or ANYWHERE.sharing)
    except ValueError:
        raise UsageError(f"There is no sharing mode {sharing!r}.", advice="Probe time-slicing or mps.") from None
    gpu = gpu_to_probe(mode)
    lock = DeviceLocks([gpu.uuid])
    lock.take(SystemClock(), threading.Event(), output.note, 0.0 if no_wait else WAIT_S)
    try:
        watched = measure(gpu, mode, processes=processes, seconds=seconds, repeats=repeats, say=output.note)
    finally:
        lock.release()
    measured = time_slices(watched)
    if json:
        settings = {"gpu": gpu.name, "sharing": mode.value, "processes": processes}
        output.document({**settings, "seconds": seconds, "repeats": repeats, **asdict(measured)})
        return
    output.sentence(sentence(measured, processes))
    output.result()
    output.table(["figure", "mean of the repeats", "5th to 95th percentile"], rows(measured))


def _where(kubernetes: Path | None, seconds: float) -> dict[str, Any]:
    """On which machine, and how long."""
    if kubernetes is not None:
        return {"backend": "kubernetes", "kubernetes": _cluster(kubernetes), "timing": {"preset": "short"}}
    step_s = max(round(seconds / _ROWS, 3), _LEAST_STEP_S)
    timing = {"step_s": step_s, "record_s": round(step_s * max(round(seconds / step_s), 1), 6)}
    return {"timing": {**timing, "stabilise_s": 1.0, "cooldown_s": 0.0, "telemetry_interval_s": 0.1}}


def _cluster(file: Path) -> dict[str, Any]:
    from harness.campaign.source import read_source

    cluster = read_source(str(file)).spec.kubernetes
    if cluster is None:
        raise UsageError(
            f"--kubernetes {file}: the campaign file has no section `kubernetes`.",
            advice="Write one with: harness init FILE --for kubernetes",
        )
    return cluster.model_dump(mode="json", exclude_unset=True)


def _several(lists: dict[str, list[Any]]) -> dict[str, Any]:
    """Of each that is not empty the list, an axis, or its one value."""
    return {name: values[0] if len(values) == 1 else values for name, values in lists.items() if values}


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(word) for word in _words(text)]
    except ValueError:
        raise UsageError(f"{option} {text!r} is not a list of whole numbers.", advice=f"E.g. {option} 1,8,64") from None


def _option(text: str) -> tuple[str, str | int | float | bool]:
    import json

    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--option {text!r} is not of the form NAME=VALUE.", advice="E.g. --option model_size=tiny")
    try:
        known = json.loads(value)
    except ValueError:
        known = value
    return name, known if isinstance(known, bool | int | float) else value
