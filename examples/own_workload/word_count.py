"""A workload of your own: any object with ``infer()``, made by a function that takes the replica's settings.

Try it from this folder:

    WORKLOAD=word_count:make PORT=8000 REPLICA_DIR=/tmp/replica python -m harness.replica

or name it in a campaign file: ``factory: word_count:make``.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Mapping
from typing import Protocol


class Settings(Protocol):
    """What this workload reads of the settings it is given."""

    batch_size: int
    seed: int
    replica: int
    options: Mapping[str, str | int | float | bool]


class WordCount:
    """Counts the words of synthetic texts, one batch a request."""

    name = "word-count"

    def __init__(self, settings: Settings) -> None:
        words = int(settings.options.get("words_per_text", 1000))
        start = settings.seed + settings.replica
        texts = [" ".join(f"word{(start + text) * word % 199}" for word in range(words)) for text in range(8)]
        batches = [[text] * settings.batch_size for text in texts]
        self._next_batch = itertools.cycle(batches).__next__

    def infer(self) -> int:
        """Serve one request and return how many inputs it had; the result must be there when this returns."""
        texts = self._next_batch()
        for text in texts:
            collections.Counter(text.split()).most_common(10)
        return len(texts)

    def describe(self) -> dict[str, object]:
        """Optional: facts for ``replica.json`` and the manifest."""
        return {"device": "cpu", "device_name": "any"}

    def close(self) -> None:
        """Optional: called once, after the last request."""


def make(settings: Settings) -> WordCount:
    """Called once by the replica; may take as long as it needs, the replica is not ready before."""
    return WordCount(settings)
