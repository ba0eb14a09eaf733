"""The command ``harness``: parse, call, print. Heavy imports live inside the commands.

Only the command that is called is made: typer compiles its options, which takes as long as the rest of a start.
"""

from __future__ import annotations

import errno
import functools
import inspect
import os
import re
import sys
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info, get_command_name
from typer.models import CommandInfo

from harness import __version__
from harness.cli import campaign, node, output, profile, publishing, results
from harness.errors import EXIT_CODES, BackendError, HarnessError, UsageError
from harness.extras import advice_on

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter, Parameter

_PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Start here": (campaign.init, campaign.validate, campaign.plan, campaign.doctor),
    "Run": (campaign.run, campaign.resume, campaign.status, profile.profile),
    "Results": (results.verify, results.report, results.compare, publishing.publish, publishing.reproduce),
    "Node and cluster": (node.provision, node.sharing, node.verify, node.reboot_test, node.offline_list),
    "Advanced": (results.export, publishing.scenarios, campaign.schema, profile.probe),
}
_NODE = "node"
"""The command below which those of the node stand."""
MOVED = {
    "stress": "run",
    "verify-node": "node verify",
    **{name: f"node {name}" for name in ("provision", "sharing", "reboot-test", "offline-list")},
}
"""By the name of a command before 1.0, which works for one release: its name now."""
_NOTHING_GIVEN = re.compile(r"--[a-z-]+=")
_WHOLE = 1000
"""Characters that the help may show of what a command does: all."""
_EXAMPLES = {
    "FILE_OR_NAME": "quickstart",
    "ARCHIVE": "CAMPAIGN.tar.xz",
    "file": "mine.yaml",
    "mode": "mps --replicas 4",
    "out": "exported",
    "workload": "resnet50",
}
"""Of what a command needs, by the name in its usage; everything else is a campaign's folder."""
_SIGN = "Sign the archive itself, with minisign, gpg or cosign, and check that signature before the archive is read."
_IN_FILE = "It is a key of the campaign file: write that with `harness profile ... --write FILE`, edit it, and run it."
REMOVED = {
    "archive": "Take a snapshot of Prometheus (its API admin/tsdb/snapshot); a Prometheus on it serves `harness export --from`.",
    "leaderboard": "`harness status DIR` prints one table of all campaigns in a folder, `harness compare` says what a difference is worth.",
    **{f"profile --{option}": _IN_FILE for option in ("name", "seed", "threads", "timeout-s", "warmup-requests")},
    "publish --sign": _SIGN,
    "verify --signed-by": _SIGN,
    "verify-node --profile": "Run kube-bench (https://github.com/aquasecurity/kube-bench) on the node: --benchmark cis-1.12",
}
"""By command and option: what to use instead of what this version has no more."""


class _Commands(UserDict[str, "Command | CommandInfo | typer.Typer"]):
    """Commands by their names, each made when it is first looked at."""

    def __getitem__(self, name: str) -> Command:
        command = super().__getitem__(name)
        if isinstance(command, CommandInfo):
            command = self[name] = get_command_from_info(command, pretty_exceptions_short=False, rich_markup_mode=None)
        elif isinstance(command, typer.Typer):
            command = self[name] = typer.main.get_group(command)
        return command


