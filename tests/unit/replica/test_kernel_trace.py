"""The time of a request is divided among what the GPU did and what the host did while the GPU did nothing."""

import pytest

from harness.replica.kernel_trace import account, top_kernels

LAUNCH, WAIT, BARRIER = "cudaLaunchKernel", "cudaStreamSynchronize", "cudaDeviceSynchronize"


def event(category, name, begin, end):
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": end - begin}


def kernel(begin, end):
    return event("kernel", "k", begin, end)


def copied(way, begin, end):
    return event("gpu_memcpy", f"Memcpy {way} (Pinned -> Device)", begin, end)


def host(name, begin, end):
    return event("cuda_runtime", name, begin, end)


BETWEEN = [host(BARRIER, -10, 0), host(BARRIER, 990, 1000)]


def shares(events, requests=1):
    found = account([*BETWEEN, *events], requests)
    return {name: round(value * 1e6, 3) for name, value in found.items()}


def test_all_of_the_time_is_accounted_for():
    found = shares([kernel(100, 300), copied("HtoD", 350, 500), copied("DtoH", 600, 700), host(WAIT, 550, 800)])

    assert sum(found[name] for name in found if name.endswith("_s")) == pytest.approx(1000)
    assert (found["kernel_s"], found["copy_in_s"], found["copy_out_s"]) == (200, 150, 100)


def test_copies_beside_a_kernel_cost_nothing():
    found = shares([kernel(0, 900), copied("HtoD", 100, 800), copied("DtoH", 850, 950)])

    assert (found["copy_in_s"], found["copy_out_s"]) == (0, 50)


def test_short_gaps_are_launches():
    found = shares([kernel(start, start + 10) for start in range(0, 1000, 20)])

    assert found["launch_s"] == 490
    assert found["sync_s"] == 10, "after the last kernel the host only waits"
    assert found["host_s"] == 0


def test_a_long_gap_is_the_host_s():
    found = shares([kernel(0, 100), kernel(900, 1000)])

    assert (found["launch_s"], found["host_s"]) == (50, 750)


def test_a_gap_that_began_while_the_host_waited_is_synchronisation():
    waits = [
        span for start in range(0, 1000, 100) for span in (kernel(start, start + 60), host(WAIT, start + 5, start + 75))
    ]

    found = shares(waits)

    assert found["sync_s"] == 10 * 40
    assert found["launch_s"] == found["host_s"] == 0


def test_what_the_host_does_long_after_it_waited_is_its_own():
    found = shares([kernel(0, 100), host(WAIT, 10, 120), kernel(900, 1000)])

    assert (found["sync_s"], found["host_s"]) == (70, 730)


def test_counts_are_per_request():
    found = account([*BETWEEN, kernel(0, 100), kernel(200, 300), host(LAUNCH, 0, 5), host(LAUNCH, 6, 9)], 2)

    assert (found["kernels"], found["launches"]) == (1, 1)


def test_the_longest_kernels_come_first():
    events = [
        event("kernel", "short", 0, 1),
        event("kernel", "long", 2, 9),
        event("kernel", "long", 10, 11),
        host(WAIT, 0, 99),
    ]

    assert top_kernels(events) == [("long", 2, 8.0), ("short", 1, 1.0)]
