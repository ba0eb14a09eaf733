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


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (
            [kernel(0, 900), copied("HtoD", 100, 800), copied("DtoH", 850, 950)],
            {"copy_in_s": 0, "copy_out_s": 50},
        ),
        (
            [kernel(start, start + 10) for start in range(0, 1000, 20)],
            {"launch_s": 490, "sync_s": 10, "host_s": 0},  # after the last kernel the host only waits
        ),
        ([kernel(0, 100), kernel(900, 1000)], {"launch_s": 50, "host_s": 750}),
        (
            [span for at in range(0, 1000, 100) for span in (kernel(at, at + 60), host(WAIT, at + 5, at + 75))],
            {"sync_s": 400, "launch_s": 0, "host_s": 0},
        ),
        ([kernel(0, 100), host(WAIT, 10, 120), kernel(900, 1000)], {"sync_s": 70, "host_s": 730}),
    ],
    ids=["copies beside a kernel", "short gaps", "a long gap", "gaps that began in a wait", "long after a wait"],
)
def test_time_without_a_kernel_is_divided_by_what_the_host_did(events, expected):
    found = shares(events)
    assert {name: found[name] for name in expected} == expected


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
