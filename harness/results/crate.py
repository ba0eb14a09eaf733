"""What a published set says of itself to programs that know nothing of this harness: RO-Crate 1.1 and Croissant 1.0.

Both name files with the hashes that the manifests have, and ``stated_hashes`` reads those back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from harness.errors import ResultsPathError
from harness.results.citation import Citation
from harness.results.files import read_object
from harness.results.layout import CAMPAIGN_PARQUET, CAMPAIGN_YAML, SAMPLES, WIDE
from harness.results.manifest import FileEntry

RO_CRATE = "ro-crate-metadata.json"
CROISSANT = "croissant.json"
_FORMATS = {
    ".csv": "text/csv",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".parquet": "application/x-parquet",
    ".yaml": "application/yaml",
}
_NO_LICENCE = "Not stated. Ask the authors before you use these data."
"""RO-Crate asks for terms, or a text about them."""
_TYPES = {"string": "sc:Text", "int64": "sc:Integer", "double": "sc:Float", "bool": "sc:Boolean"}
_DATE = "sc:DateTime"
_CRATE_CONTEXT = ["https://w3id.org/ro/crate/1.1/context", {"sha256": "https://schema.org/sha256"}]
_CROISSANT_TERMS = [
    "citeAs",
    "column",
    "data",
    "dataType",
    "equivalentProperty",
    "examples",
    "extract",
    "field",
    "fileProperty",
    "fileObject",
    "fileSet",
    "format",
    "includes",
    "isLiveDataset",
    "jsonPath",
    "key",
    "md5",
    "parentField",
    "path",
    "recordSet",
    "references",
    "regex",
    "repeated",
    "replace",
    "samplingRate",
    "separator",
    "source",
    "subField",
    "transform",
]
_CROISSANT_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    **{term: f"cr:{term}" for term in _CROISSANT_TERMS},
    "conformsTo": "dct:conformsTo",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
}
"""As the specification gives it."""


@dataclass(frozen=True, slots=True)
class About:
    """What both documents say.

    Attributes:
        name: of the campaign's folder.
        description: in a sentence.
        begun, ended: UTC, ISO-8601; of the measurements.
        version: of the harness that recorded.
        facts: of machine and software, e.g. ``GPU driver`` to its version.
        columns: of ``campaign.parquet``: name, type, unit and description.
        citation: who made it.
    """

    name: str
    description: str
    begun: str
    ended: str
    version: str
    facts: Mapping[str, str]
    columns: Sequence[Mapping[str, str]]
    citation: Citation


def ro_crate(about: About, files: Mapping[str, FileEntry]) -> str:
    """``ro-crate-metadata.json`` of the files, by their names below the campaign's folder."""
    people = [
        {"@id": author.orcid or f"#author-{number}", "@type": "Person", "name": author.name}
        for number, author in enumerate(about.citation.authors, start=1)
    ]
    licence = about.citation.licence
    facts = [
        {"@id": f"#fact-{number}", "@type": "PropertyValue", "name": name, "value": value}
        for number, (name, value) in enumerate(about.facts.items(), start=1)
    ]
    graph: list[dict[str, Any]] = [
        {
            "@id": RO_CRATE,
            "@type": "CreativeWork",
            "about": {"@id": "./"},
            "conformsTo": {"@id": "https://w3id.org/ro/crate/1.1"},
        },
        {
            "@id": "./",
            "@type": "Dataset",
            **_common(about),
            "license": {"@id": licence} if licence else _NO_LICENCE,
            **({"author": _references(people)} if people else {}),
            "hasPart": _references(_file(name, entry) for name, entry in files.items()),
            "mentions": {"@id": "#campaign"},
        },
        {
            "@id": "#campaign",
            "@type": "CreateAction",
            "name": f"The campaign {about.name}",
            "startTime": about.begun,
            "endTime": about.ended,
            "instrument": [{"@id": "#harness"}, {"@id": "#machine"}],
            "object": {"@id": CAMPAIGN_YAML},
            "result": {"@id": "./"},
        },
        {
            "@id": "#harness",
            "@type": "SoftwareApplication",
            "name": "gpu-sharing-harness",
            "version": about.version,
        },
        {
            "@id": "#machine",
            "@type": "Product",
            "name": "The machine and what was installed on it",
            "additionalProperty": _references(facts),
        },
        *(
            [{"@id": licence, "@type": "CreativeWork", "name": licence.rpartition("/")[2] or licence}]
            if licence
            else []
        ),
        *people,
        *facts,
        *(_file(name, entry) for name, entry in files.items()),
    ]
    return _text({"@context": _CRATE_CONTEXT, "@graph": graph})


