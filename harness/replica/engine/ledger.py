"""Where the requests of a server's own load go: the histograms on /metrics, and the exact times on disk.

``requests.bin`` has a record of CLIENT_FIELDS for each. ``gaps.bin``: the time of a token (nanoseconds since the epoch) and the gap
to the next; after the last token of an answer that did not end well, to the end of its request. Requests that were answered well
are in ``latencies.bin``, too, as every replica's are.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from pathlib import Path

from harness.replica.custom_metrics import Counter, Histogram
from harness.replica.metrics import RequestMetrics
from harness.traffic.records import ABANDONED, CLIENT_FIELDS, NONE, OK, Exchange, RecordLog, nearest_rank

REQUESTS_LOG, GAPS_LOG = "requests.bin", "gaps.bin"
P99 = 0.99


class Families:
    """What /metrics shows of a server beside latencies and requests, all measured at the client."""

    def __init__(self, *, streams: bool) -> None:
        self.ttft = Histogram(
            "inference_client_ttft_seconds", "From the intended time of a request to its first token, at the client."
        )
        self.itl = Histogram("inference_client_itl_seconds", "Gap between two tokens of an answer, at the client.")
        self.tpot = Histogram(
            "inference_client_tpot_seconds", "Mean time of each token after the first one of an answer, at the client."
        )
        self.input_tokens = Counter("inference_client_input_tokens_total", "Tokens of the requests answered.")
        self.output_tokens = Counter("inference_client_output_tokens_total", "Tokens of the answers.")
        self.failed = Counter("inference_client_failed_requests_total", "Requests that got no proper answer.")
        of_tokens = (self.ttft, self.itl, self.tpot, self.input_tokens, self.output_tokens)
        self.published = (*(of_tokens if streams else ()), self.failed)


class ServerLedger:
    """Books the requests of the load; those of the warm-up never come here. Without ``latency_log`` or ``folder`` nothing is kept."""

    def __init__(
        self, families: Families, metrics: RequestMetrics, latency_log: RecordLog | None, folder: Path | None
    ) -> None:
        self.failures: Tally[str] = Tally()
        self.first_failure = ""
        self._families = families
        self._metrics = metrics
        self._latencies = latency_log
        self._requests = RecordLog(folder / REQUESTS_LOG, fields=len(CLIENT_FIELDS)) if folder else None
        self._gaps = RecordLog(folder / GAPS_LOG) if folder else None
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()

    def on_depth(self, depth: int) -> None:
        """So many requests are in flight."""
        self._metrics.in_flight = depth

    def book(self, exchange: Exchange) -> None:
        """Count one request that ended or was abandoned. Raises OSError when a log cannot be written."""
        gaps_ns = exchange.gaps_ns
        if exchange.status == OK:
            self._observe(exchange, gaps_ns)
        elif exchange.status != ABANDONED:
            self._families.failed.add(1)
            self.failures[str(exchange.status)] += 1
            self.first_failure = self.first_failure or exchange.said
        if self._requests:
            self._requests.append(
                self._epoch_ns + exchange.intended_ns,
                exchange.send_error_ns,
                exchange.latency_ns,
                exchange.ttft_ns,
                p99(gaps_ns),
                exchange.input_tokens,
                exchange.output_tokens,
                exchange.status,
            )
        if self._gaps:
            open_ns = [exchange.end_ns - exchange.token_ns[-1]] if exchange.token_ns and exchange.status != OK else []
            for begin_ns, gap_ns in zip(exchange.token_ns, gaps_ns + open_ns, strict=False):
                self._gaps.append(self._epoch_ns + begin_ns, gap_ns)

    def close(self) -> None:
        """Write what is pending. Raises OSError."""
        for log in (self._requests, self._gaps):
            if log:
                log.close()

    def _observe(self, exchange: Exchange, gaps_ns: list[int]) -> None:
        self._metrics.observe(exchange.latency_ns, 1)
        if self._latencies:
            self._latencies.append(self._epoch_ns + exchange.intended_ns, exchange.latency_ns)
        families = self._families
        families.input_tokens.add(max(exchange.input_tokens, 0))
        families.output_tokens.add(max(exchange.output_tokens, 0))
        if exchange.token_ns:
            families.ttft.observe(exchange.ttft_ns)
            for gap_ns in gaps_ns:
                families.itl.observe(gap_ns)
            if exchange.output_tokens > 1:
                spent_ns = exchange.token_ns[-1] - exchange.token_ns[0]
                families.tpot.observe(spent_ns // (exchange.output_tokens - 1))


def p99(values: list[int]) -> int:
    """The smallest value that 99 % do not exceed; NONE without any."""
    return sorted(values)[nearest_rank(len(values), P99) - 1] if values else NONE
