#!/usr/bin/python3
"""Makes a machine steady: clocks and power of its GPUs, the governor of its CPUs, units that work at times of their own.

apply does what is not done and says it; undo brings back what was there before; check says what is not as it should be.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

SETTINGS = Path("/etc/node-profile.json")
BEFORE = Path("/var/lib/node-profile/before.json")
CPUS = Path("/sys/devices/system/cpu")
STEADY = "performance"
# An idle GPU shows the supported clock next to the one that was asked for.
CLOCK_STEP_MHZ = 15
QUERY = "clocks.gr,clocks.max.gr,power.limit,power.min_limit,power.max_limit,power.default_limit"


class ProfileError(Exception):
    """What cannot be done, and what to do next."""


def run(*words: str) -> str:
    """A command's output; ProfileError with its own words when it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProfileError(f"{' '.join(words)} ended with {done.returncode}: {(done.stdout + done.stderr).strip()}")
    return done.stdout


def number(text: str) -> float | None:
    """A figure of nvidia-smi; None where the GPU has none ([N/A])."""
    try:
        return float(text)
    except ValueError:
        return None


def gpus() -> list[dict[str, float | None]]:
    """Clocks in MHz and limits in W of every GPU; none where there is no nvidia-smi."""
    if not shutil.which("nvidia-smi"):
        return []
    rows = run("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits").splitlines()
    names = QUERY.split(",")
    return [dict(zip(names, map(number, row.split(", ")), strict=True)) for row in rows if row.strip()]


def judge(wanted: dict[str, Any], found: list[dict[str, float | None]]) -> None:
    """Ends with ProfileError, before anything is changed, where a GPU cannot have what is wanted."""
    for index, gpu in enumerate(found):
        clock, most = wanted["gpu_clock_mhz"], gpu["clocks.max.gr"]
        if clock and most and clock > most:
            raise ProfileError(f"node_profile_gpu_clock_mhz is {clock}; GPU {index} runs at {most:.0f} MHz at most")
        watts, low, high = wanted["gpu_power_w"], gpu["power.min_limit"], gpu["power.max_limit"]
        if watts and (low is None or high is None):
            raise ProfileError(f"node_profile_gpu_power_w is {watts}; GPU {index} has no limit that can be set")
        if watts and low is not None and high is not None and not low <= watts <= high:
            raise ProfileError(f"node_profile_gpu_power_w is {watts}; GPU {index} accepts {low:.0f} to {high:.0f} W")


def unit(name: str) -> dict[str, str]:
    """What systemd says of a unit."""
    text = run("systemctl", "show", "--property", "LoadState,ActiveState,UnitFileState", "--", name)
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def governors() -> list[Path]:
    """The file of every CPU whose clock can be governed, and that knows the steady way."""
    files = sorted(CPUS.glob("cpu[0-9]*/cpufreq/scaling_governor"))
    return [one for one in files if STEADY in one.with_name("scaling_available_governors").read_text().split()]


def remember(before: dict[str, Any]) -> None:
    """Writes down what was there before, in one step, ahead of the change itself."""
    BEFORE.parent.mkdir(parents=True, exist_ok=True)
    new = BEFORE.with_suffix(".new")
    new.write_text(json.dumps(before))
    new.replace(BEFORE)


def known() -> dict[str, Any]:
    """What was there before the first change."""
    return dict(json.loads(BEFORE.read_text())) if BEFORE.exists() else {"governors": {}, "units": {}, "gpu": []}


def apply(wanted: dict[str, Any]) -> list[str]:
    """Brings everything to what is wanted; says what that changed."""
    found, before, done = gpus(), known(), []
    judge(wanted, found)
    done += free(before, [name for name in before["units"] if name not in wanted["quiet_units"]])
    for name in wanted["quiet_units"]:
        values = unit(name)
        if values.get("LoadState") == "loaded":
            before["units"].setdefault(name, values.get("ActiveState") == "active")
            remember(before)
            run("systemctl", "mask", "--now", name)
            done.append(f"{name} masked")
    for path in governors():
        if (now := path.read_text().strip()) != STEADY:
            before["governors"].setdefault(str(path), now)
            remember(before)
            path.write_text(STEADY)
            done.append(f"{path.parts[-3]} {STEADY}")
    return done + hold_gpus(wanted, found, before)


