"""Stands in for nvidia-smi: GPUs that can be divided, kept in a file between its calls.

python -m tests.support.fake_nvidia_smi STATE_FILE WORDS...
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

SLICES = 7
"""Compute slices of one GPU; the first digit of a profile says how many it takes."""
Answer = tuple[int, str]


@dataclass
class Gpu:
    """One GPU.

    Attributes:
        mig: None: it has none.
        pids: of the processes on it.
        held: somebody holds it so that MIG stays pending.
    """

    uuid: str
    mig: bool | None = False
    name: str = "NVIDIA H200"
    instances: list[str] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    held: bool = False


def answer(gpus: list[Gpu], words: Sequence[str]) -> Answer:
    """Exit code and output of ``nvidia-smi WORDS...``; changes the GPUs as it would."""
    words = list(words)
    chosen = gpus
    if "-i" in words:
        at = words.index("-i")
        chosen = [gpus[int(words[at + 1])]]
        del words[at : at + 2]
    match words:
        case [query, "--format=csv,noheader"] if query.startswith("--query-gpu="):
            fields = query.partition("=")[2].split(",")
            said = 0, "".join(_row(index, gpu, fields) for index, gpu in enumerate(gpus))
        case ["--query-compute-apps=pid", "--format=csv,noheader"]:
            said = 0, "".join(f"{pid}\n" for gpu in chosen for pid in gpu.pids)
        case ["-L"]:
            said = 0, "".join(_listed(index, gpu) for index, gpu in enumerate(gpus))
        case ["-mig", "1"]:
            said = 0, "".join(_turn_on(gpu) for gpu in chosen)
        case ["mig", "-dci" | "-dgi"]:
            said = _destroy(chosen, gpu_instances=words[1] == "-dgi")
        case ["mig", "-cgi", profiles, "-C"]:
            said = _create(chosen, profiles.split(","))
        case _:
            said = 2, f"Invalid combination of input arguments: {words}\n"
    return said


def _row(index: int, gpu: Gpu, fields: Sequence[str]) -> str:
    told = {"index": str(index), "uuid": gpu.uuid, "name": gpu.name, "compute_mode": "Default", "compute_cap": "9.0"}
    told |= {"mig.mode.current": {True: "Enabled", False: "Disabled", None: "[N/A]"}[gpu.mig]}
    told |= {"memory.total": "143771 MiB"}
    return ", ".join(told[name] for name in fields) + "\n"


def _listed(index: int, gpu: Gpu) -> str:
    lines = [f"GPU {index}: {gpu.name} (UUID: {gpu.uuid})"]
    for number, profile in enumerate(gpu.instances if gpu.mig else []):
        lines.append(f"  MIG {profile:<11} Device {number:>2}: (UUID: MIG-{gpu.uuid}-{number})")
    return "\n".join(lines) + "\n"


def _turn_on(gpu: Gpu) -> str:
    if gpu.held:
        return f"Warning: MIG mode is in pending enable state for GPU {gpu.uuid}:In use by another client\nAll done.\n"
    gpu.mig = True
    return f"Enabled MIG Mode for GPU {gpu.uuid}\nAll done.\n"


def _destroy(gpus: list[Gpu], *, gpu_instances: bool) -> Answer:
    if not any(gpu.instances for gpu in gpus):
        return 6, "No GPU instances found: Not Found\n"
    if gpu_instances:
        for gpu in gpus:
            gpu.instances.clear()
    return 0, "Successfully destroyed\n"


def _create(gpus: list[Gpu], profiles: list[str]) -> Answer:
    for gpu in gpus:
        if not gpu.mig:
            return 6, "No MIG-enabled devices found.\n"
        for profile in profiles:
            size = re.match(r"\d", profile)
            if size is None:
                return 19, f"Unable to parse the GPU instance profile {profile}\n"
            if sum(int(one[0]) for one in gpu.instances) + int(size[0]) > SLICES:
                return 19, "Unable to create a GPU instance: Insufficient Resources\n"
            gpu.instances.append(profile)
    return 0, "Successfully created GPU instances\n"


def main(state: Path, words: Sequence[str]) -> int:
    """Answer once, from the file and into it."""
    gpus = [Gpu(**one) for one in json.loads(state.read_text())]
    code, said = answer(gpus, words)
    state.write_text(json.dumps([asdict(gpu) for gpu in gpus]))
    sys.stdout.write(said)
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
