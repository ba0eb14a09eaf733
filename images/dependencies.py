"""Print what pyproject.toml asks for, with extras, a requirement a line: an image has it in a layer of its own, which our code does not make anew.

python3 dependencies.py pyproject.toml "[replica,node]"
"""

import re
import sys
import tomllib
from pathlib import Path


def main(path: str, extras: str) -> None:
    """Print the requirements of the project and of its extras, those of extras that they name among them.

    Args:
        path: of pyproject.toml.
        extras: as pip takes them, e.g. ``[replica]``; empty: none.

    Raises KeyError on an extra that there is not.
    """
    project = tomllib.loads(Path(path).read_text())["project"]
    wanted = re.findall(r"[\w.-]+", extras)
    asked = list(project["dependencies"])
    for extra in wanted:  # which grows while it is gone through
        for line in project["optional-dependencies"][extra]:
            own = re.fullmatch(rf"{re.escape(project['name'])}\[(.+)\]", line)
            wanted += [name for name in own[1].split(",") if name not in wanted] if own else []
            asked += [] if own else [line]
    sys.stdout.writelines(f"{line}\n" for line in asked)


if __name__ == "__main__":
    main(*sys.argv[1:])
