"""What a backend cannot do for a campaign: it is metadata of the fields that ask for it, and refused before anything is started."""

from __future__ import annotations

from collections.abc import Iterator

from harness.errors import CampaignFileError
from harness.spec.campaign import CampaignSpec
from harness.spec.model import Lacking, Location, StrictModel
from harness.spec.workload import REMOVED_OPTIONS, WorkloadSpec


def refusals(spec: CampaignSpec) -> Iterator[tuple[Location, str]]:
    """What the campaign asks for and cannot have, by its place: of its backend, or because it was removed."""
    yield from _refusals(spec, spec.backend, ())


def require(spec: CampaignSpec, *, origin: str) -> None:
    """Raise CampaignFileError where the campaign, which ``origin`` names, asks for what it cannot have."""
    lines = "\n".join(f"  `{'.'.join(map(str, place))}`: {why}" for place, why in refusals(spec))
    if lines:
        raise CampaignFileError(
            f"{origin} asks for what cannot be:\n{lines}", advice="Change the campaign file; nothing has been started."
        )


def _refusals(model: StrictModel, backend: str, place: Location) -> Iterator[tuple[Location, str]]:
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        for lacking in field.metadata:
            if isinstance(lacking, Lacking) and lacking.backend == backend and lacking.is_asked(model, name):
                yield (*place, name), f"backend {backend} cannot do this: {lacking.why}. {lacking.instead}"
        if isinstance(value, StrictModel):
            yield from _refusals(value, backend, (*place, name))
        for index, item in enumerate(value if isinstance(value, list) else ()):
            if isinstance(item, StrictModel):
                yield from _refusals(item, backend, (*place, name, index))
    if isinstance(model, WorkloadSpec):
        removed = [option for option in model.options if option in REMOVED_OPTIONS]
        yield from (
            ((*place, "options", option), f"it was removed: say {REMOVED_OPTIONS[option]}.") for option in removed
        )
