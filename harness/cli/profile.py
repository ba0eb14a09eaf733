"""The command about one workload alone: where its time goes, and how far its batch can be raised."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from harness.cli import output
from harness.cli.options import Json, positive

if TYPE_CHECKING:
    from harness.spec import KubernetesSpec


def register(app: typer.Typer) -> None:
    """Add the command to the tree."""
    app.command(rich_help_panel="Run")(profile)


def profile(
    workload: Annotated[str, typer.Argument(help="A built-in workload, or your own as module:factory.")],
    *,
    batch: Annotated[str, typer.Option("--batch", help="Batch sizes, e.g. 1,8,64.")] = "1,8,32",
    precision: Annotated[str, typer.Option("--precision", help="fp32, fp16, bf16; several with commas.")] = "fp32",
    execution: Annotated[
        str, typer.Option("--execution", help="eager, compiled, cuda-graph; several with commas.")
    ] = "eager",
    size: Annotated[str, typer.Option("--size", help="Model sizes (option model_size), e.g. small,large.")] = "",
    epochs: Annotated[
        str, typer.Option("--epochs", help="Epochs of a training workload, with --samples; several with commas.")
    ] = "",
    samples: Annotated[str, typer.Option("--samples", help="Samples in an epoch; several with commas.")] = "",
    option: Annotated[
        list[str] | None, typer.Option("--option", help="NAME=VALUE for the workload itself; may be repeated.")
    ] = None,
    repeats: Annotated[
        int,
        typer.Option(
            "--repeats", min=1, max=30, help="How often each setting is measured, each time in a new process."
        ),
    ] = 3,
    seconds: Annotated[
        float,
        typer.Option("--seconds", callback=positive, help="Seconds to measure each setting for, after the warm-up."),
    ] = 5.0,
    capacity: Annotated[
        Literal["knee", "memory"] | None,
        typer.Option(
            "--capacity",
            help="Raise the batch: to the knee of the throughput, or until 85 % of the GPU's memory is in use.",
        ),
    ] = None,
    most_batch: Annotated[
        int, typer.Option("--most-batch", min=1, help="Largest batch that --capacity tries.")
    ] = 65536,
    trace: Annotated[
        bool, typer.Option("--trace", help="Keep a kernel trace and a table of the top kernels of each setting.")
    ] = False,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option("--device", help="Device that it runs on.")
    ] = "auto",
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="CPU threads of a process; default: torch's choice.")
    ] = None,
    warmup_requests: Annotated[
        int, typer.Option("--warmup-requests", min=0, help="Requests before the measurement, which do not count.")
    ] = 5,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Seed of the weights, the inputs and the order of the processes.")
    ] = 0,
    timeout_s: Annotated[
        float,
        typer.Option("--timeout-s", callback=positive, help="Seconds after which a process is ended that is not done."),
    ] = 900.0,
    results: Annotated[Path, typer.Option("--results", help="Folder that holds the profiles' folders.")] = Path(
        "results"
    ),
    name: Annotated[
        str, typer.Option("--name", help="Name of the folder; default: from the workload and the time.")
    ] = "",
    kubernetes: Annotated[
        Path | None,
        typer.Option(
            "--kubernetes", help="Measure in a Job of the cluster that this campaign file's section `kubernetes` names."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Profile a workload: speed at each setting, what holds it back, and how far the batch goes.

    Every point is a process of its own, in random order, with telemetry ten times a second beside it. A point that runs out
    of memory, or that this machine cannot run, is recorded as such. harness resume goes on with one that was interrupted.
    """
    import time

    from pydantic import ValidationError

    from harness.campaign.profile import begin, new_plan
    from harness.errors import UsageError
    from harness.results.layout import stamp
    from harness.spec.workload import BUILTIN_WORKLOADS

    cluster = _cluster(kubernetes) if kubernetes else None
    if cluster and cluster.gpus_per_replica and device == "auto":
        device = "cuda"  # the pod holds a GPU: one that cannot use it says so
    own = workload not in BUILTIN_WORKLOADS and ":" in workload
    batches = _numbers("--batch", batch)
    name = name or f"profile-{workload.rpartition(':')[0].rpartition('.')[2] or workload}-{stamp(time.time())}"
    try:
        plan = new_plan(
            name,
            ["harness", *sys.argv[1:]],
            kubernetes=cluster,
            workload={
                "name": "profile",
                "factory" if own else "model": workload,
                "batch_size": min(max(batches, default=1), 4096),
                "device": device,
                "threads": threads,
                "warmup_requests": warmup_requests,
                "seed": seed,
                "options": dict(_option(text) for text in option or []),
            },
            batches=batches,
            precisions=_words(precision),
            executions=_words(execution),
            sizes=_words(size),
            epochs=_numbers("--epochs", epochs),
            samples=_numbers("--samples", samples),
            repeats=repeats,
            seconds=seconds,
            capacity=capacity,
            most_batch=most_batch,
            trace=trace,
            timeout_s=timeout_s,
        )
    except ValidationError as error:
        raise UsageError(_fault(error), advice="See harness profile --help.") from error
    begin(results / name, plan)
    go_on(results / name, json=json)


