"""Who made a published set, and on what terms: from options, or from a CITATION.cff."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import CampaignFileError, ResultsPathError, UsageError
from harness.results.files import read_document
from harness.spec.yaml_tree import read_tree

MAX_CHARACTERS = 300
_AUTHOR = re.compile(r"(?P<name>[^<>]+?)(?: +<(?:https://orcid\.org/)?(?P<orcid>\d{4}-\d{4}-\d{4}-\d{3}[\dX])>)?")
_DOI_SITE = re.compile(r"^(https?://(dx\.)?doi\.org/|doi:)", re.IGNORECASE)
"""Many write it before a DOI, which is the rest."""
_SPDX = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")
_URL = re.compile(r"https?://[^\s\"<>\\^`{|}]+")


@dataclass(frozen=True, slots=True)
class Author:
    """One author; ``orcid`` is a URL, empty when not given."""

    name: str
    orcid: str = ""


@dataclass(frozen=True, slots=True)
class Citation:
    """How a set is cited. What is empty was not given.

    Attributes:
        title: of the set.
        authors: in their order.
        licence: the URL of its terms.
        url: where it is published.
    """

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

    Raises:
        UsageError: a value cannot be one.
        ResultsPathError: there is no such file.
        StorageError: it cannot be read.
    """
    said = _read(file) if file else {}
    doi = _DOI_SITE.sub("", _text(said, "doi", file))
    terms = licence if licence is not None else _text(said, "license", file) or None
    people = [_author(author) for author in authors] or [_person(person, file) for person in _list(said, file)]
    url = f"https://doi.org/{doi}" if doi else _text(said, "url", file)
    if url and not _URL.fullmatch(url):
        raise UsageError(f"{url!r} is no web address.", advice=f"Correct `doi` or `url` in {file}.")
    return Citation(_text(said, "title", file), tuple(people), _licence_url(terms), url)


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ResultsPathError(f"{file} is no regular file.", advice="Give a CITATION.cff.")
    try:
        _, said, faults = read_tree(read_document(file).decode(), origin=str(file))
    except CampaignFileError as error:
        raise UsageError(error.message, advice="Give a CITATION.cff.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is no CITATION.cff: it is not UTF-8 text.", advice="Give a CITATION.cff.") from error
    if faults or not isinstance(said, dict):
        why = f"line {faults[0][0]}: {faults[0][1]}" if faults else "it holds no fields."
        raise UsageError(f"{file} is no CITATION.cff: {why}", advice="See https://citation-file-format.github.io.")
    return said


def _list(said: dict[str, Any], file: Path | None) -> list[dict[str, Any]]:
    people = said.get("authors", [])
    if not isinstance(people, list) or not all(isinstance(person, dict) for person in people):
        raise UsageError(f"`authors` in {file} is no list of persons.", advice="Each has family-names and given-names.")
    return people


def _person(person: dict[str, Any], file: Path | None) -> Author:
    parts = [_text(person, key, file) for key in ("given-names", "name-particle", "family-names", "name-suffix")]
    name = _text(person, "name", file) or " ".join(filter(None, parts))
    orcid = _text(person, "orcid", file)
    return _author(f"{name} <{orcid}>" if orcid else name)


def _author(text: str) -> Author:
    found = _AUTHOR.fullmatch(_plain(text, "an author"))
    if found is None:
        raise UsageError(f"{text!r} is no author.", advice='E.g. --author "Ada Lovelace <0000-0002-1825-0097>"')
    return Author(found["name"], f"https://orcid.org/{found['orcid']}" if found["orcid"] else "")


def _licence_url(text: str | None) -> str:
    if text is None or _URL.fullmatch(text):
        return text or ""
    if not _SPDX.fullmatch(text):
        raise UsageError(
            f"{text!r} is no licence.", advice="Give an SPDX identifier or a URL, e.g. --license CC-BY-4.0"
        )
    return f"https://spdx.org/licenses/{text}"


def _text(said: dict[str, Any], key: str, file: Path | None) -> str:
    value = said.get(key, "")
    if not isinstance(value, str):
        raise UsageError(f"`{key}` in {file} is no text.", advice="Write it in quotes.")
    return _plain(value, f"`{key}` in {file}") if value else ""


def _plain(text: str, what: str) -> str:
    """One line that a terminal can show; quotes are escaped where it is written."""
    if not text.strip() or not text.isprintable() or len(text) > MAX_CHARACTERS:
        raise UsageError(
            f"{what} must be one line of at most {MAX_CHARACTERS} characters, not {text[:40]!r}.",
            advice="Leave out line breaks and control characters.",
        )
    return text.strip()
