"""Commands about the node, below `harness node`: provision, sharing, verify, reboot-test, offline-list."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from harness.cli import output
from harness.cli.options import Json, not_negative, positive
from harness.errors import NodeError, UsageError, duration

if TYPE_CHECKING:
    from harness.node.events import RunSummary
    from harness.node.runner import RunRequest
    from harness.node.verify import NodeVerdict

Inventory = Annotated[
    Path | None, Option("--inventory", "-i", help="Inventory file or folder; default: the project's own.")
]
Limit = Annotated[str, Option("--limit", "-l", help="Hosts to work on, as Ansible names them; default: all.")]
Check = Annotated[bool, Option("--check", help="Change nothing; show what would change.")]
Timeout = Annotated[float | None, Option("--timeout", callback=positive, help="Stop after this many seconds.")]
AskPassword = Annotated[bool, Option("--ask-become-pass", "-K", help="Ask for sudo's password; kept in memory.")]
Wait = Annotated[
    float, Option("--wait", callback=not_negative, help="Seconds to judge again while something still fails.")
]


def provision(
    *,
    inventory: Inventory = None,
    limit: Limit = "",
    tags: Annotated[list[str] | None, Option("--tags", "-t", help="Only these roles; repeatable.")] = None,
    check: Check = False,
    timeout: Timeout = None,
    ask_become_pass: AskPassword = False,
    json: Json = False,
) -> None:
    """Make the nodes of the inventory: run site.yml, with progress, and show seconds and tasks per role."""
    from harness.node.runner import RunRequest

    request = RunRequest(
        Path("site.yml"), inventory=inventory, limit=limit, tags=tags or (), check=check, timeout_s=timeout
    )
    _play(request, ask=ask_become_pass, json=json)


def sharing(
    mode: Annotated[
        str,
        Argument(
            help="How pods share the GPUs: exclusive, time-slicing or mps; NODE=MODE for one node, by its name in the cluster."
        ),
    ],
    *,
    replicas: Annotated[
        int | None, Option(min=2, max=100, help="Slices of each GPU; default: the inventory's.")
    ] = None,
    mig: Annotated[
        str | None, Option(help="Divide each GPU into these instances before, e.g. 3g.71gb,2g.35gb,1g.18gb.")
    ] = None,
    forced: Annotated[
        bool, Option("--forced", help="Switch although pods that hold a GPU run; their kernels fail.")
    ] = False,
    inventory: Inventory = None,
    check: Check = False,
    timeout: Timeout = None,
    ask_become_pass: AskPassword = False,
    json: Json = False,
) -> None:
    """Switch how pods share the GPUs, and wait until the nodes advertise it. The inventory says what lasts.

    Nothing is changed while a pod holds a GPU. What site.yml sets up again is device_plugin_sharing in
    inventory/group_vars/all/gpu.yml. MIG instances of one profile count as GPUs; of several, each profile has a
    resource name of its own.
    """
    import difflib

    from harness.node.runner import RunRequest
    from harness.sharing.modes import LENT

    node, _, mode = mode.rpartition("=")
    modes = {known.sharing.value: known for known in LENT}
    if mode not in modes:
        close = difflib.get_close_matches(mode, modes, n=1)
        hint = f"Did you mean {close[0]}?" if close else f"Use one of: {', '.join(modes)}; --mig makes MIG instances."
        raise UsageError(f"{mode!r} is not a mode that GPUs can be switched to.", advice=hint)
    lent = modes[mode]
    if not lent.shares_gpu and replicas is not None:
        raise UsageError(f"{mode} has one slice for each GPU.", advice="Leave --replicas out.")
    variables: dict[str, object] = {"device_plugin_sharing": mode, "device_plugin_forced": forced}
    if node:
        way = mode if replicas is None else f"{mode}:{replicas}"
        variables = {"device_plugin_sharing_of": {node: way}, "device_plugin_forced": forced}
        if mig is not None:
            raise UsageError(
                "--mig divides the GPUs of every node.",
                advice="Set device_plugin_mig_profiles beside the node in the inventory.",
            )
    elif replicas is not None:
        variables["device_plugin_replicas"] = replicas
    if mig is not None:
        if lent.concurrent:
            raise UsageError(
                "MPS is not supported on MIG instances.", advice="Share them by time-slicing, or exclusively."
            )
        profiles = [profile.strip() for profile in mig.split(",")]
        if not all(profiles):
            raise UsageError(f"--mig {mig!r} has an empty profile in it.", advice="See: nvidia-smi mig -lgip")
        variables["device_plugin_mig_profiles"] = profiles
        variables["device_plugin_mig_strategy"] = "single" if len(set(profiles)) == 1 else "mixed"
    request = RunRequest(
        Path("playbooks/sharing.yml"), inventory=inventory, check=check, variables=variables, timeout_s=timeout
    )
    _play(request, ask=ask_become_pass, json=json)


def verify(
    *,
    inventory: Inventory = None,
    limit: Limit = "",
    only: Annotated[list[str] | None, Option(help="Only checks of this area (swap, crio...); repeatable.")] = None,
    wait: Wait = 0.0,
    json: Json = False,
) -> None:
    """Judge a node: one verdict with what was expected, found and is to be done; the same before and after a reboot.

    The JSON document is the verdict {ok, host, boot_id, checked_at, checks, not_applicable, others}; `others` holds
    the verdicts on further nodes, and `ok` is true when all are.
    """
    from harness.node.runner import find_project
    from harness.node.verify import VerifyRequest
    from harness.node.verify import verify as judge

    request = VerifyRequest(inventory=inventory, limit=limit, areas=only or (), wait_s=wait)
    verdicts = judge(find_project(), request)
    if json:
        first, *others = (verdict.to_dict() for verdict in verdicts)
        output.document({**first, "ok": all(verdict.ok for verdict in verdicts), "others": others})
    else:
        for verdict in verdicts:
            _print_verdict(verdict)
    if failed := [f"{verdict.host} {check.name}" for verdict in verdicts for check in verdict.failed]:
        raise NodeError(f"{len(failed)} checks failed: {', '.join(failed)}.", advice="Each says above what to do.")


def reboot_test(
    *,
    inventory: Inventory = None,
    limit: Limit = "",
    wait: Wait = 600.0,
    before: Annotated[Path | None, Option(help="Judge and save the state in this file, to reboot by hand.")] = None,
    after: Annotated[Path | None, Option(help="The second half: compare with this file.")] = None,
    ask_become_pass: AskPassword = False,
    json: Json = False,
) -> None:
    """Prove that the nodes survive a reboot: judge, reboot, judge again, converge again with nothing changed."""
    from harness.cli.progress import task_listener
    from harness.node.runner import find_project
    from harness.node.verify import RebootTest, VerifyRequest

    if before and after:
        raise UsageError("--before and --after are the two halves of one test.", advice="Give one of them.")
    request = VerifyRequest(inventory=inventory, limit=limit, wait_s=wait)
    password = _password(ask=ask_become_pass)
    project = find_project()
    with task_listener() as listener:
        test = RebootTest(project, request, listener, output.note, password)
        if before:
            test.save_state(before)
            output.result(f"{before} written. Reboot, then: harness node reboot-test --after {before}")
            return
        report = test.compare_state(after) if after else test.run()
    if json:
        output.document(report.to_dict())
    else:
        output.sentences(report.problems)
    if not report.ok:
        raise NodeError(
            f"The node did not survive the reboot: {report.problems[0]}", advice="All problems are listed above."
        )
    if not json:
        rebooted = f"rebooted in {report.reboot_s:.0f} s, " if report.reboot_s is not None else ""
        changed = f"{report.converge.changed} changed by converging again"
        output.result(f"{rebooted}well after {report.recovery_s:.0f} s more, {changed}.")


def offline_list(
    *,
    inventory: Inventory = None,
    fetch: Annotated[
        Path | None, Option(help="Fetch all of it into this folder, checked; continues where it was.")
    ] = None,
    only: Annotated[list[str] | None, Option(help="Only packages, files, images or requirements; repeatable.")] = None,
    json: Json = False,
) -> None:
    """List everything that site.yml fetches: packages, files with sha256, images, Python requirements; fetch it for use without internet."""
    from harness.node.offline import collect
    from harness.node.runner import find_project

    wanted = collect(find_project(), inventory=inventory, kinds=only or ())
    if fetch is not None:
        from harness.node.offline import fetch_all

        fetch_all(wanted, fetch, say=output.note)
    if json:
        output.document(asdict(wanted))
    else:
        for line in wanted.lines():
            output.result(line)


def _password(*, ask: bool) -> str | None:
    return typer.prompt("sudo password", hide_input=True, err=True) if ask else None


def _play(request: RunRequest, *, ask: bool, json: bool) -> None:
    """Run a playbook with progress, and say what it did. Raises NodeError where it did not end well."""
    from harness.cli.progress import task_listener
    from harness.errors import PlaybookError
    from harness.node.runner import NodeRunner, find_project

    project, password = find_project(), _password(ask=ask)
    with task_listener() as listener:
        summary = NodeRunner(project, listener=listener, become_password=password).run(request)
    if json:
        output.document(summary.to_dict())
    elif summary.roles or summary.failures:
        _print_summary(summary)
    summary.require_ok()
    if not summary.roles:
        raise PlaybookError(
            f"Nothing was done: {request.playbook} found no host"
            f"{f' that matches {request.limit}' if request.limit else ''} or no task to run.",
            advice="Name the machine under `control_plane` or `workers` in the inventory; check --limit and --tags.",
        )


def _print_summary(summary: RunSummary) -> None:
    rows = [[role.role, role.tasks, role.changed, f"{role.duration_s:.1f}"] for role in summary.roles]
    total = [sum(role.tasks for role in summary.roles), summary.changed, f"{summary.duration_s:.1f}"]
    output.table(["role", "tasks", "changed", "seconds"], [*rows, ["total", *total]])
    output.result()
    for record in summary.failures:
        output.result(f"{record.host} {record.role}: {record.task} ({record.path})")
        for line in record.error.splitlines():
            output.result(f"  | {line}")
    what = "would change" if summary.check_mode else "changed"
    output.result(f"{summary.status.value}: {summary.changed} {what}, {duration(summary.duration_s)}.")


def _print_verdict(verdict: NodeVerdict) -> None:
    output.result(f"{verdict.host} (boot {verdict.boot_id})")
    rows = [["ok" if check.ok else "NO", check.name, "" if check.ok else check.found] for check in verdict.checks]
    output.table(
        ["", "check", "found"], [*rows, *(["--", check.name, check.reason] for check in verdict.not_applicable)]
    )
    output.result()
    for check in verdict.failed:
        output.sentence(str(check))
    output.result(f"{len(verdict.checks) - len(verdict.failed)} of {len(verdict.checks)} checks passed.")