def croissant(about: About, files: Mapping[str, FileEntry]) -> str:
    """``croissant.json`` of the tables among the files, with ``campaign.parquet`` column by column."""
    tables = {
        name: entry
        for name, entry in files.items()
        if name in {CAMPAIGN_PARQUET, CAMPAIGN_YAML} or name.endswith((f"/{SAMPLES}", f"/{WIDE}"))
    }
    licence = about.citation.licence
    people = [{"@type": "sc:Person", "name": author.name} for author in about.citation.authors]
    document = {
        "@context": _CROISSANT_CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        **_common(about),
        **({"license": licence} if licence else {}),
        **({"creator": people, "citeAs": _cite(about)} if people else {}),
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": quote(name),
                "name": name,
                "contentUrl": quote(name),
                "contentSize": f"{entry.bytes} B",
                "encodingFormat": _format(name),
                "sha256": entry.sha256,
            }
            for name, entry in tables.items()
        ],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "experiments",
                "name": "experiments",
                "description": "One finished experiment each.",
                "field": [_field(column) for column in about.columns],
            }
        ],
    }
    return _text(document)


def stated_hashes(folder: Path) -> dict[str, dict[str, str]]:
    """The sha256 that each of the two documents in a campaign's folder says of files; of those that are there.

    Raises:
        ResultsPathError: one is not of the form that is written here.
        StorageError: it cannot be read.
    """
    stated = {}
    for document, key in ((RO_CRATE, "@graph"), (CROISSANT, "distribution")):
        if not (folder / document).is_file():
            continue
        try:
            entities = read_object(folder / document)[key]
            stated[document] = {
                unquote(entity["@id"]): str(entity["sha256"]) for entity in entities if "sha256" in entity
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise ResultsPathError(
                f"{folder / document} is damaged: it does not list files with their hashes.",
                advice="Fetch the published set again.",
            ) from error
    return stated


def _common(about: About) -> dict[str, str]:
    url = {"url": about.citation.url} if about.citation.url else {}
    return {
        "name": about.citation.title or about.name,
        "description": about.description,
        "datePublished": about.ended[:10],
        **url,
    }


def _cite(about: About) -> str:
    said = about.citation
    names = "; ".join(author.name for author in said.authors)
    return f"{names} ({about.ended[:4]}): {said.title or about.name}. {said.url}".strip()


def _file(name: str, entry: FileEntry) -> dict[str, str]:
    return {
        "@id": quote(name),
        "@type": "File",
        "name": name,
        "contentSize": str(entry.bytes),
        "encodingFormat": _format(name),
        "sha256": entry.sha256,
    }


def _field(column: Mapping[str, str]) -> dict[str, Any]:
    unit = f" Unit: {column['unit']}." if column["unit"] else ""
    return {
        "@type": "cr:Field",
        "@id": f"experiments/{column['name']}",
        "name": column["name"],
        "description": column["description"] + unit,
        "dataType": _TYPES.get(column["type"], _DATE),
        "source": {"fileObject": {"@id": CAMPAIGN_PARQUET}, "extract": {"column": column["name"]}},
    }


def _references(entities: Any) -> list[dict[str, str]]:
    return [{"@id": entity["@id"]} for entity in entities]


def _format(name: str) -> str:
    return _FORMATS.get(Path(name).suffix, "text/plain")


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
