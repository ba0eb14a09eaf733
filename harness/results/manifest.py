"""The manifest: everything about one experiment that its numbers do not say themselves."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError

from harness.errors import ReasonCode, ResultsPathError
from harness.results.files import read_document, sha256_of, storage_errors
from harness.results.layout import MANIFEST
from harness.spec import ExperimentSpec
from harness.spec.model import StrictModel, first_in_words

SCHEMA_VERSION: Literal[2] = 2
"""Of what is written; 1 had logs of latencies in place of the table of requests."""


class Status(StrEnum):
    """How far an experiment can be trusted."""

    VALID = "VALID"
    DEGRADED = "DEGRADED"
    INVALID = "INVALID"


class Verdict(StrictModel):
    """The judgement, with its grounds."""

    status: Status = Field(description="INVALID experiments enter no average.")
    reasons: list[str] = Field(default_factory=list, description="Why it is not VALID; empty when it is.")
    codes: list[ReasonCode] = Field(default_factory=list, description="The same for programs, one per reason.")
    advice: list[str] = Field(default_factory=list, description="What to do about each reason.")

    @property
    def coded_reasons(self) -> list[tuple[ReasonCode, str]]:
        """Every reason with its code; UNKNOWN in results of before there were codes, as their prose is not guessed at."""
        return list(zip(chain(self.codes, repeat(ReasonCode.UNKNOWN)), self.reasons, strict=False))


class StepRecord(StrictModel):
    """One step of the experiment as it went."""

    started_at: str = Field(description="UTC, ISO-8601.")
    seconds: float = Field(ge=0)
    ok: bool
    reasons: list[str] = Field(default_factory=list)


class FileEntry(StrictModel):
    """One file of the experiment's folder."""

    sha256: str
    bytes: int
    rows: int | None = Field(default=None, description="Data rows of a table; None for anything else.")

    @classmethod
    def of(cls, path: Path, rows: int | None = None) -> Self:
        """That of a file that is there. Raises OSError."""
        return cls(sha256=sha256_of(path), bytes=path.stat().st_size, rows=rows)


class Host(StrictModel):
    """The machine. None: it could not be read."""

    hostname: str
    os: str
    kernel: str
    architecture: str
    cpu_model: str
    cpus: int = Field(description="CPUs this process may use.")
    memory_bytes: int | None
    cgroup_version: int | None
    psi: bool | None
    virtualization: str | None = None
    limits: dict[str, float | None] = Field(
        default_factory=dict,
        description="The tightest limits of the control groups that this process is in: `cpus` of the quota, `cpuset_cpus`, "
        "`memory_bytes`, `memory_high_bytes`, `pids`; without those that are not set.",
    )


class Gpu(StrictModel):
    """One GPU. None: the driver does not tell."""

    index: int
    name: str
    uuid: str
    memory_bytes: int | None = None
    driver: str | None = None
    cuda: str | None = None
    clock_sm_max_mhz: int | None = None
    clock_memory_max_mhz: int | None = None
    clock_sm_applied_mhz: int | None = None
    power_limit_w: float | None = None
    compute_mode: str | None = None
    mig: bool | None = None


class Software(StrictModel):
    """What ran."""

    harness: str
    git_commit: str | None = Field(description="None: not run from a git checkout.")
    git_dirty: bool | None = None
    python: str
    packages: dict[str, str]


class Provenance(StrictModel):
    """Where the numbers come from."""

    host: Host
    gpus: list[Gpu]
    gpus_absent: str = Field(default="", description="Why `gpus` is empty; empty when it is not.")
    software: Software

    def used_by(self, replicas: Sequence[Mapping[str, Any]]) -> list[Gpu]:
        """The GPUs that the replicas say they ran on; all of the machine's where they do not say, as MIG instances."""
        return [gpu for gpu in self.gpus if gpu.uuid in said_uuids(replicas)] or self.gpus


def said_uuids(replicas: Sequence[Mapping[str, Any]]) -> set[str]:
    """The GPUs that replicas say they compute on."""
    facts = [replica.get(fact) for replica in replicas for fact in ("device_uuid", "second_device_uuid")]
    return {str(uuid) for uuid in facts if uuid}


class Condensed(StrictModel):
    """What a published set has in place of files that were recorded."""

    resolution_ns: int = Field(
        gt=0, description="Instants are rounded to its multiples; durations and their percentiles are off by less."
    )
    recorded: dict[str, FileEntry] = Field(description="The files that were recorded and are replaced or left out.")
    recorded_digest: str = Field(description="`digest` of the manifest that lists them.")


_LATEST_S = 253402300799.0
"""The last second of the year 9999, which is the last that a date can have."""


