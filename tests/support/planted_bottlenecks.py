"""Workloads that are held back by one known thing each, on a GPU: ``model_size`` names it."""

import time

import torch

MEGA = 1 << 20


class Planted:
    name = "planted"

    def __init__(self, settings):
        cause = settings.option("model_size", "host")
        self._run = getattr(self, f"_{cause}")
        self._small = torch.zeros(16, device="cuda")
        getattr(self, f"_make_{cause}", bool)()

    def infer(self):
        self._run()
        torch.cuda.synchronize()
        return 1

    def describe(self):
        properties = torch.cuda.get_device_properties(0)
        return {"device": "cuda", "device_name": properties.name, "device_uuid": f"GPU-{properties.uuid}"}

    def _host(self):
        end_s = time.perf_counter() + 0.02
        while time.perf_counter() < end_s:
            pass
        self._small.add_(1)

    def _make_copy(self):
        self._source = torch.zeros(256 * MEGA, dtype=torch.uint8).pin_memory()
        self._target = torch.zeros(256 * MEGA, dtype=torch.uint8, device="cuda")

    def _copy(self):
        self._target.copy_(self._source, non_blocking=True)
        self._small.add_(1)

    def _launches(self):
        for _ in range(3000):
            self._small.add_(1)

    def _make_memory(self):
        self._summands = [torch.ones(256 * MEGA, device="cuda") for _ in range(3)]

    def _memory(self):
        for _ in range(10):
            torch.add(self._summands[0], self._summands[1], out=self._summands[2])

    def _make_compute(self):
        self._bases = torch.rand(2 * MEGA, device="cuda", dtype=torch.float64) + 0.5
        self._powers = torch.empty_like(self._bases)

    def _compute(self):
        """Powers in double precision: much arithmetic, no tensor cores, and numbers that lie in the cache."""
        for _ in range(200):
            torch.pow(self._bases, self._bases, out=self._powers)

    def _make_power(self):
        self._matrices = [torch.randn(16384, 16384, device="cuda").half() for _ in range(3)]

    def _power(self):
        for _ in range(3):
            torch.mm(self._matrices[0], self._matrices[1], out=self._matrices[2])

    def _make_sync(self):
        self._vector = torch.zeros(8 * MEGA, device="cuda")  # long enough to hide how long asking for its result takes

    def _sync(self):
        for _ in range(300):
            self._vector.add_(1)
            self._vector[0].item()


def make(settings):
    return Planted(settings)