class _Panels(TyperGroup):
    """Help that lists the commands by their panel, none cut short; rich does so, and takes longer to load than to read."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        below = f"{_NODE} " if settings["name"] == _NODE else ""
        self._infos = {name.removeprefix(below): info for name, info in listed().items() if name.startswith(below)}
        made = {name: info for name, info in self._infos.items() if " " not in name}
        self.commands = _Commands(made if below else made | {_NODE: node_app})  # type: ignore[assignment] # no commands yet

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """Write a section for each panel, in the order of their first commands."""
        panels: dict[str, list[tuple[str, str]]] = {}
        width = max(map(len, self._infos))
        for name, info in self._infos.items():
            short = TyperCommand(name, help=inspect.getdoc(info.callback)).get_short_help_str(_WHOLE)
            panels.setdefault(str(info.rich_help_panel), []).append((name.ljust(width), short))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)

    def get_params(self, ctx: Context) -> list[Parameter]:
        """Options of all commands, those of typer among them: a flag that is not given is False, where typer loads pydantic to make it of None."""
        params = super().get_params(ctx)
        for flag in params:
            flag.default = flag.default or False
        return params

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Refuse what is empty or gone (UsageError): a path of no characters is the folder where one stands, which nobody means."""
        if not ctx.resilient_parsing:
            _refuse_removed(args)
        if args and args[0] in MOVED and ctx.parent is None:
            now = MOVED[args[0]]
            if not ctx.resilient_parsing:
                output.note(f"note: harness {args[0]} is now: harness {now}")
            args = [*now.split(), *args[1:]]
        empty = next((place for place, word in enumerate(args) if word == "" or _NOTHING_GIVEN.fullmatch(word)), None)
        if empty is not None and not ctx.resilient_parsing:
            which = args[empty].rstrip("=") or next(iter(args[empty - 1 : empty]), "harness")
            after = "" if args[empty] else "what follows "
            raise UsageError(
                f"{after}{which} is empty.", advice="Is a variable of the shell unset? Leave it out, or give it."
            )
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Context) -> Any:
        """Run a command. One that is called without what it needs says what that is (UsageError), one called with what cannot be says why."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            if error.message:
                error.message = _plain(error.message)
                raise
            if error.param is None or error.ctx is None:
                raise
            name = error.param.metavar or error.param.name or ""
            help_text = getattr(error.param, "help", "") or ""
            choices = " ".join((error.param.get_missing_message(error.ctx) or "").split())
            command = error.ctx.command_path
            example = f"{command} {_EXAMPLES.get(name) or _newest_campaign()}"
            advice = f"{choices}{'. ' * bool(choices)}For instance: {example}"
            raise UsageError(f"{command} needs {name}: {help_text}", advice=advice) from error


def _refuse_removed(args: list[str]) -> None:
    command = next((word for word in args if not word.startswith("-")), "")
    options = {word.partition("=")[0] for word in args}
    for removed, advice in REMOVED.items():
        name, *gone = removed.split()
        if name == command and options.issuperset(gone):
            raise UsageError(f"harness {removed} was removed.", advice=advice)


def _plain(message: str) -> str:
    """What typer says of a value, in our words, with the choice that was probably meant."""
    import difflib

    from harness.spec.model import in_words

    given, *choices = re.findall(r"'([^']+)'", message) or [""]
    close = difflib.get_close_matches(given, choices, n=1, cutoff=0.5)
    return f"{in_words(message)}.{f' Did you mean {close[0]}?' if close else ''}"


def _newest_campaign() -> str:
    """A folder that the reader may have meant."""
    campaigns = [path for path in Path("results").glob("*") if (path / "campaign.yaml").is_file()]
    return str(max(campaigns, key=lambda path: path.stat().st_mtime, default=Path("results/CAMPAIGN")))


_LOOKS: Any = {
    "cls": _Panels,
    "no_args_is_help": True,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
commands = typer.Typer()
node_app = typer.Typer(
    name=_NODE,
    help="Make nodes, judge them, and switch how pods share their GPUs.",
    epilog="Exit codes: 0 well, 2 wrong command or inventory, 10 the node failed, 130 interrupted.",
    **_LOOKS,
)
app = typer.Typer(
    name="harness",
    help="Find out what sharing a GPU costs, and which sharing mode to use.",
    epilog=f"Exit codes: {' · '.join(f'{code} {meaning}' for code, meaning in EXIT_CODES.items())}.",
    pretty_exceptions_enable=False,
    **_LOOKS,
)


def listed() -> dict[str, CommandInfo]:
    """Every command by its whole name, in the order of the help."""
    return {str(info.name): info for info in commands.registered_commands}


def _version(value: bool) -> None:
    if value:
        output.result(f"harness {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Find out what sharing a GPU costs, and which sharing mode to use."""


for _panel, _functions in _PANELS.items():
    for _function in _functions:
        _name = get_command_name(_function.__name__)
        commands.command(
            f"{_NODE} {_name}" if _function.__module__ == node.__name__ else _name, rich_help_panel=_panel
        )(_function)

READER_LEFT = 128 + 13
"""The exit code where whoever read the answer closed the pipe: that of a program which SIGPIPE ended."""


def main() -> None:
    """Run the command line and exit with the documented code (see harness/errors.py)."""
    os.umask(os.umask(0o022) | 0o022)  # Results are nobody else's to write.
    output.use_json(False)
    output.use_verbose(False)
    output.open_closed_streams()
    output.take_every_sign()
    try:
        _command()(prog_name="harness")
    except HarnessError as error:
        _end(error)
    except RuntimeError as error:
        _end_without_threads(error)
        raise
    except OSError as error:
        _end_without_threads(error)
        if isinstance(error.filename, str) and error.strerror:
            from harness.results.files import storage_error

            _end(storage_error(error, Path(error.filename), "read or write"))
        try:
            output.result()  # a help text may have met a full disk: then this line does, too, and says so
        except HarnessError as full:
            _end(full)
        raise
    except ModuleNotFoundError as error:
        advice = advice_on(error.name or "")
        if not advice:
            raise
        _end(UsageError(f"This needs {error.name}, which is not installed.", advice=advice))
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            sys.exit(READER_LEFT)  # typer's own is 1, an internal error
        raise


@functools.cache
def _command() -> Command:
    return typer.main.get_command(app)


def _end_without_threads(error: RuntimeError | OSError) -> None:
    """End with a sentence where the kernel gives no further thread or process."""
    of_process = isinstance(error, OSError) and error.errno == errno.EAGAIN and error.filename is None
    if not of_process and "can't start new thread" not in str(error):
        return
    from harness.cgroup import Cgroup

    most = Cgroup().limits().pids
    allowed = "" if most is None else f": the cgroup allows {most} (pids.max)"
    advice = "Raise that limit (docker --pids-limit, TasksMax of the unit, ulimit -u). A campaign goes on with: harness resume"
    _end(BackendError(f"No more threads or processes can be started{allowed}.", advice=advice))


def _end(error: HarnessError) -> NoReturn:
    output.error(error)
    sys.exit(error.exit_code)
