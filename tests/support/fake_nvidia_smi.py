"""Stands in for nvidia-smi: GPUs that can be divided, locked to a clock and limited, kept in a file between its calls.

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
IDLE_MHZ, MOST_MHZ = 345, 1980
LEAST_W, MOST_W = 200, 700
LIMITS_W = {"min": LEAST_W, "max": MOST_W, "default": MOST_W}
Answer = tuple[int, str]


@dataclass
class Gpu:
    """One GPU.

    Attributes:
        mig: None: it has none.
        pids: of the processes on it.
        held: somebody holds it so that MIG stays pending.
        locked_mhz: the clock that it is locked to; None: free.
        power_w: the limit that is set.
    """

    uuid: str
    mig: bool | None = False
    name: str = "NVIDIA H200"
    instances: list[str] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    held: bool = False
    locked_mhz: int | None = None
    power_w: int = MOST_W

    @property
    def clock_mhz(self) -> int:
        """The clock it runs at: idle, where nothing locks it."""
        return self.locked_mhz or IDLE_MHZ


def answer(gpus: list[Gpu], words: Sequence[str]) -> Answer:
    """Exit code and output of ``nvidia-smi WORDS...``; changes the GPUs as it would."""
    words = list(words)
    chosen = gpus
    if "-i" in words:
        at = words.index("-i")
        chosen = [gpus[int(words[at + 1])]]
        del words[at : at + 2]
    elif words and words[0].startswith("--id="):
        chosen = [gpus[int(words.pop(0).partition("=")[2])]]
    match words:
        case [query, "--format=csv,noheader" | "--format=csv,noheader,nounits" as form] if query.startswith(
            "--query-gpu="
        ):
            fields = query.partition("=")[2].split(",")
            rows = "".join(_row(index, gpu, fields) for index, gpu in enumerate(gpus))
            said = 0, re.sub(r" (MiB|MHz|W)\b", "", rows) if form.endswith("nounits") else rows
        case ["--query-compute-apps=pid", "--format=csv,noheader"]:
            said = 0, "".join(f"{pid}\n" for gpu in chosen for pid in gpu.pids)
        case ["-q", "-x"]:
            said = 0, "".join(map(_described, gpus))
        case ["-L"]:
            said = 0, "".join(_listed(index, gpu) for index, gpu in enumerate(gpus))
        case _:
            said = _changed(chosen, words)
    return said


def _changed(gpus: list[Gpu], words: list[str]) -> Answer:
    match words:
        case ["-mig", "1"]:
            said = 0, "".join(_turn_on(gpu) for gpu in gpus)
        case ["mig", "-dci" | "-dgi"]:
            said = _destroy(gpus, gpu_instances=words[1] == "-dgi")
        case ["mig", "-cgi", profiles, "-C"]:
            said = _create(gpus, profiles.split(","))
        case [lock] if lock.startswith("--lock-gpu-clocks="):
            said = _lock(gpus, int(lock.rpartition(",")[2]))
        case ["--reset-gpu-clocks"]:
            said = _lock(gpus, None)
        case [limit] if limit.startswith("--power-limit="):
            said = _limit(gpus, int(limit.partition("=")[2]))
        case _:
            said = 2, f"Invalid combination of input arguments: {words}\n"
    return said


def _row(index: int, gpu: Gpu, fields: Sequence[str]) -> str:
    told = {"index": str(index), "uuid": gpu.uuid, "name": gpu.name, "compute_mode": "Default", "compute_cap": "9.0"}
    told |= {"mig.mode.current": {True: "Enabled", False: "Disabled", None: "[N/A]"}[gpu.mig]}
    told |= {"memory.total": "143771 MiB"}
    told |= {
        "clocks.gr": f"{gpu.clock_mhz} MHz",
        "clocks.max.gr": f"{MOST_MHZ} MHz",
        "power.limit": f"{gpu.power_w}.00 W",
    }
    told |= {f"power.{name}_limit": f"{watts}.00 W" for name, watts in LIMITS_W.items()}
    return ", ".join(told[name] for name in fields) + "\n"


def _described(gpu: Gpu) -> str:
    clocks = f"<clocks>\n<graphics_clock>{gpu.clock_mhz} MHz</graphics_clock>\n</clocks>"
    power = (
        f"<gpu_power_readings>\n<current_power_limit>{gpu.power_w}.00 W</current_power_limit>\n</gpu_power_readings>"
    )
    return f"<gpu>\n{clocks}\n{power}\n</gpu>\n"


def _lock(gpus: list[Gpu], mhz: int | None) -> Answer:
    for gpu in gpus:
        gpu.locked_mhz = mhz
    return 0, "All done.\n"


def _limit(gpus: list[Gpu], watts: int) -> Answer:
    if not LEAST_W <= watts <= MOST_W:
        return (
            2,
            f"Provided power limit {watts}.00 W is not a valid power limit which should be between {LEAST_W}.00 W and {MOST_W}.00 W\n",
        )
    for gpu in gpus:
        gpu.power_w = watts
    return 0, "All done.\n"


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
