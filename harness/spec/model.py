"""The base of every model of the campaign file, the kinds of fields they share, and what pydantic finds wrong in our words."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

LOCAL, KUBERNETES = BACKENDS = ("local", "kubernetes")
Location = tuple[int | str, ...]

Count = Annotated[int, Field(ge=1)]
UpTo4096 = Annotated[int, Field(ge=1, le=4096)]
Cpus = Annotated[int, Field(ge=1, le=1024)]
Port = Annotated[int, Field(ge=1, le=65_000)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Load = Annotated[float, Field(gt=0, le=1_000_000)]
UpToADay = Annotated[float, Field(ge=0, le=86_400)]
WithinADay = Annotated[float, Field(gt=0, le=86_400)]
UpToTenMinutes = Annotated[float, Field(gt=0, le=600)]
Text = Annotated[str, Field(min_length=1)]
UrlPath = Annotated[str, Field(pattern=r"^/")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
FactoryPath = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]


def _apart(values: list[Any]) -> list[Any]:
    """Refuse what is listed twice: a value, or the name of a model."""
    names = [getattr(value, "name", None) if isinstance(value, StrictModel) else value for value in values]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{getattr(twice, 'value', twice)!r} is listed twice: give each a name or a value of its own.")
    return values


Apart = AfterValidator(_apart)
"""Of a list, in which nothing is listed twice."""
OneOrSeveral = BeforeValidator(lambda given: given if isinstance(given, list) else [given])
"""Of a list, which the file may give as its only value."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """Metadata of a field: what it asks for, a backend cannot do.

    ``when`` is the property of the model that says whether it is asked for, ``value`` the one of a list that asks for it (else: where the
    field is not its default); ``label`` says for the table of all which of its values that are.
    """

    backend: str
    why: str
    instead: str
    when: str = ""
    label: str = ""
    value: object = None

    def is_asked(self, model: StrictModel, name: str) -> bool:
        """Whether a model asks for it by this field."""
        if self.value is not None:
            return self.value in getattr(model, name)
        return bool(getattr(model, self.when) if self.when else model.differs(name))


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

    def differs(self, *names: str) -> str:
        """The first of these fields that is not its default; empty: none."""
        return next((name for name in names if getattr(self, name) != _default(type(self), name)), "")

    def without_effect(self, kind: StrEnum, kinds: Mapping[str, Collection[StrEnum]]) -> Iterator[str]:
        """What is wrong where a field is given that ``kind`` does nothing with; ``kinds``: those that do, by field."""
        name = self.differs(*(name for name, takers in kinds.items() if kind not in takers))
        if name:
            takers = " and ".join(taker.value for taker in type(kind) if taker in kinds[name])
            yield f"`{name}` has no effect with {kind.value}; it belongs to {takers}."


def checked(faults: Callable[[Any], Iterator[str]]) -> Any:
    """A check of a whole model: a method that yields what cannot be in it, of which the first is said."""

    @functools.wraps(faults)
    def check(model: StrictModel) -> StrictModel:
        fault = next(faults(model), None)
        if fault is not None:
            raise ValueError(fault)
        return model

    return model_validator(mode="after")(check)


@functools.cache
def _default(model: type[StrictModel], name: str) -> Any:
    # pydantic looks at the signature of a default's maker each time that it is asked: half of what it takes to read a manifest.
    return model.model_fields[name].get_default(call_default_factory=True)


_WORDS = (
    (r"^Value error, ", ""),
    (r"^\w+ should ", "must "),
    (r"^Field required$", "is missing"),
    (r"^Invalid JSON: .*", "is not JSON"),
    (r", unable to parse string as .*|, got a number with a fractional part| after validation, not \d+$", ""),
    (r"be greater than or equal to", "be at least"),
    (r"be less than or equal to", "be at most"),
    (
        r"match pattern '\^\[a-z0-9\]\[a-z0-9-\]\{0,(\d+)\}\$'",
        lambda match: f"be lower-case letters, digits and hyphens, at most {int(match[1]) + 1}, no hyphen first",
    ),
    (r"match pattern", "match the pattern"),
    (r"be a valid (list|tuple|set|array)$", "be a list"),
    (r"be a valid (dictionary|object).*", "be an object"),
    (r"be a valid string$", "be text"),
    (r"be a valid integer$", "be a whole number"),
    (r"be a valid boolean$", "be true or false"),
    (r"be a valid number$", "be a number"),
)


def nearest(name: str, known: Collection[str]) -> str:
    """What was probably meant, or all that there is."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean `{close[0]}`?" if close else f"known here: {', '.join(known) or 'none'}."


def in_words(message: str) -> str:
    """A message of pydantic's, e.g. ``must be at least 1``; without a full stop."""
    message = message.rstrip(".")
    for pattern, words in _WORDS:
        message = re.sub(pattern, words, message)
    return message


def first_in_words(error: ValidationError) -> str:
    """The first fault with its place: ``replicas.0 must be at least 1``; without a full stop."""
    first = error.errors()[0]
    # Pydantic puts the branch of a union into the place: list[str], function-after[...], a class.
    parts = [str(part) for part in first["loc"]]
    where = ".".join(part for part in parts if re.fullmatch(r"[\w./@-]*", part) and not part[:1].isupper()) or "it"
    return f"{where}{':' if first['type'] == 'value_error' else ''} {in_words(first['msg'])}"
