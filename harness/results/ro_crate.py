"""``ro-crate-metadata.json``: what a published set says of itself to programs that know nothing of this harness (RO-Crate 1.1).

By hand, not by the library ``rocrate``: the same campaign has to give the same bytes, and it would install nine packages more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from harness.errors import ResultsPathError
from harness.results.citation import Citation
from harness.results.files import read_object
from harness.results.layout import CAMPAIGN_YAML
from harness.results.manifest import FileEntry

RO_CRATE = "ro-crate-metadata.json"
_SPECIFICATION = "https://w3id.org/ro/crate/1.1"
_FORMATS = {
    ".csv": "text/csv",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".parquet": "application/x-parquet",
    ".yaml": "application/yaml",
}
_NO_LICENCE = "Not stated. Ask the authors before you use these data."
"""RO-Crate asks for terms, or a text about them."""


@dataclass(frozen=True, slots=True)
class About:
    """What the crate says beside its files.

    Attributes:
        name: of the campaign's folder.
        description: in a sentence.
        begun, ended: UTC, ISO-8601; of the measurements.
        version: of the harness that recorded.
        facts: of machine and software, e.g. ``GPU driver`` to its version.
        citation: who made it.
    """

    name: str
    description: str
    begun: str
    ended: str
    version: str
    facts: Mapping[str, str]
    citation: Citation


def ro_crate(about: About, files: Mapping[str, FileEntry]) -> str:
    """The document about these files, by their names below the campaign's folder."""
    cited = about.citation
    people = [
        _entity(author.orcid or f"#author-{number}", "Person", name=author.name)
        for number, author in enumerate(cited.authors, start=1)
    ]
    facts = [
        _entity(f"#fact-{number}", "PropertyValue", name=name, value=value)
        for number, (name, value) in enumerate(about.facts.items(), start=1)
    ]
    parts = [
        _entity(
            quote(name),
            "File",
            name=name,
            contentSize=str(entry.bytes),
            encodingFormat=_FORMATS.get(Path(name).suffix, "text/plain"),
            sha256=entry.sha256,
        )
        for name, entry in files.items()
    ]
    licence = cited.licence and _entity(cited.licence, "CreativeWork", name=cited.licence.rpartition("/")[2])
    root = _entity(
        "./",
        "Dataset",
        name=cited.title or about.name,
        description=about.description,
        datePublished=about.ended[:10],
        **({"url": cited.url} if cited.url else {}),
        license=_reference(cited.licence) if licence else _NO_LICENCE,
        **({"author": _references(people)} if people else {}),
        hasPart=_references(parts),
        mentions=_reference("#campaign"),
    )
    campaign = _entity(
        "#campaign",
        "CreateAction",
        name=f"The campaign {about.name}",
        startTime=about.begun,
        endTime=about.ended,
        instrument=[_reference("#harness"), _reference("#machine")],
        object=_reference(CAMPAIGN_YAML),
        result=_reference("./"),
    )
    graph = [
        _entity(RO_CRATE, "CreativeWork", about=_reference("./"), conformsTo=_reference(_SPECIFICATION)),
        root,
        campaign,
        _entity("#harness", "SoftwareApplication", name="gpu-sharing-harness", version=about.version),
        _entity("#machine", "Product", name="The measured machine", additionalProperty=_references(facts)),
        *([licence] if licence else []),
        *people,
        *facts,
        *parts,
    ]
    context = [f"{_SPECIFICATION}/context", {"sha256": "https://schema.org/sha256"}]
    return json.dumps({"@context": context, "@graph": graph}, indent=1, ensure_ascii=False) + "\n"


def stated_hashes(folder: Path) -> dict[str, str]:
    """The sha256 that the crate in a campaign's folder says of files, by name; empty where there is no crate.

    Raises ResultsPathError where it is not of the form that is written here, StorageError where it cannot be read.
    """
    path = folder / RO_CRATE
    if not path.is_file():
        return {}
    try:
        graph = read_object(path)["@graph"]
        return {unquote(entity["@id"]): str(entity["sha256"]) for entity in graph if "sha256" in entity}
    except (KeyError, TypeError, AttributeError) as error:
        raise ResultsPathError(
            f"{path} is damaged: it does not list files with their hashes.", advice="Fetch the published set again."
        ) from error


def _entity(identifier: str, kind: str, **properties: Any) -> dict[str, Any]:
    return {"@id": identifier, "@type": kind, **properties}


def _reference(identifier: str) -> dict[str, str]:
    return {"@id": identifier}


def _references(entities: list[dict[str, Any]]) -> list[dict[str, str]]:
    return [_reference(entity["@id"]) for entity in entities]
