"""What a container asks of its node, and what it is limited to: processors, memory and disk."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from harness.spec.quantity import amount

Resource = Literal["cpu", "memory", "ephemeral-storage"]
_BYTES = ("1Mi", "64Ti", Decimal(1))
_BOUNDS = {"cpu": ("1m", "1024", Decimal("0.001")), "memory": _BYTES, "ephemeral-storage": _BYTES}
"""The least, the most, and what a quantity is a multiple of. Fewer bytes are a unit that was mistaken: ``m`` is a thousandth."""


def _in_bounds(given: dict[Resource, str]) -> dict[Resource, str]:
    for resource, text in given.items():
        least, most, step = _BOUNDS[resource]
        value = _number(text)
        if not _number(least) <= value <= _number(most) or value % step:
            raise ValueError(
                f"{resource} is {text}: it lies between {least} and {most}, in "
                f"{'thousandths of a processor at the finest' if resource == 'cpu' else 'whole bytes'}."
            )
    return given


Resources = Annotated[
    dict[
        Resource,
        Annotated[str, Field(pattern=r"^[0-9]{1,18}(\.[0-9]{1,9})?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$")],
    ],
    AfterValidator(_in_bounds),
]
"""Quantities as Kubernetes writes them, by resource."""


def refuse_lower(reserve: Mapping[Resource, str], limit: Mapping[Resource, str], prefix: str = "") -> None:
    """Raise ValueError where a limit is lower than what is reserved: no API server takes that."""
    for resource, most in limit.items():
        asked = reserve.get(resource)
        if asked is not None and _number(asked) > _number(most):
            raise ValueError(
                f"`{prefix}reserve` asks for {asked} of {resource}, and `{prefix}limit` allows {most}: raise the limit, or reserve less."
            )


def _number(text: str) -> Decimal:
    found = amount(text)
    if found is None:
        raise ValueError(f"{text!r} is no quantity.")
    return found
