"""The latency log on disk: exact, flushed within a second, torn only at its end."""

import errno
import os
import struct
import time
from pathlib import Path

import pytest

from harness.traffic import records as record_log
from harness.traffic.records import RecordLog


def records(path: Path) -> list[tuple[int, int]]:
    return list(struct.iter_unpack("<qq", path.read_bytes()))


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "latencies.bin"


@pytest.mark.parametrize("most_bytes", [7, 1 << 20])
def test_records_are_two_little_endian_int64_however_short_a_write_is(path, monkeypatch, most_bytes):
    real_write = os.write
    monkeypatch.setattr(record_log.os, "write", lambda file, data: real_write(file, bytes(data[:most_bytes])))
    log = RecordLog(path)
    log.append(1_795_233_600_123_456_789, 5_500_000)
    log.append(1_795_233_600_200_000_000, 1)
    log.close()
    assert path.read_bytes()[:8] == (1_795_233_600_123_456_789).to_bytes(8, "little")
    assert records(path) == [(1_795_233_600_123_456_789, 5_500_000), (1_795_233_600_200_000_000, 1)]


def test_records_reach_the_file_without_another_request(path):
    log = RecordLog(path)
    log.append(1, 2)
    deadline_s = time.monotonic() + 60.0
    while path.stat().st_size == 0 and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert records(path) == [(1, 2)]
    log.close()


def test_a_torn_record_is_dropped_by_the_next_writer(path):
    path.write_bytes(struct.pack("<qq", 1, 10) + b"torn")
    log = RecordLog(path)
    log.append(2, 20)
    log.close()
    assert records(path) == [(1, 10), (2, 20)]


def test_closing_twice_is_closing(path):
    log = RecordLog(path)
    log.append(1, 2)
    log.close()
    log.close()
    assert path.stat().st_size == 2 * 8


def test_a_full_disk_ends_the_log_at_a_whole_number_of_writes_and_tells_the_loop(path, monkeypatch):
    log = RecordLog(path)
    log.append(1, 2)
    log.flush()

    def full(_file, _data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(record_log.os, "write", full)
    log.append(3, 4)
    with pytest.raises(OSError, match="No space left"):
        log.flush()
    monkeypatch.undo()
    with pytest.raises(OSError, match="No space left"):
        log.append(5, 6)
    log.close()
    assert records(path) == [(1, 2)], "space that came back must not hide the hole"


def test_appending_costs_the_loop_microseconds(path):
    log = RecordLog(path)
    count = 50_000
    start_s = time.process_time()
    for number in range(count):
        log.append(number, number)
    per_request_s = (time.process_time() - start_s) / count
    log.close()
    assert len(records(path)) == count
    assert per_request_s < 20e-6
