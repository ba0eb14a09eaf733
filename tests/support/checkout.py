"""Parts of the checkout in another place: what is built of them leaves nothing behind in it."""

import shutil
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def copy_of_the_checkout(folder: Path, names: Iterable[str]) -> None:
    """Files and folders by their names, below ``folder``."""
    for name in names:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, folder / name)
