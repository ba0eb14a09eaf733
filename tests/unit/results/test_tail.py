"""A log that is read while it is written."""

import numpy as np
import pytest

from harness.errors import StorageError
from harness.results.requests import LATENCY, LatencyTail


def records(*pairs):
    return np.array(list(pairs), dtype=LATENCY)


def test_every_record_comes_once_and_waits_until_it_is_whole_and_for_its_time(tmp_path):
    log = tmp_path / "latencies.bin"
    tail = LatencyTail(log)
    assert len(tail.ended_before(11)) == 0
    log.write_bytes(records((0, 5), (5, 20)).tobytes())
    assert tail.ended_before(11)["start_ns"].tolist() == [0]
    last = records((7, 1)).tobytes()
    with log.open("ab") as stream:
        stream.write(records((6, 2)).tobytes() + last[:7])
    assert tail.ended_before(11)["start_ns"].tolist() == [6]
    with log.open("ab") as stream:
        stream.write(last[7:])
    assert tail.ended_before(30)["start_ns"].tolist() == [5, 7]
    assert len(tail.ended_before(99)) == 0


def test_a_log_that_cannot_be_read_is_an_error_of_storage(tmp_path):
    (tmp_path / "latencies.bin").mkdir()

    with pytest.raises(StorageError):
        LatencyTail(tmp_path / "latencies.bin").ended_before(1)
