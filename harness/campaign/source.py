"""Where a campaign comes from: a file of the user's, or one that is shipped; and a file to start from, written from the models."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from shlex import quote
from typing import Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

from pydantic.fields import FieldInfo

from harness.campaign.plan import expand
from harness.errors import CampaignFileError, IssueLevel
from harness.metrics.catalogue import CATALOGUE
from harness.metrics.nvml import gpu_facts
from harness.results.files import storage_errors
from harness.results.layout import CAMPAIGN_JSON, CAMPAIGN_YAML
from harness.sharing.modes import ANYWHERE, mode_of
from harness.spec import (
    CampaignSpec,
    KubernetesSpec,
    Limits,
    MpsSpec,
    ServerSpec,
    Sharing,
    Timing,
    WorkloadSpec,
)
from harness.spec.load import parse_campaign
from harness.spec.model import StrictModel, nearest
from harness.spec.yaml_tree import MAX_CHARACTERS

SHIPPED = Path(__file__).with_name("shipped")
SHIPPED_PREFIX = "shipped:"
GIVEN = "given as text"
_LONGEST = 61
"""Characters that a campaign's name may have."""
TEMPLATES = Path(__file__).with_name("init_templates")

WIDTH = 100
SHOWN: dict[str, Any] = {
    "workloads": [{"name": "resnet50"}],
    "replicas": [1, 3, 8],
    "repeats": 3,
    "order": "interleaved",
}
SERVER: dict[str, Any] = {"command": ["my-server", "--port", "{port}"]}
EXAMPLES = {
    "tensors": "  # protocol oip: [{name: x, shape: [1, 4], datatype: FP32, data: null}]",
    "requests": "  # image: {width: 640, height: 480}, audio: {seconds: 5}, shared_prefix: {tokens: 512, groups: 8}, sessions: {turns: 4, "
    "delay_s: 2}, cancel: {percent: 5, after_s: 1}",
    "trace": "  # {file: trace.jsonl, unit: ms, factor: 2, block_tokens: 512}",
}
SECTIONS: dict[str, type[StrictModel]] = {
    "timing": Timing,
    "limits": Limits,
    "mps": MpsSpec,
    "kubernetes": KubernetesSpec,
}


@dataclass(frozen=True, slots=True)
class CampaignSource:
    """A campaign file as read: its text word for word, and its absolute path or ``shipped:<name>``."""

    spec: CampaignSpec
    text: str
    origin: str


