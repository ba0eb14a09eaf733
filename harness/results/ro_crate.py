"""``ro-crate-metadata.json``: what a published set says of itself to programs that know nothing of this harness (RO-Crate 1.1), and who made it.

By hand, not by the library ``rocrate``: the same campaign has to give the same bytes, and it would install nine packages more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from harness.errors import CampaignFileError, ResultsPathError, UsageError
from harness.results.files import read_document, read_object
from harness.results.layout import CAMPAIGN_YAML
from harness.results.manifest import FileEntry
from harness.spec.yaml_tree import read_tree

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
MAX_CHARACTERS = 300
_AUTHOR = re.compile(r"(?P<name>[^<>]+?)(?: +<(?:https://orcid\.org/)?(?P<orcid>\d{4}-\d{4}-\d{4}-\d{3}[\dX])>)?")
_DOI_SITE = re.compile(r"^(https?://(dx\.)?doi\.org/|doi:)", re.IGNORECASE)
"""Many write it before a DOI, which is the rest."""
_SPDX = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")
_URL = re.compile(r"https?://[^\s\"<>\\^`{|}]+")


@dataclass(frozen=True, slots=True)
class About:
    """What the crate says beside its files: when was measured (UTC, ISO-8601), by which harness; facts of machine and software by name."""

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


@dataclass(frozen=True, slots=True)
class Author:
    """One author; ``orcid`` is a URL, empty when not given."""

    name: str
    orcid: str = ""


@dataclass(frozen=True, slots=True)
class Citation:
    """How a set is cited; ``licence`` is the URL of its terms. What is empty was not given."""

    title: str = ""
    authors: tuple[Author, ...] = ()
    licence: str = ""
    url: str = ""


def citation(file: Path | None = None, authors: Sequence[str] = (), licence: str | None = None) -> Citation:
    """What is said of a set; options go before the file.

    Args:
        file: in the form of a CITATION.cff, of which title, authors, license, url and doi are read.
        authors: each ``NAME`` or ``NAME <ORCID>``.
        licence: an SPDX identifier, or the URL of a text.

    Raises UsageError where a value cannot be one, ResultsPathError where there is no such file, StorageError.
    """
    said = _read(file) if file else {}
    doi = _DOI_SITE.sub("", _text(said, "doi", file))
    terms = licence if licence is not None else _text(said, "license", file) or None
    persons = said.get("authors", [])
    if not isinstance(persons, list) or not all(isinstance(person, dict) for person in persons):
        raise UsageError(
            f"`authors` in {file} is not a list of persons.", advice="Each has family-names and given-names."
        )
    people = [_author(author) for author in authors] or [_person(person, file) for person in persons]
    url = f"https://doi.org/{doi}" if doi else _text(said, "url", file)
    if url and not _URL.fullmatch(url):
        raise UsageError(f"{url!r} is not a web address.", advice=f"Correct `doi` or `url` in {file}.")
    return Citation(_text(said, "title", file), tuple(people), _licence_url(terms), url)


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ResultsPathError(f"{file} is not a regular file.", advice="Give a CITATION.cff.")
    try:
        _, said, faults = read_tree(read_document(file).decode(errors="replace"), origin=str(file))
    except CampaignFileError as error:
        raise UsageError(error.message, advice="Give a CITATION.cff.") from error
    if faults or not isinstance(said, dict):
        why = f"line {faults[0][0]}: {faults[0][1]}" if faults else "it holds no fields."
        raise UsageError(f"{file} is not a CITATION.cff: {why}", advice="See https://citation-file-format.github.io.")
    return said


def _person(person: dict[str, Any], file: Path | None) -> Author:
    parts = [_text(person, key, file) for key in ("given-names", "name-particle", "family-names", "name-suffix")]
    name = _text(person, "name", file) or " ".join(filter(None, parts))
    orcid = _text(person, "orcid", file)
    return _author(f"{name} <{orcid}>" if orcid else name)


def _author(text: str) -> Author:
    match = _AUTHOR.fullmatch(_plain(text, "an author"))
    if match is None:
        raise UsageError(f"{text!r} is not an author.", advice='E.g. --author "Ada Lovelace <0000-0002-1825-0097>"')
    return Author(match["name"], f"https://orcid.org/{match['orcid']}" if match["orcid"] else "")


def _licence_url(text: str | None) -> str:
    if text is None or _URL.fullmatch(text):
        return text or ""
    if not _SPDX.fullmatch(text):
        raise UsageError(
            f"{text!r} is not a licence.", advice="Give an SPDX identifier or a URL, e.g. --license CC-BY-4.0"
        )
    return f"https://spdx.org/licenses/{text}"


def _text(said: dict[str, Any], key: str, file: Path | None) -> str:
    value = said.get(key, "")
    if not isinstance(value, str):
        raise UsageError(f"`{key}` in {file} is not text.", advice="Write it in quotes.")
    return _plain(value, f"`{key}` in {file}") if value else ""


def _plain(text: str, what: str) -> str:
    """One line that a terminal can show; quotes are escaped where it is written."""
    if not text.strip() or not text.isprintable() or len(text) > MAX_CHARACTERS:
        raise UsageError(
            f"{what} must be one line of at most {MAX_CHARACTERS} characters, not {text[:40]!r}.",
            advice="Leave out line breaks and control characters.",
        )
    return text.strip()
