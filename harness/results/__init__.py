"""What an experiment leaves behind: crash-safe files, the manifest, and the check that nobody touched them."""

from harness.results.experiment import finalise
from harness.results.files import atomic_write
from harness.results.manifest import FileEntry, Manifest, Status, StepRecord, Verdict, read_manifest
from harness.results.verification import Problem, Verification, verify_experiment
from harness.results.writers import ExperimentWriter

__all__ = [
    "ExperimentWriter",
    "FileEntry",
    "Manifest",
    "Problem",
    "Status",
    "StepRecord",
    "Verdict",
    "Verification",
    "atomic_write",
    "finalise",
    "read_manifest",
    "verify_experiment",
]
