"""The second process of data-parallel training, as it is, that leaves its weights after each step: FOLDER/STEP.pt."""

import os
from pathlib import Path

import torch

from harness.replica.models import data_parallel_training

FOLDER_VARIABLE = "SECOND_RANK_FOLDER"


class Observed(data_parallel_training.RankTraining):
    """Saves what it holds."""

    def infer(self) -> int:
        images = super().infer()
        folder = Path(os.environ[FOLDER_VARIABLE])
        torch.save(self.model.state_dict(), folder / "unfinished")
        (folder / "unfinished").rename(folder / f"{self.steps}.pt")
        return images


if __name__ == "__main__":
    data_parallel_training.RankTraining = Observed
    data_parallel_training.live(data_parallel_training._second)
