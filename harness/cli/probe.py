"""The command about turns: how long a time slice is, and what a switch takes."""

from typing import Annotated

import typer

from harness.cli import output
from harness.cli.options import Json, positive


def register(app: typer.Typer) -> None:
    """Add the command to the tree."""
    app.command(rich_help_panel="Run")(probe)


def probe(
    *,
    sharing: Annotated[
        str | None, typer.Option("--sharing", help="Sharing mode to probe: time-slicing (the default) or mps.")
    ] = None,
    processes: Annotated[
        int, typer.Option("--processes", min=2, max=48, help="Processes that want the GPU at the same time.")
    ] = 2,
    seconds: Annotated[
        float, typer.Option("--seconds", callback=positive, max=60, help="Seconds to watch them for in each repeat.")
    ] = 1.0,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, max=100, help="How often to measure, each time with new processes.")
    ] = 5,
    json: Json = False,
) -> None:
    """Measure how long a turn on this GPU lasts, and what a switch to the next process takes.

    Each process runs one kernel that reads the GPU's clock without pause, and sees the times in which it was taken off.
    """
    from harness.analysis.questions.time_slices import as_document, rows, sentence, time_slices
    from harness.campaign.probe import gpu_to_probe
    from harness.campaign.probe import probe as measure
    from harness.errors import UsageError
    from harness.sharing.modes import ANYWHERE
    from harness.spec import Sharing

    try:
        mode = Sharing(sharing or ANYWHERE.sharing)
    except ValueError:
        raise UsageError(f"There is no sharing mode {sharing!r}.", advice="Probe time-slicing or mps.") from None
    gpu = gpu_to_probe(mode)
    found = time_slices(measure(gpu, mode, processes=processes, seconds=seconds, repeats=repeats, say=output.note))
    if json:
        asked = {"gpu": gpu.name, "sharing": mode.value, "processes": processes, "seconds": seconds, "repeats": repeats}
        output.document(asked | as_document(found))
        return
    output.sentence(sentence(found, processes))
    output.result()
    output.table(["figure", "mean of the repeats", "5th to 95th percentile"], rows(found))