def shipped_names() -> list[str]:
    """Names that ``read_source`` takes without a file."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def read_source(file_or_name: str, change: Callable[[str], str] = str) -> CampaignSource:
    """Read a campaign file, or a shipped one by its name; ``change`` is made to its text. Raises CampaignFileError and UsageError."""
    path = Path(file_or_name)
    with storage_errors(path, "read"):
        is_file = path.is_file()
    if is_file:
        origin = str(path.absolute())
    elif file_or_name in shipped_names():
        path, origin = SHIPPED / f"{file_or_name}.yaml", f"{SHIPPED_PREFIX}{file_or_name}"
    else:
        if path.is_dir():
            raise CampaignFileError(f"{path} is a folder, and no campaign file.", advice=_of_a_folder(path))
        if path.exists():
            raise CampaignFileError(
                f"{path} is not a regular file, so not a campaign file.", advice="Give a file of text."
            )
        raise CampaignFileError(
            f"there is no campaign file {file_or_name}, and no shipped campaign of that name: {nearest(file_or_name, shipped_names())}",
            advice="Write one with: harness init FILE",
        )
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_CHARACTERS + 1)
    except OSError as error:
        denied = isinstance(error, PermissionError)
        raise CampaignFileError(
            f"cannot read the campaign file {path}: {error.strerror}.",
            advice="Give yourself the right to read it." if denied else "Give a file of text.",
        ) from error
    except UnicodeDecodeError as error:
        raise CampaignFileError(
            f"{path} is not a campaign file: it is not UTF-8 text.", advice="Write one with: harness init FILE"
        ) from error
    changed = change(text)
    # What was changed is no longer that file: going on with it later compares it with none.
    return source_of(changed, file_or_name, origin if changed == text or origin.startswith(SHIPPED_PREFIX) else GIVEN)


def _of_a_folder(path: Path) -> str:
    """What to give instead, or which command takes it."""
    if (path / CAMPAIGN_JSON).exists():
        return f"To go on with that campaign: harness resume {quote(str(path))}. To run it anew: harness run {quote(str(path / CAMPAIGN_YAML))}"
    files = sorted(file.name for file in path.glob("*.yaml"))
    return f"Give a file of it, e.g. {quote(str(path / files[0]))}" if files else "Write one with: harness init FILE"


def given(text: str) -> CampaignSource:
    """A campaign that comes from no file. Raises CampaignFileError."""
    return source_of(text, "the campaign given", GIVEN)


def source_of(text: str, name: str, origin: str) -> CampaignSource:
    """A campaign whose text is there; faults say ``name``. Raises CampaignFileError."""
    spec = parse_campaign(text, origin=name, metrics=CATALOGUE)
    _refuse_password(spec, name)
    return CampaignSource(spec, text, origin)


def _refuse_password(spec: CampaignSpec, name: str) -> None:
    """The file is kept with the results, which are published. Raises CampaignFileError."""
    url = (spec.kubernetes and spec.kubernetes.prometheus_url) or ""
    if urlsplit(url).username is not None:
        raise CampaignFileError(
            f"{name} has a name and a password in `kubernetes.prometheus_url`, and it is kept with the results.",
            advice="Leave them out, and name a file with `Basic ` and their base64 in `kubernetes.prometheus_access.token_file`.",
        )


def starter_text(name: str) -> str:
    """The text of a campaign called ``name``; every field is there, those at their default commented out."""
    lines = ["# A campaign. Check it with `harness plan FILE`, run it with `harness run FILE`."]
    shown = {"name": _clean(name), **SHOWN}
    for key, field in CampaignSpec.model_fields.items():
        lines += ["", *_comment(_about(field))]
        if key == "workloads":
            lines += _workloads()
        elif key in SECTIONS:
            lines += [f"# {key}:", *_fields(SECTIONS[key], 2)]
        else:
            lines.append(_entry(key, field, shown))
    return "\n".join(lines) + "\n"


def starter_for(purpose: str, name: str) -> str:
    """The text of a short campaign called ``name`` for a purpose: the name of a file in ``TEMPLATES``."""
    text = (TEMPLATES / f"{purpose}.yaml").read_text(encoding="utf-8")
    text = re.sub(r"^name: .*$", f"name: {_clean(name)}", text, count=1, flags=re.MULTILINE)
    spec = parse_campaign(text, origin=purpose)
    return text if len(spec.sharing) == 1 else _with_the_modes_here(text, spec)


def _with_the_modes_here(text: str, spec: CampaignSpec) -> str:
    """The same without the sharing modes that preflight would refuse on this machine; a comment says why."""
    gpus, why_none = gpu_facts()
    refused: dict[Sharing, str] = {}
    for experiment in expand(spec):
        for finding in mode_of(experiment.sharing).check(experiment, gpus, why_none):
            if finding.severity is IssueLevel.ERROR:
                refused.setdefault(experiment.sharing, finding.message)
    left = [mode.value for mode in spec.sharing if mode not in refused] or [ANYWHERE.sharing.value]
    reasons = [refused[mode] for mode in spec.sharing if mode in refused]
    if reasons and not gpus:  # one for all of them
        reasons = [f"{', '.join(mode.value for mode in refused)}; there is no GPU here ({why_none})."]
    lines = [line for reason in reasons for line in _comment(f"Not now: {reason}")]
    chosen = "\n".join([*lines, f"sharing: [{', '.join(left)}]"])
    return re.sub(r"^sharing: .*$", lambda _: chosen, text, flags=re.MULTILINE)


def _clean(name: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:_LONGEST] or "my-campaign"


def _workloads() -> list[str]:
    return ["workloads:", "  - name: resnet50", *_fields(WorkloadSpec, 4, {"name", "server", "variant_of"}), *_server()]


def _server() -> list[str]:
    """A second workload that stays a comment: its fields are described on a page of their own."""
    lines = [
        "",
        *_comment("Your own server, started once per replica and asked over HTTP; see docs/servers.md.", indent=2),
    ]
    lines += ["  # - name: my-server", "  #   server:"]
    for key, field in ServerSpec.model_fields.items():
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        lines.append(f"  #     {key}: {_yaml(SERVER.get(key, default))}{EXAMPLES.get(key, '')}")
    return lines


def _fields(model: type[StrictModel], indent: int, left_out: Collection[str] = ()) -> list[str]:
    lines = []
    for key, field in model.model_fields.items():
        if key not in left_out:
            lines += [*_comment(_about(field), indent=indent), " " * indent + _entry(key, field, {})]
    return lines


def _about(field: FieldInfo) -> str:
    """Its description, and the values that it may have where that does not name them."""
    words, values = field.description or "", list(_values(field.annotation))
    named = all(re.search(rf"(?<![\w-]){re.escape(value)}(?![\w-])", words) for value in values)
    return words if named else f"{words} Values: {', '.join(values)}."


def _values(annotation: Any) -> Iterator[str]:
    """Those of a Literal or an enumeration, also inside a list or beside null."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        yield from (str(member.value) for member in annotation)
    elif get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    else:
        for inner in get_args(annotation):
            yield from _values(inner)


def _entry(key: str, field: FieldInfo, shown: dict[str, Any]) -> str:
    if key in shown:
        return f"{key}: {_yaml(shown[key])}"
    return f"# {key}: {_yaml(field.get_default(call_default_factory=True))}"


def _yaml(value: Any) -> str:
    """One line of flow style; JSON is YAML."""
    text = json.dumps(value, default=lambda model: model.model_dump(mode="json"))
    return re.sub(r'"([A-Za-z][\w-]*)"', r"\1", text)


def _comment(text: str, *, indent: int = 0) -> list[str]:
    margin = " " * indent + "# "
    return textwrap.wrap(text, WIDTH, initial_indent=margin, subsequent_indent=margin + "  ", break_on_hyphens=False)
