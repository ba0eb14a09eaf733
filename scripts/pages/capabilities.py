"""The table of ``docs/cluster.md`` that says what a backend cannot do, from the metadata of the campaign file's fields."""

from __future__ import annotations

from collections.abc import Iterator

from harness.spec import CampaignSpec
from harness.spec.model import BACKENDS, Lacking, StrictModel, inner_models

_BEGIN, _END = "<!-- Written by `python -m scripts.pages`. -->\n", "<!-- End of the table. -->\n"
Row = tuple[str, Lacking]


def page(text: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = text.partition(_BEGIN)
    return f"{before}{_BEGIN}{_table()}{_END}{rest.partition(_END)[2]}"


def rows(model: type[StrictModel] = CampaignSpec, place: str = "") -> Iterator[Row]:
    """Every field that some backend lacks, with its place."""
    for name, field in model.model_fields.items():
        yield from ((f"`{place}{name}`", lacking) for lacking in field.metadata if isinstance(lacking, Lacking))
        for inner in inner_models(field.annotation):
            yield from rows(inner, f"{place}{name}.")


def _table() -> str:
    head = f"| field | {' | '.join(BACKENDS)} |\n|{'---|' * (1 + len(BACKENDS))}\n"
    lines = {}
    for place, lacking in rows():
        if not place.startswith("`conditions.neighbours.workload."):  # whose fields are those of a workload
            cells = (f"no: {lacking.why}" if lacking.backend == backend else "yes" for backend in BACKENDS)
            lines[f"{place} {lacking.label}".rstrip()] = " | ".join(cells)
    return head + "".join(f"| {field} | {cells} |\n" for field, cells in lines.items())
