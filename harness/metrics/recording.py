"""What every way to record promises: the embedded recorder, or a Prometheus that watches the same replicas."""

from __future__ import annotations

from typing import Protocol

from harness.metrics.summary import RecordingSummary


class Recording(Protocol):
    """Rows of every series, from a start on the grid."""

    def record(self, start_s: float, rows: int) -> RecordingSummary:
        """Record ``rows`` rows of every series; call it one window and a step before ``start_s``.

        Args:
            start_s: grid time of row 0, seconds since the epoch; a whole multiple of the step.
            rows: rows per series.

        Raises:
            MetricsError: nothing can be recorded at all; what is missing in part is in the rows, with its reason.
            StorageError: the rows cannot be written.
        """
        ...
