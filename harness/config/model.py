"""The base of every model of the campaign file: strict, frozen, numbers finite, each field described."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """Unknown keys and NaN are errors, values are not coerced across kinds, instances do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=False, allow_inf_nan=False)
