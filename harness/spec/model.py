"""The base of every model of the campaign file: strict, frozen, numbers finite, each field described."""

from __future__ import annotations

import functools
from typing import Any

from pydantic import BaseModel, ConfigDict

FROM_FILE = "campaign file"
"""The context of validation that refuses what was removed; results that were measured with it stay readable."""


class StrictModel(BaseModel):
    """Unknown keys and NaN are errors, values are not coerced across kinds, instances do not change."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=False, allow_inf_nan=False, defer_build=True
    )

    def differs(self, name: str) -> bool:
        """Whether a field is not its default."""
        return bool(getattr(self, name) != _default(type(self), name))


@functools.cache
def _default(model: type[StrictModel], name: str) -> Any:
    # pydantic looks at the signature of a default's maker each time that it is asked: half of what it takes to read a manifest.
    return model.model_fields[name].get_default(call_default_factory=True)
