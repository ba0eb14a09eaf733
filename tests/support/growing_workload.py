"""A workload that needs no torch and has memory for a batch of 16."""

import time

MOST = 16


class Growing:
    name = "growing"

    def __init__(self, settings):
        self.batch_size = settings.batch_size

    def infer(self):
        if self.batch_size > MOST:
            raise MemoryError
        time.sleep(0.002)
        return self.batch_size

    def describe(self):
        return {"device": "cpu", "device_name": "any"}

    def evaluate(self):
        return {"accuracy": 0.5, "loss": 0.7}


def make(settings):
    return Growing(settings)
