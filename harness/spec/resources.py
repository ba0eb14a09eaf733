"""What a container asks of its node, and what it is limited to; quantities as Kubernetes writes them: 500m, 16Gi, 1e3."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

_POWERS = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)([KMGTPE]i|[numkMGTPE])?")
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
        least = reserve.get(resource)
        if least is not None and _number(least) > _number(most):
            raise ValueError(
                f"`{prefix}reserve` asks for {least} of {resource}, and `{prefix}limit` allows {most}: raise the limit, or reserve less."
            )


def _number(text: str) -> Decimal:
    value = amount(text)
    if value is None:
        raise ValueError(f"{text!r} is no quantity.")
    return value


def amount(text: object) -> Decimal | None:
    """A quantity as a number; None when it is none."""
    match = _QUANTITY.fullmatch(str(text))
    return Decimal(match[1]) * _POWERS[match[2] or ""] if match else None


def in_words(value: Decimal, *, of_bytes: bool) -> str:
    """A number as a quantity, bytes in the largest unit that divides them."""
    units = [unit for unit in _POWERS if unit.endswith("i")] if of_bytes else []
    unit = next((unit for unit in reversed(units) if value and value % _POWERS[unit] == 0), "")
    return f"{(value / _POWERS[unit]).normalize():f}{unit}"
