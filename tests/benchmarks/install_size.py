"""What the base installation takes: seconds and megabytes of a fresh environment with the wheel, without extras.

    python -m tests.benchmarks.install_size

The megabytes are those that the installation adds to an environment with pip, compiled files included. The seconds
depend on how fast the package index answers; what pip keeps from earlier is not used.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
LARGEST = 12
_MB = 1 << 20


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run(
            [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT], check=True, timeout=600
        )
        (wheel,) = folder.glob("*.whl")
        begin_s = time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True, timeout=600)
        site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
        before = _sizes(site)
        python = [folder / "venv/bin/python", "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*python, "install", "--no-cache-dir", wheel], check=True, timeout=1800)
        took_s = time.monotonic() - begin_s
        added = {name: size for name, size in _sizes(site).items() if name not in before}
        print(f"{sum(added.values()) / _MB:.0f} MB (bar: below 250), {took_s:.0f} s (bar: below 60)")
        for top, size in sorted(added.items(), key=lambda item: -item[1])[:LARGEST]:
            print(f"{size / _MB:7.1f} MB  {top}")


def _sizes(site: Path) -> dict[str, int]:
    """Bytes on disk by what lies at the top of the folder of packages."""
    return {top.name: sum(path.lstat().st_blocks * 512 for path in [top, *top.rglob("*")]) for top in site.iterdir()}


if __name__ == "__main__":
    main()