def hold_gpus(wanted: dict[str, Any], found: list[dict[str, float | None]], before: dict[str, Any]) -> list[str]:
    """Locks clocks and limits power; frees what was and is no longer wanted."""
    done = []
    clock, watts = wanted["gpu_clock_mhz"], wanted["gpu_power_w"]
    asked = [name for name, value in (("clock", clock), ("power", watts)) if value and found]
    gone = [name for name in before["gpu"] if name not in asked]
    if asked != before["gpu"]:
        remember({**before, "gpu": sorted({*asked, *before["gpu"]})})
    done += free_gpus(gone, found)
    if clock and any(not held(gpu["clocks.gr"], clock) for gpu in found):
        run("nvidia-smi", f"--lock-gpu-clocks={clock},{clock}")
        done.append(f"GPUs locked to {clock} MHz")
    if watts and any(gpu["power.limit"] != watts for gpu in found):
        run("nvidia-smi", f"--power-limit={watts}")
        done.append(f"GPUs limited to {watts} W")
    if asked != before["gpu"]:
        remember({**before, "gpu": asked})
    return done


def held(clock: float | None, wanted: int) -> bool:
    """Whether a GPU runs at the clock that it was locked to."""
    return clock is not None and abs(clock - wanted) <= CLOCK_STEP_MHZ


def free(before: dict[str, Any], names: list[str]) -> list[str]:
    """Unmasks units, and starts those that ran."""
    for name in names:
        run("systemctl", "unmask", name)
        if before["units"][name]:
            run("systemctl", "start", name)
        del before["units"][name]
        remember(before)
    return [f"{name} unmasked" for name in names]


def free_gpus(names: list[str], found: list[dict[str, float | None]]) -> list[str]:
    """Lets clocks go, and power back to what the GPU came with."""
    if "clock" in names and found:
        run("nvidia-smi", "--reset-gpu-clocks")
    for index, gpu in enumerate(found if "power" in names else []):
        if gpu["power.default_limit"] is not None:
            run("nvidia-smi", f"--id={index}", f"--power-limit={gpu['power.default_limit']:.0f}")
    return [f"{name} of the GPUs free" for name in names]


def undo(_wanted: dict[str, Any]) -> list[str]:
    """Brings back what was there before the first change; says what that changed."""
    before = known()
    done = free(before, list(before["units"]))
    for path, governor in before["governors"].items():
        Path(path).write_text(governor)
        done.append(f"{Path(path).parts[-3]} {governor}")
    done += free_gpus(before["gpu"], gpus() if before["gpu"] else [])
    BEFORE.unlink(missing_ok=True)
    if BEFORE.parent.exists():
        BEFORE.parent.rmdir()
    return done


def check(wanted: dict[str, Any]) -> list[str]:
    """What is not as wanted."""
    found = gpus()
    wrong = [name for name in wanted["quiet_units"] if unit(name).get("LoadState") == "loaded"]
    wrong += [f"{path.parts[-3]} {now}" for path in governors() if (now := path.read_text().strip()) != STEADY]
    clock, watts = wanted["gpu_clock_mhz"], wanted["gpu_power_w"]
    wrong += [f"clock {gpu['clocks.gr']} MHz" for gpu in found if clock and not held(gpu["clocks.gr"], clock)]
    return wrong + [f"power limit {gpu['power.limit']} W" for gpu in found if watts and gpu["power.limit"] != watts]


def main() -> None:
    """Runs the program: one word, apply, undo or check."""
    verbs = {"apply": apply, "undo": undo, "check": check}
    verb = sys.argv[1] if len(sys.argv) == 2 else ""
    if verb not in verbs:
        raise SystemExit(f"usage: node-profile {' | '.join(verbs)}")
    try:
        said = verbs[verb](json.loads(SETTINGS.read_text()) if SETTINGS.exists() else {})
    except (OSError, ProfileError) as error:
        raise SystemExit(f"{error}. Correct it in the inventory and run the role node_profile again.") from error
    sys.stdout.write("".join(f"{line}\n" for line in said))
    if verb == "check" and said:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
