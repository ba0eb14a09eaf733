"""Where a campaign comes from: a file of the user's, or one that is shipped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from urllib.parse import urlsplit

from harness.errors import CampaignFileError
from harness.metrics.catalogue import CATALOGUE
from harness.results.files import storage_errors
from harness.results.layout import CAMPAIGN_JSON, CAMPAIGN_YAML
from harness.spec import CampaignSpec
from harness.spec.load import parse_campaign
from harness.spec.model import nearest
from harness.spec.yaml_tree import MAX_CHARACTERS

SHIPPED = Path(__file__).with_name("shipped")
SHIPPED_PREFIX = "shipped:"
GIVEN = "given as text"


@dataclass(frozen=True, slots=True)
class CampaignSource:
    """A campaign file as read: its text word for word, and its absolute path or ``shipped:<name>``."""

    spec: CampaignSpec
    text: str
    origin: str


def shipped_names() -> list[str]:
    """Names that ``read_source`` takes without a file."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def read_source(file_or_name: str) -> CampaignSource:
    """Read a campaign file, or a shipped one by its name. Raises CampaignFileError."""
    path = Path(file_or_name)
    with storage_errors(path, "read"):
        is_file = path.is_file()
    if is_file:
        origin = str(path.absolute())
    elif file_or_name in shipped_names():
        path, origin = SHIPPED / f"{file_or_name}.yaml", f"{SHIPPED_PREFIX}{file_or_name}"
    else:
        if path.is_dir():
            raise CampaignFileError(f"{path} is a folder, and no campaign file.", advice=_of_a_folder(path))
        if path.exists():
            raise CampaignFileError(f"{path} is no regular file, so no campaign file.", advice="Give a file of text.")
        raise CampaignFileError(
            f"there is no campaign file {file_or_name}, and no shipped campaign of that name: {nearest(file_or_name, shipped_names())}",
            advice="Write one with: harness init FILE",
        )
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_CHARACTERS + 1)
    except OSError as error:
        denied = isinstance(error, PermissionError)
        raise CampaignFileError(
            f"cannot read the campaign file {path}: {error.strerror}.",
            advice="Give yourself the right to read it." if denied else "Give a file of text.",
        ) from error
    except UnicodeDecodeError as error:
        raise CampaignFileError(
            f"{path} is no campaign file: it is not UTF-8 text.", advice="Write one with: harness init FILE"
        ) from error
    return _source(text, file_or_name, origin)


def _of_a_folder(path: Path) -> str:
    """What to give instead, or which command takes it."""
    if (path / CAMPAIGN_JSON).exists():
        return f"To go on with that campaign: harness resume {quote(str(path))}. To run it anew: harness run {quote(str(path / CAMPAIGN_YAML))}"
    files = sorted(file.name for file in path.glob("*.yaml"))
    return f"Give a file of it, e.g. {quote(str(path / files[0]))}" if files else "Write one with: harness init FILE"


def given(text: str) -> CampaignSource:
    """A campaign that comes from no file. Raises CampaignFileError."""
    return _source(text, "the campaign given", GIVEN)


def _source(text: str, name: str, origin: str) -> CampaignSource:
    spec = parse_campaign(text, origin=name, metrics=CATALOGUE)
    _refuse_password(spec, name)
    return CampaignSource(spec, text, origin)


def _refuse_password(spec: CampaignSpec, name: str) -> None:
    """The file is kept with the results, which are published. Raises CampaignFileError."""
    url = (spec.kubernetes and spec.kubernetes.prometheus_url) or ""
    if urlsplit(url).username is not None:
        raise CampaignFileError(
            f"{name} has a name and a password in `kubernetes.prometheus_url`, and it is kept with the results.",
            advice="Leave them out, and name a file with `Basic ` and their base64 in `kubernetes.prometheus_access.token_file`.",
        )
