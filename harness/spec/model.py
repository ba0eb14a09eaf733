"""The base of every model of the campaign file: strict, frozen, numbers finite, each field described."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict

LOCAL, KUBERNETES = BACKENDS = ("local", "kubernetes")
Location = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Lacking:
    """Metadata of a field: what it asks for, a backend cannot do.

    Attributes:
        when: property of the model that says whether it is asked for; empty: it is where the field is not its default.
        label: which of the field's values, for the table of all; empty: any.
    """

    backend: str
    why: str
    instead: str
    when: str = ""
    label: str = ""

    def is_asked(self, model: StrictModel, name: str) -> bool:
        """Whether a model asks for it by this field."""
        return bool(getattr(model, self.when)) if self.when else model.differs(name)


def inner_models(annotation: Any) -> Iterator[type[StrictModel]]:
    """The models that a field may hold, by its annotation."""
    if isinstance(annotation, type) and not get_args(annotation) and issubclass(annotation, StrictModel):
        yield annotation
    for argument in get_args(annotation):
        yield from inner_models(argument)


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