class Manifest(StrictModel):
    """``manifest.json``: written last, so that a folder without one is no experiment."""

    schema_version: Literal[1, 2] = SCHEMA_VERSION
    experiment_id: str
    campaign: str
    attempt: int = Field(ge=1)
    experiment: ExperimentSpec
    command: list[str] = Field(default_factory=list, description="The command line that ran it.")
    provenance: Provenance
    replicas: list[dict[str, Any]] = Field(
        default_factory=list, description="The last replica.json of each replica, in order."
    )
    neighbours: dict[str, list[dict[str, Any]]] = Field(
        default_factory=dict, description="The same of each workload that ran beside the measured one, by its name."
    )
    steps: dict[str, StepRecord] = Field(default_factory=dict)
    switch: dict[str, Any] = Field(
        default_factory=dict,
        description="Of a switch of the nodes' sharing mode: the configuration, when it came how far (UTC), and its seconds; empty "
        "where nothing was switched.",
    )
    seeds: dict[str, int] = Field(default_factory=dict)
    loads: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Of each workload that is asked from a file: its name, sha256, form, counts of requests and of what was dropped, and rate.",
    )
    start: dict[str, Any] = Field(
        default_factory=dict,
        description="With `sweep.one_start`: the name of the start of the replicas, the experiments that it was to serve in their order, the place "
        "of this one (from 1), whether the replicas had served another load before (warm), and the start before it with why that ended.",
    )
    start_s: float = Field(
        ge=0, le=_LATEST_S, description="UTC start of the recording (row 0), seconds since the epoch."
    )
    rows: int = Field(ge=0, description="Rows of every series of every metric.")
    absent_metrics: dict[str, str] = Field(default_factory=dict, description="Metric to reason.")
    recording: dict[str, Any] = Field(default_factory=dict, description="The recorder's summary.")
    stopping: dict[str, Any] = Field(
        default_factory=dict, description="Why the recording was as long as it was; empty when the clock alone decided."
    )
    telemetry: dict[str, Any] = Field(default_factory=dict, description="The GPU telemetry's summary.")
    findings: list[dict[str, str | None]] = Field(default_factory=list, description="What the quality check found.")
    verdict: Verdict
    files: dict[str, FileEntry] = Field(default_factory=dict, description="Every other file of the folder.")
    condensed: Condensed | None = Field(
        default=None, description="What was done to the files when they were published; None: they are as recorded."
    )
    digest: str = Field(default="", description="sha256 of this manifest's content without this field.")

    @property
    def gpus(self) -> list[Gpu]:
        """The GPUs that the replicas ran on."""
        return self.provenance.used_by(self.replicas)

    @property
    def on_cpu(self) -> bool:
        """Whether no replica was on a GPU: each says so, or none does on a machine without one."""
        devices = {str(replica["device"]) for replica in self.replicas if replica.get("device")}
        return devices == {"cpu"} or not (devices or self.provenance.gpus)

    @property
    def gpus_paid(self) -> int:
        """How many GPUs the experiment took: those of the campaign, or more where its replicas were on more, or held more."""
        held = sum(int(replica.get("gpus_held") or 0) for replica in self.replicas)
        return max(self.experiment.gpus, len(said_uuids(self.replicas)), held)

    @property
    def answered_within_s(self) -> float:
        """How long after its row's time, at most, a reading was; 0 where nobody says: a server scraped, or an earlier version recorded."""
        said = self.recording.get("answered_within_s")
        return said if isinstance(said, float) and 0 <= said < math.inf else 0.0

    @property
    def inputs_per_request(self) -> float | None:
        """Inputs that a request held, as the replicas counted them; None: nobody says how many a workload of one's own served."""
        counted = [(replica.get("requests"), replica.get("inputs")) for replica in self.replicas]
        known = [
            (requests, inputs) for requests, inputs in counted if isinstance(requests, int) and isinstance(inputs, int)
        ]
        if requests := sum(requests for requests, _ in known):
            return sum(inputs for _, inputs in known) / requests
        workload = self.experiment.workload
        # Results of before replicas said so: the built-in workloads serve what they are asked for.
        return None if workload.factory and not workload.scenario else workload.inputs_per_request

    def sealed(self) -> Manifest:
        """A copy whose ``digest`` fits its content."""
        return self.model_copy(update={"digest": content_digest(json.loads(self.to_json()))})

    def to_json(self) -> str:
        """The file's text."""
        return self.model_dump_json(indent=2) + "\n"


def content_digest(content: Mapping[str, Any]) -> str:
    """The sha256 that the field ``digest`` of this document must be: of all its other fields.

    Of what is in the file, not of the model: a later version of the model knows more fields.
    """
    others = {name: value for name, value in content.items() if name != "digest"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of one finished experiment.

    Raises ResultsPathError (there is none, or it is not one of ours; says at which field), StorageError.
    """
    path = folder / MANIFEST
    with storage_errors(path, "read"):
        if not path.is_file():
            raise ResultsPathError(
                f"{folder} holds no {MANIFEST}, so it is not a finished experiment.",
                advice="Give the folder of an experiment or of a campaign.",
            )
    text = read_document(path)
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        for fault in error.errors():
            if fault["loc"] == ("schema_version",) and isinstance(fault["input"], int):
                raise ResultsPathError(
                    f"{path} is of another version of the harness: schema_version must be at most {SCHEMA_VERSION} here.",
                    advice="Use the version of the harness that wrote it.",
                ) from error
        raise ResultsPathError(
            f"{path} is not a manifest of this harness: {first_in_words(error)}.",
            advice="Restore it from a backup, or run the experiment again.",
        ) from error
