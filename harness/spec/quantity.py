"""Quantities as Kubernetes writes them: 500m, 16Gi, 1e3."""

from __future__ import annotations

import re
from decimal import Decimal

_POWERS = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)([KMGTPE]i|[numkMGTPE])?")


def amount(text: object) -> Decimal | None:
    """A quantity as a number; None when it is none."""
    match = _QUANTITY.fullmatch(str(text))
    return Decimal(match[1]) * _POWERS[match[2] or ""] if match else None


def in_words(value: Decimal, *, of_bytes: bool) -> str:
    """A number as a quantity, bytes in the largest unit that divides them."""
    units = [unit for unit in _POWERS if unit.endswith("i")] if of_bytes else []
    unit = next((unit for unit in reversed(units) if value and value % _POWERS[unit] == 0), "")
    return f"{(value / _POWERS[unit]).normalize():f}{unit}"
