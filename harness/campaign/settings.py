"""What the command line changes in a campaign file: any field by its name (``--set``), and what `harness run` has options of its own for.

The changed text is checked like the file, and kept with the results as the campaign's.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from harness.errors import UsageError
from harness.spec import CampaignSpec, Sharing
from harness.spec.model import nearest
from harness.spec.yaml_tree import read_tree

_BUDGET = re.compile(r"(?P<number>\d+(\.\d+)?) ?(?P<unit>s|m|min|h)?")
_WIDTH = 120


class Setting(NamedTuple):
    """A field of the file by its place, e.g. ``timing.record_s`` or ``workloads.0.batch_size``, and its value.

    ``option``: of the command line, which a fault names.
    """

    place: tuple[str, ...]
    value: Any
    option: str

    @property
    def key(self) -> str:
        """The place as it is written."""
        return ".".join(self.place)


def changes(
    origin: str,
    settings: Sequence[str] = (),
    *,
    workload: str | None = None,
    modes: Sequence[str] = (),
    budget: str | None = None,
    kubernetes: Path | None = None,
) -> Callable[[str], str]:
    """What the options of a command make of the text of a campaign, which ``origin`` names. Raises UsageError."""
    given = [
        *(_cluster(kubernetes) if kubernetes else ()),
        *([_workload(workload)] if workload else ()),
        *([_budget(budget)] if budget else ()),
        *map(_setting, settings),
    ]

    def changed(text: str) -> str:
        of_modes = [_modes(modes, text)] if modes else []
        return with_settings(text, [*of_modes, *given], origin=origin) if of_modes or given else text

    return changed


def _setting(text: str) -> Setting:
    """What ``--set KEY=VALUE`` says; the value is YAML. Raises UsageError."""
    key, equals, value = text.partition("=")
    place = tuple(key.strip().split("."))
    if not equals or not all(place):
        raise UsageError(f"--set {text!r} is not of the form KEY=VALUE.", advice="E.g. --set timing.record_s=20")
    try:
        return Setting(place, yaml.safe_load(value), "--set")
    except (yaml.YAMLError, ValueError):  # a date that there is not
        raise UsageError(
            f"--set {key}: {value!r} is not a YAML value.", advice=f"Quote a text: --set '{key}=\"...\"'"
        ) from None


def _budget(text: str) -> Setting:
    """What ``--budget 5m`` says, as the file writes it. Raises UsageError."""
    written = _BUDGET.fullmatch(text.strip())
    if written is None:
        raise UsageError(
            f"--budget {text!r} is not a duration.", advice="E.g. --budget 5m, --budget 300s or --budget 1h"
        )
    unit = {"m": "min", None: "s"}.get(written["unit"], written["unit"])
    return Setting(("repeats", "until_known", "budget"), f"{written['number']} {unit}", "--budget")


def _workload(name: str) -> Setting:
    """A built-in workload, one's own as ``module:factory``, or those of a campaign file, e.g. a server. Raises CampaignFileError."""
    if Path(name).suffix in {".yaml", ".yml"}:
        return Setting(("workloads",), _section(Path(name), "workloads", "--workload"), "--workload")
    own = name.rpartition(":")[0].rpartition(".")[2].replace("_", "-").lower()
    device = {"device": "cuda"}
    named = {"name": own, "factory": name, **device} if own else {"name": name, **device}
    return Setting(("workloads",), [named], "--workload")


def _modes(names: Sequence[str], text: str) -> Setting:
    """The sharing modes of the campaign in ``text``, and these besides. Raises UsageError."""
    for name in names:
        if name not in set(Sharing):
            raise UsageError(f"--mode {name}: there is no such sharing mode; {nearest(name, list(Sharing))}")
    _, data, _ = read_tree(text, origin="the campaign")
    listed = data.get("sharing") if isinstance(data, dict) else None
    of_file = listed or [mode.value for mode in CampaignSpec.model_fields["sharing"].default]
    return Setting(("sharing",), list(dict.fromkeys([*of_file, *names])), "--mode")


def _cluster(file: Path) -> list[Setting]:
    """The campaign on a cluster: that of a kubeconfig, or of the section `kubernetes` of a campaign file. Raises CampaignFileError."""
    document = _document(file, "--kubernetes")
    if "clusters" in document:
        section: Any = {"kubeconfig": str(file.absolute())}
    else:
        section = _section(file, "kubernetes", "--kubernetes")
    return [
        Setting(("backend",), "kubernetes", "--kubernetes"),
        Setting(("kubernetes",), section, "--kubernetes"),
        Setting(("timing",), {"preset": "short"}, "--kubernetes"),
    ]


def with_settings(text: str, settings: Iterable[Setting], *, origin: str) -> str:
    """The text of a campaign file with fields set; comments are lost. Raises CampaignFileError and UsageError, which name the key."""
    tree, data, faults = read_tree(text, origin=origin)
    if tree is None or faults or not isinstance(data, dict):
        return text  # whoever checks it says what is wrong
    said = []
    for given in settings:
        _put(data, given, given.place)
        said.append(
            f"{given.option} {given.key}={yaml.safe_dump(given.value, default_flow_style=True, width=10**6).splitlines()[0]}"
        )
    head = "".join(f"# {words}\n" for words in said)
    return f"# {origin}, with\n{head}{yaml.safe_dump(data, sort_keys=False, width=_WIDTH)}"


def _put(node: Any, given: Setting, place: Sequence[str]) -> None:
    """Set a field below a mapping or list; of a list without a number that of every item."""
    part, *rest = place
    if isinstance(node, list):
        if not part.isdecimal():
            for item in node:
                _put(item, given, place)
            return
        if int(part) >= len(node):
            raise UsageError(f"{given.option} {given.key}: there are {len(node)} items, counted from 0.")
        if rest:
            _put(node[int(part)], given, rest)
        else:
            node[int(part)] = copy.deepcopy(given.value)
        return
    if not isinstance(node, dict):
        at = given.place.index(part)
        raise UsageError(
            f"{given.option} {given.key}: {'.'.join(given.place[:at])} is {node!r}, which has no field {part}.",
            advice="Set the whole of it, e.g. --set 'timing={record_s: 20, step_s: 1}'",
        )
    if rest:
        if node.get(part) is None:
            node[part] = {}
        _put(node[part], given, rest)
    else:
        node[part] = copy.deepcopy(given.value)  # one object in several places would be written as an alias


def _document(file: Path, option: str) -> dict[str, Any]:
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:  # no UTF-8, or a date that there is not
        why = getattr(error, "strerror", None) or "it is not YAML"
        raise UsageError(f"{option} {file} cannot be read: {why}.", advice="Give a campaign file.") from error
    return document if isinstance(document, dict) else {}


def _section(file: Path, name: str, option: str) -> Any:
    section = _document(file, option).get(name)
    if section is None:
        raise UsageError(
            f"{option} {file}: the campaign file has no section `{name}`.",
            advice="Write one with: harness init FILE --for kubernetes"
            if name == "kubernetes"
            else "Write one with: harness init FILE",
        )
    return section
