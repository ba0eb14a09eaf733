"""A campaign file to start from, written from the models so that its comments never drift."""

from __future__ import annotations

import json
import re
import textwrap
from typing import Any

from pydantic.fields import FieldInfo

from harness.config import CampaignSpec, KubernetesSpec, Limits, MpsSpec, ServerSpec, Timing, WorkloadSpec
from harness.config.model import StrictModel

WIDTH = 100
SHOWN: dict[str, Any] = {
    "workloads": [{"name": "resnet50"}],
    "replicas": [1, 3, 8],
    "repeats": 3,
    "order": "interleaved",
}
SERVER: dict[str, Any] = {"command": ["my-server", "--port", "{port}"]}
SECTIONS: dict[str, type[StrictModel]] = {
    "timing": Timing,
    "limits": Limits,
    "mps": MpsSpec,
    "kubernetes": KubernetesSpec,
}
TIMING: dict[str, Any] = {"step_s": 1.0, "stabilise_s": 30.0, "record_s": 60.0, "cooldown_s": 10.0}


def starter_text(name: str) -> str:
    """The text of a campaign called ``name``; every field is there, those at their default commented out."""
    clean = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-") or "my-campaign"
    lines = ["# A campaign. Check it with `harness plan FILE`, run it with `harness run FILE`."]
    shown = {"name": clean, **SHOWN}
    for key, field in CampaignSpec.model_fields.items():
        lines += ["", *_comment(field.description or "")]
        if key == "workloads":
            lines += _workloads()
        elif key in SECTIONS:
            lines += _section(key, SECTIONS[key], TIMING if key == "timing" else {})
        else:
            lines.append(_entry(key, field, shown))
    return "\n".join(lines) + "\n"


def _workloads() -> list[str]:
    lines = ["workloads:", "  - name: resnet50"]
    for key, field in WorkloadSpec.model_fields.items():
        if key == "server":
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
        lines.append(f"  #     {key}: {_yaml(SERVER.get(key, default))}")
    return lines


def _section(name: str, model: type[StrictModel], shown: dict[str, Any]) -> list[str]:
    lines = [f"{name}:" if shown else f"# {name}:"]
    for key, field in model.model_fields.items():
        lines += _comment(field.description or "", indent=2)
        lines.append("  " + _entry(key, field, shown))
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
    return textwrap.wrap(text, WIDTH, initial_indent=margin, subsequent_indent=margin)
