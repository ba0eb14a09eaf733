"""Recorder of nvidia-ctk: there is no GPU here, so it only writes down what it was asked."""

import sys
from pathlib import Path

from recorded import option, record, version_of

SPECIFICATION = (
    '{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "all", "containerEdits": {}}]}\n'
)


def main() -> None:
    arguments = sys.argv[1:]
    record("nvidia-ctk", arguments)
    if "--version" in arguments:
        print(f"NVIDIA Container Toolkit CLI version {version_of('nvidia-container-toolkit-base')}")
    elif arguments[:2] == ["cdi", "generate"]:
        if output := option(arguments, "--output", "-o"):
            Path(output).parent.mkdir(parents=True, exist_ok=True)
            Path(output).write_text(SPECIFICATION)
        else:
            print(SPECIFICATION, end="")
    elif arguments[:2] == ["cdi", "list"]:
        print("nvidia.com/gpu=all")