def go_on(folder: Path, *, json: bool) -> None:
    """Measure what is missing of a profile, write its report and print the answers."""
    from harness.analysis.profile import analyse_profile
    from harness.analysis.profile_report import write_profile_report
    from harness.campaign.profile import Profile
    from harness.campaign.profile_job import ProfileJob
    from harness.errors import CampaignInterruptedError
    from harness.results.profile import read_plan

    where = Profile if read_plan(folder).kubernetes is None else ProfileJob
    try:
        where(folder, output.note).run()
    except KeyboardInterrupt:
        raise CampaignInterruptedError(
            f"The profile was interrupted; what was measured is in {folder}.", advice=f"harness resume {folder}"
        ) from None
    analysis = analyse_profile(folder)
    show(analysis, write_profile_report(analysis), json=json)


def show(analysis: Any, written: Path, *, json: bool) -> None:
    """Print the answers and one line for each setting."""
    from harness.analysis.format import number
    from harness.analysis.profile_report import summary

    if json:
        output.document({**summary(analysis), "report": str(written)})
        return
    output.table(
        ["setting", "inputs/s", "ms/request", "GPU memory %", "SM %", "DRAM %", "what holds it back"],
        [
            [
                each.cell.name,
                *(
                    "-" if (mean := each.mean(figure)) is None else number(scale * mean)
                    for figure, scale in (
                        ("throughput_inputs_per_s", 1.0),
                        ("latency_mean_s", 1e3),
                        ("gpu_memory_peak_percent", 1.0),
                        ("gpu_sm_active_percent", 1.0),
                        ("gpu_dram_active_percent", 1.0),
                    )
                ),
                each.held_back,
            ]
            for each in analysis.cells
        ],
    )
    output.result()
    for each in analysis.cells:
        if each.failure:
            output.sentence(f"{each.cell.name}: {each.failure}")
    for sentence in analysis.answers():
        output.sentence(sentence)
    for reason in dict.fromkeys(reason for each in analysis.measured for reason in each.finding.missing):
        output.sentence(f"missing: {reason}")
    output.result(f"\nreport: {written}")


def _cluster(file: Path) -> "KubernetesSpec":
    from harness.campaign.source import read_source
    from harness.errors import UsageError

    found = read_source(str(file)).spec.kubernetes
    if found is None:
        raise UsageError(
            f"--kubernetes {file}: the campaign file has no section `kubernetes`.",
            advice="Write one with: harness init FILE --for kubernetes",
        )
    return found


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(option: str, text: str) -> list[int]:
    from harness.errors import UsageError

    try:
        return [int(word) for word in _words(text)]
    except ValueError:
        raise UsageError(f"{option} {text!r} is no list of whole numbers.", advice=f"E.g. {option} 1,8,64") from None


def _option(text: str) -> tuple[str, str | int | float | bool]:
    import json

    from harness.errors import UsageError

    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--option {text!r} is not of the form NAME=VALUE.", advice="E.g. --option model_size=tiny")
    try:
        known = json.loads(value)
    except ValueError:
        known = value
    return name, known if isinstance(known, bool | int | float) else value


def _fault(error: Any) -> str:
    """The first thing that pydantic found, as a sentence."""
    from harness.spec.faults import in_words

    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if not isinstance(part, int))
    return f"{where}: {in_words(first)}." if where else f"{in_words(first)}."
