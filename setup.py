"""What pyproject.toml cannot say: a wheel carries the templates, playbooks and roles, which lie beside the package."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

CARRIED = ("ansible.cfg", "inventory", "playbooks", "plugins", "roles", "site.yml", "templates")


class BuildWithData(build_py):
    """Puts what is carried below ``harness/_data`` (see harness/data.py); an editable install reads the checkout."""

    def run(self) -> None:
        """Build."""
        package = Path(self.build_lib, "harness")
        if not self.editable_mode:
            shutil.rmtree(package, ignore_errors=True)  # setuptools never removes what an older version had
        super().run()
        if self.editable_mode:
            return
        target = package / "_data"
        target.mkdir(parents=True)
        for name in CARRIED:
            source = Path(__file__).with_name(name)
            if source.is_dir():
                shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
            else:
                shutil.copy2(source, target)


setup(cmdclass={"build_py": BuildWithData})
