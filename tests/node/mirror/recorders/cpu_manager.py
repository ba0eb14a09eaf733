"""How a kubelet hands out CPUs: what it writes down of that, and that it does not begin with what another policy wrote."""

import json
from pathlib import Path

from recorded import fail

_STATE = Path("/var/lib/kubelet/cpu_manager_state")


def take_up(settings: dict[str, object]) -> None:
    """Begin with the policy of the configuration, as the kubelet does; end where it would."""
    policy = settings.get("cpuManagerPolicy", "none")
    if policy == "static" and not settings.get("reservedSystemCPUs"):
        fail("the static CPU policy keeps at least a part of a CPU for the system, and the configuration names none")
    if not _STATE.exists():
        _STATE.write_text(json.dumps({"policyName": policy, "defaultCpuSet": "", "checksum": 0}))
        _STATE.chmod(0o600)
    elif (found := json.loads(_STATE.read_text())["policyName"]) != policy:
        fail(f'configured policy "{policy}" differs from policy "{found}" in {_STATE}; delete that file first')
