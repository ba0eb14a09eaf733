"""GPUs on a machine that has none, until its next boot.

NVIDIA's own programs (container toolkit, device plugin, MPS control daemon's pod) ask a library that answers as NVML does. Stand-ins
speak of the same GPUs: nvidia-smi, nvidia-cuda-mps-control, which serves nobody, and the traces of a loaded kernel module. A device
file is there, and nothing can be run on it.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.node.machine.errors import MachineError
from tests.node.machine.vm import Machine
from tests.node.mirror.driver import LOAD

LIBRARIES = "/usr/lib/x86_64-linux-gnu"
# Of all GPUs. The MPS daemon's pod sees the machine's processes, and by the first of them its files.
COMPUTE_MODE = "/run/nvidia-compute-mode"
# What the library says of each GPU, as nvidia-smi names it.
ASK = """\
import json, pynvml as nvml
nvml.nvmlInit()
rows = []
for index in range(nvml.nvmlDeviceGetCount()):
    gpu = nvml.nvmlDeviceGetHandleByIndex(index)
    memory_mib = nvml.nvmlDeviceGetMemoryInfo(gpu).total >> 20
    capability = "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(gpu))
    rows.append([index, nvml.nvmlDeviceGetUUID(gpu), nvml.nvmlDeviceGetName(gpu), memory_mib, capability])
print(json.dumps(rows))
"""
# For any shell: containers get it from the machine.
NVIDIA_SMI = """\
#!/bin/sh
# nvidia-smi -L | [-i GPU] --query-gpu=FIELDS | -i GPU -c MODE | --persistence-mode=1
gpus() {{
cat <<'GPUS'
{rows}
GPUS
}}
mode={mode}
[ -e "$mode" ] || mode=/proc/1/root$mode
wanted= chosen= fields=
while [ $# -gt 0 ]; do
  case $1 in
    -i) chosen=$2; shift ;;
    -c) wanted=$2; shift ;;
    -L) gpus | while IFS='|' read -r index uuid name rest; do echo "GPU $index: $name (UUID: $uuid)"; done ;;
    --query-gpu=*) fields=$(echo "${{1#*=}}" | tr , ' ') ;;
  esac
  shift
done
case $wanted in
  EXCLUSIVE_PROCESS) echo Exclusive_Process > "$mode" ;;
  DEFAULT) echo Default > "$mode" ;;
esac
[ -n "$fields" ] || exit 0
gpus | while IFS='|' read -r index uuid name memory capability; do
  [ -z "$chosen" ] || [ "$chosen" = "$index" ] || [ "$chosen" = "$uuid" ] || continue
  row=
  for field in $fields; do
    case $field in
      index) value=$index ;;
      uuid) value=$uuid ;;
      name) value=$name ;;
      memory.total) value="$memory MiB" ;;
      compute_cap) value=$capability ;;
      compute_mode) value=$(cat "$mode") ;;
      mig.mode.current) value=Disabled ;;
      persistence_mode) value=Enabled ;;
      driver_version) value={version} ;;
      *) echo "this stand-in does not know: $field" >&2; exit 2 ;;
    esac
    row="${{row:+$row, }}$value"
  done
  echo "$row"
done
"""
MPS_CONTROL = """\
#!/bin/sh
# The daemon: its files are there, nobody serves them. A command: what a client of the real one would hear.
control=$CUDA_MPS_PIPE_DIRECTORY/control
if [ "$1" = -d ]; then
  echo started > "$CUDA_MPS_LOG_DIRECTORY/control.log"
  echo > "$control"
  echo > /dev/shm/cuda.mps
  exit
fi
[ -e "$control" ] || { echo "Cannot find MPS control daemon process" >&2; exit 1; }
read -r command
case $command in
  get_*) echo 100.0 ;;
  quit) rm "$control" ;;
esac
exit 0
"""


class Gpu(NamedTuple):
    """What the library says of a GPU."""

    index: int
    uuid: str
    name: str
    memory_mib: int
    compute_capability: str


def library_in(folder: Path) -> Path | None:
    """The library that somebody built (libnvidia-ml.so.VERSION), where there is one."""
    return next(iter(sorted(folder.glob("libnvidia-ml.so.*.*"))), None)


def read(library: Path) -> list[Gpu]:
    """The GPUs that a library tells of when nothing in its environment says otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "libnvidia-ml.so.1").symlink_to(library.resolve())
        environment = os.environ | {"LD_LIBRARY_PATH": folder}
        asking = [sys.executable, "-c", ASK]
        done = subprocess.run(asking, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MachineError(f"{library} does not answer as NVML does: {done.stderr.strip()[-600:]}")
    return [Gpu(*row) for row in json.loads(done.stdout)]


def nvidia_smi(gpus: list[Gpu], version: str, mode: str = COMPUTE_MODE) -> str:
    """The program that speaks of these GPUs; mode: the file that it keeps their compute mode in."""
    rows = "\n".join("|".join(map(str, gpu)) for gpu in gpus)
    return NVIDIA_SMI.format(rows=rows, mode=mode, version=version)


def lay(machine: Machine, library: Path) -> list[Gpu]:
    """Give a machine the GPUs that a library tells of."""
    gpus = read(library)
    version = library.name.partition(".so.")[2]
    machine.write_bytes(f"{LIBRARIES}/{library.name}", library.read_bytes())
    machine.write("/usr/bin/nvidia-smi", nvidia_smi(gpus, version))
    machine.write("/usr/bin/nvidia-cuda-mps-control", MPS_CONTROL)
    machine.write("/usr/lib/nvidia/load", LOAD.format(kind="Open Kernel Module", version=version))
    nodes = [*(f"nvidia{gpu.index} c 195 {gpu.index}" for gpu in gpus), "nvidiactl c 195 255"]
    machine.ssh(
        f"chmod 755 {LIBRARIES}/{library.name} /usr/bin/nvidia-smi /usr/bin/nvidia-cuda-mps-control /usr/lib/nvidia/load && ldconfig && "
        f"echo Default > {COMPUTE_MODE} && /usr/lib/nvidia/load && "
        'echo "updates/dkms/nvidia.ko:" >> /lib/modules/$(uname -r)/modules.dep && '
        + " && ".join(f"mknod -m 666 /dev/{node}" for node in nodes)
    )
    return gpus
