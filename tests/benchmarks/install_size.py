"""What the base installation takes: seconds and megabytes of a fresh environment with the wheel, without extras.

    python -m tests.benchmarks.install_size

The megabytes are those that the installation adds to an environment with pip, compiled files included. The seconds
depend on how fast the package index answers; what pip keeps from earlier is not used. The last line is what the
data frames of the API take with all that they need.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LARGEST = 12
_MB = 1 << 20


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run(
            [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT], check=True, timeout=600
        )
        (wheel,) = folder.glob("*.whl")
        begin_s = time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, timeout=600)
        site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
        before, before_bytes = _installed(site), _tree_bytes(site)
        python = [folder / "venv/bin/python", "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*python, "install", "--no-cache-dir", wheel], check=True, timeout=1800)
        took_s = time.monotonic() - begin_s
        added = {package: one for package, one in _installed(site).items() if package not in before}
        sizes = {package: _bytes(one) for package, one in added.items()}
        print(f"{(_tree_bytes(site) - before_bytes) / _MB:.0f} MB (bar: below 425), {took_s:.0f} s (bar: below 60)")
        for name, size in sorted(sizes.items(), key=lambda item: -item[1])[:LARGEST]:
            print(f"{size / _MB:7.1f} MB  {name}")
        frames = set(_with_needs("pandas", added))
        print(f"{sum(sizes[name] for name in frames) / _MB:.0f} MB are pandas with what it needs")


def _tree_bytes(site: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in site.rglob("*"))


def _installed(site: Path) -> dict[str, Distribution]:
    return {canonicalize_name(one.metadata["Name"]): one for one in distributions(path=[str(site)])}


def _bytes(one: Distribution) -> int:
    """On disk, compiled files included."""
    return sum(path.lstat().st_blocks * 512 for file in one.files or () if (path := Path(str(file.locate()))).exists())


def _with_needs(name: str, installed: Mapping[str, Distribution]) -> Iterator[str]:
    yield name
    for need in map(Requirement, installed[name].requires or ()):
        if need.marker is None or need.marker.evaluate({"extra": ""}):
            yield from _with_needs(canonicalize_name(need.name), installed)


if __name__ == "__main__":
    main()
