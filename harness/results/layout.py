"""Where everything lies in a results folder, and how its files are named.

    results/<campaign>/
      campaign.yaml  campaign.json  state.jsonl  lock
      attempts/<experiment>-<n>/     work in progress, and failures, kept
      <experiment>/                  done: appears by one rename, with manifest.json inside
      report.html  report.md  summary.csv  summary.json  campaign.parquet  plots/
      report.sha256                  of those, as sha256sum writes it

Timestamps in names are the UTC start of the recording (``20260131T235959Z``), timestamps in files are
ISO-8601 with milliseconds and ``Z``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from glob import glob
from pathlib import Path

MANIFEST = "manifest.json"
WIDE = "wide.csv"
SAMPLES = "samples.parquet"
SERVER_LOG = "server.log"
TELEMETRY = "telemetry.csv"
LATENCIES = "latencies"  # of runs from before there was REQUESTS
REQUESTS = "requests.parquet"
LOGS = "logs"
REPLICAS = "replicas"
ATTEMPTS = "attempts"
RAW_LATENCIES = "latencies.bin"
SERVICES = "services.bin"
NEIGHBOURS = "neighbours"
PROMETHEUS = "prometheus.json"
CAMPAIGN_JSON = "campaign.json"
CAMPAIGN_FORMAT = 3
"""Of ``campaign.json``; 1 had no digest, 2 was of before there was the table of requests."""
CAMPAIGN_YAML = "campaign.yaml"
STATE = "state.jsonl"
REPORT_HTML = "report.html"
REPORT_SUMS = "report.sha256"
SUMMARY_CSV = "summary.csv"
SUMMARY_JSON = "summary.json"
CAMPAIGN_PARQUET = "campaign.parquet"

MAX_REASON = 240
"""Characters of a reason, which stands in every row, and in full in the manifest."""
METRIC_COLUMNS = ("timestamp", "elapsed_s", "series", "value", "reason")
WIDE_COLUMNS = ("timestamp", "cpu_util", "ram_usage", "gpu_util", "gpu_memory", "latency")

_METRIC_FILE = re.compile(r"^[a-z0-9][a-z0-9-]*_r\d+_([a-z0-9_]+)_\d{8}T\d{6}Z\.csv$")


def stamp(time_s: float) -> str:
    """UTC time for a file name, e.g. ``20260131T235959Z``."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y%m%dT%H%M%SZ")


def iso(time_s: float) -> str:
    """UTC time for a file's content, e.g. ``2026-01-31T23:59:59.000Z``, rounded to the millisecond."""
    moment = datetime.fromtimestamp(round(time_s * 1000) / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@functools.lru_cache(4096)  # every metric's rows have the same times
def from_iso(text: str) -> float:
    """Seconds since the epoch of a timestamp that ``iso`` wrote. Raises ValueError on anything else."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment.timestamp()


def metric_file_name(workload: str, replicas: int, metric: str, start_s: float) -> str:
    """Name of one metric's CSV, e.g. ``resnet50_r3_latency_p95_20260131T235959Z.csv``."""
    return f"{workload}_r{replicas}_{metric}_{stamp(start_s)}.csv"


def metric_files(folder: Path) -> dict[str, Path]:
    """The metric CSVs of one experiment, by metric."""
    names = sorted(glob("*.csv", root_dir=folder))  # noqa: PTH207 - names sort in a tenth of the time of Paths
    paths = {match[1]: folder / name for name in names if (match := _METRIC_FILE.match(name))}
    return {metric: path for metric, path in paths.items() if path.is_file()}


def neighbour_folder(folder: Path, workload: str) -> Path:
    """Where a workload that ran beside the measured one has what an experiment has: logs, replicas, latencies."""
    return folder / NEIGHBOURS / workload


def workload_folders(folder: Path) -> dict[str, Path]:
    """The folders of an experiment's workloads: the measured one's under "", then those of its neighbours by name."""
    beside = folder / NEIGHBOURS
    folders = sorted(path for path in beside.iterdir() if path.is_dir()) if beside.is_dir() else []
    return {"": folder, **{path.name: path for path in folders}}


def replica_folder(folder: Path, replica: int) -> Path:
    """Where replica number ``replica`` of the experiment in ``folder`` writes its status and latency log."""
    return folder / REPLICAS / f"replica-{replica}"


def replica_log(folder: Path, replica: int) -> Path:
    """Where the output of replica number ``replica`` is kept."""
    return folder / LOGS / f"replica-{replica}.log"


def server_log(folder: Path, replica: int) -> Path:
    """What the user's own server of a replica printed."""
    return replica_folder(folder, replica) / SERVER_LOG


def mps_logs(folder: Path) -> Path:
    """Where the MPS daemon and server of an experiment log."""
    return folder / LOGS / "mps"


def attempt_folder(campaign_folder: Path, experiment_id: str, number: int) -> Path:
    """Work in progress of attempt ``number`` (1-based) of one experiment."""
    return campaign_folder / ATTEMPTS / f"{experiment_id}-{number}"


def experiment_folders(campaign_folder: Path) -> Iterator[Path]:
    """The finished experiments of a campaign, by name: every folder that holds a manifest."""
    for path in sorted(campaign_folder.iterdir()):
        if path.is_dir() and (path / MANIFEST).is_file():
            yield path
