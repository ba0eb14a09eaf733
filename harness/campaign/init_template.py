"""A campaign file to start from: every field, written from the models, or a short one for a purpose."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from harness.campaign.plan import expand
from harness.errors import IssueLevel
from harness.metrics.nvml import gpu_facts
from harness.sharing.modes import ANYWHERE, mode_of
from harness.spec import CampaignSpec, KubernetesSpec, Limits, MpsSpec, ServerSpec, Timing, WorkloadSpec
from harness.spec.load import parse_campaign
from harness.spec.model import StrictModel
from harness.spec.sharing import Sharing

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
    "requests": "  # image: {width: 640, height: 480}, audio: {seconds: 5}",
}
SECTIONS: dict[str, type[StrictModel]] = {
    "timing": Timing,
    "limits": Limits,
    "mps": MpsSpec,
    "kubernetes": KubernetesSpec,
}


def starter_text(name: str) -> str:
    """The text of a campaign called ``name``; every field is there, those at their default commented out."""
    lines = ["# A campaign. Check it with `harness plan FILE`, run it with `harness run FILE`."]
    shown = {"name": _clean(name), **SHOWN}
    for key, field in CampaignSpec.model_fields.items():
        lines += ["", *_comment(field.description or "")]
        if key == "workloads":
            lines += _workloads()
        elif key in SECTIONS:
            lines += _section(key, SECTIONS[key])
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
    lines = ["workloads:", "  - name: resnet50"]
    for key, field in WorkloadSpec.model_fields.items():
        if key in {"server", "variant_of"}:
            continue
        if key != "name":
            lines += _comment(field.description or "", indent=4)
            lines.append("    " + _entry(key, field, {}))
    return [*lines, *_server()]


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


def _section(name: str, model: type[StrictModel]) -> list[str]:
    lines = [f"# {name}:"]
    for key, field in model.model_fields.items():
        lines += _comment(field.description or "", indent=2)
        lines.append("  " + _entry(key, field, {}))
    return lines


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
    return textwrap.wrap(text, WIDTH, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)
