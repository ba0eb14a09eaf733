"""The node: what it has to give, and how long its tasks wait for it."""

from __future__ import annotations

from scripts.dashboards.model import Dashboard, Panel, Query, Variable
from scripts.dashboards.queries import NODE, per_node, rate

_NODE = Variable("node", "Node", "node_uname_info", "node")
_DISKS = f'{NODE},fstype!~"tmpfs|ramfs|overlay|squashfs|nsfs"'
_IDLE = f'{NODE},mode="idle"'
_WORKING = f'{NODE},mode!="idle"'
_BLOCK = f'{NODE},device!~"loop.+|ram.+|dm-.+"'

_CPU = Query(f"100 * (1 - avg by (node) ({rate('node_cpu_seconds_total', _IDLE)}))")
_MEMORY = Query(
    f"100 * (1 - max by (node) (node_memory_MemAvailable_bytes{{{NODE}}}) / max by (node) (node_memory_MemTotal_bytes{{{NODE}}}))"
)
_FULL = Query(
    f"100 * (1 - max by (node, mountpoint) (node_filesystem_avail_bytes{{{_DISKS}}})"
    f" / max by (node, mountpoint) (node_filesystem_size_bytes{{{_DISKS}}} > 0))",
    "{{node}} {{mountpoint}}",
)
_CPU_ABOUT = "Share of the time in which the cores of a node did something."
_MEMORY_ABOUT = "Memory that is not available to a new process, of all there is."

SYSTEM_RESOURCES = Dashboard(
    uid="system-resources",
    title="System Resources",
    about="CPU, memory, disks and network of the nodes.",
    variables=[_NODE],
    rows={
        "Now": [
            Panel(
                "CPU",
                [_CPU],
                "gauge",
                "percent",
                _CPU_ABOUT,
                width=6,
                height=5,
                maximum=100,
                bands=True,
            ),
            Panel(
                "Memory",
                [_MEMORY],
                "gauge",
                "percent",
                _MEMORY_ABOUT,
                width=6,
                height=5,
                maximum=100,
                bands=True,
            ),
            Panel(
                "Disks",
                [_FULL],
                "bargauge",
                "percent",
                "Space in use on each file system.",
                width=6,
                height=5,
                maximum=100,
                bands=True,
            ),
            Panel(
                "Load",
                [Query(f"node_load1{{{NODE}}}"), Query(f"node_load15{{{NODE}}}", "{{node}}, 15 min")],
                "stat",
                about="Tasks that run or wait, mean of one minute and of fifteen.",
                width=6,
                height=5,
            ),
        ],
        "CPU": [
            Panel("CPU in total", [_CPU], unit="percent", about=_CPU_ABOUT, maximum=100),
            Panel(
                "CPU by what it does",
                [Query(f"100 * avg by (mode) ({rate('node_cpu_seconds_total', _WORKING)})", "{{mode}}")],
                unit="percent",
                about="Mean of all cores of the chosen nodes.",
                maximum=100,
                stacked=True,
            ),
            Panel(
                "Cores",
                [
                    Query(
                        f"100 * (1 - sum by (node, cpu) ({rate('node_cpu_seconds_total', _IDLE)}))",
                        "{{node}} core {{cpu}}",
                    )
                ],
                unit="percent",
                about="Share of the time in which each core did something.",
                width=24,
                maximum=100,
            ),
        ],
        "Memory": [
            Panel(
                "Memory in use",
                [
                    Query(
                        f"node_memory_MemTotal_bytes{{{NODE}}} - node_memory_MemAvailable_bytes{{{NODE}}}",
                        "{{node}} in use",
                    ),
                    Query(f"node_memory_Cached_bytes{{{NODE}}}", "{{node}} file cache"),
                    Query(f"node_memory_MemTotal_bytes{{{NODE}}}", "{{node}} in all"),
                ],
                unit="bytes",
                about="In use is what is not available to a new process; the file cache gives way when memory is short.",
            ),
            Panel("Memory in percent", [_MEMORY], unit="percent", about=_MEMORY_ABOUT, maximum=100),
        ],
        "Disks": [
            Panel(
                "Read and written",
                [
                    Query(
                        f"sum by (node, device) ({rate('node_disk_read_bytes_total', _BLOCK)})",
                        "{{node}} {{device}} read",
                    ),
                    Query(
                        f"sum by (node, device) ({rate('node_disk_written_bytes_total', _BLOCK)})",
                        "{{node}} {{device}} written",
                    ),
                ],
                unit="Bps",
                about="Of the disks themselves, without loop, RAM and mapped devices.",
            ),
            Panel(
                "Busy",
                [
                    Query(
                        f"100 * sum by (node, device) ({rate('node_disk_io_time_seconds_total', _BLOCK)})",
                        "{{node}} {{device}}",
                    )
                ],
                unit="percent",
                about="Share of the time in which the device had something to do.",
            ),
            Panel(
                "Space left",
                [
                    Query(
                        f"max by (node, mountpoint) (node_filesystem_avail_bytes{{{_DISKS}}})",
                        "{{node}} {{mountpoint}}",
                    )
                ],
                unit="bytes",
                about="What an unprivileged process can still write to each file system.",
                width=24,
            ),
        ],
        "Network": [
            Panel(
                "Received",
                [
                    Query(
                        f"sum by (node, device) ({rate('node_network_receive_bytes_total', NODE)})",
                        "{{node}} {{device}}",
                    )
                ],
                unit="Bps",
                about="By network device, those of pods included.",
            ),
            Panel(
                "Sent",
                [
                    Query(
                        f"sum by (node, device) ({rate('node_network_transmit_bytes_total', NODE)})",
                        "{{node}} {{device}}",
                    )
                ],
                unit="Bps",
                about="By network device, those of pods included.",
            ),
            Panel(
                "Errors and drops",
                [
                    Query(
                        f"sum by (node, device) ({rate('node_network_receive_errs_total', NODE)} + {rate('node_network_transmit_errs_total', NODE)})",
                        "{{node}} {{device}} errors",
                    ),
                    Query(
                        f"sum by (node, device) ({rate('node_network_receive_drop_total', NODE)} + {rate('node_network_transmit_drop_total', NODE)})",
                        "{{node}} {{device}} drops",
                    ),
                ],
                unit="pps",
                about="Packets received or sent with an error, or dropped.",
                width=24,
            ),
        ],
    },
)


_COUNTERS = {
    ("cpu", "some"): "node_pressure_cpu_waiting_seconds_total",
    ("memory", "some"): "node_pressure_memory_waiting_seconds_total",
    ("memory", "full"): "node_pressure_memory_stalled_seconds_total",
    ("io", "some"): "node_pressure_io_waiting_seconds_total",
    ("io", "full"): "node_pressure_io_stalled_seconds_total",
}


def _pressure(resource: str, kind: str) -> Query:
    waited = rate(_COUNTERS[resource, kind], NODE)
    return Query(f"100 * max by (node) ({waited})", f"{{{{node}}}} {resource}, {kind}")


def _score() -> Query:
    """The largest pressure of the three; a label of its own keeps each apart from the others until the largest is taken."""
    waited = (
        f'label_replace({rate(counter, NODE)}, "resource", "{resource}", "", "")'
        for (resource, kind), counter in _COUNTERS.items()
        if kind == "some"
    )
    return Query(f"100 * max by (node) ({' or '.join(waited)})")


_SCORE = _score()

SYSTEM_PRESSURE = Dashboard(
    uid="system-pressure",
    title="System Pressure",
    about="How long tasks wait for CPU, memory and IO (PSI). Empty is below 10%, modest below 70%, high up to 90%, critical above.",
    variables=[_NODE],
    rows={
        "Now": [
            Panel("Load state", [_SCORE], "stat", "percent", "The score's name.", width=6, height=6, bands=True),
            Panel(
                "Score",
                [_SCORE],
                "gauge",
                "percent",
                "The largest of the three pressures: a machine is as loaded as the resource that its tasks wait for most.",
                width=6,
                height=6,
                maximum=100,
                bands=True,
            ),
            Panel(
                "Pressures",
                [_pressure(resource, kind) for resource, kind in _COUNTERS],
                "bargauge",
                "percent",
                "Share of the time in which some tasks, or all of them (full), waited for it.",
                width=12,
                height=6,
                maximum=100,
                bands=True,
            ),
        ],
        "CPU, memory and IO": [
            Panel(
                "CPU",
                [per_node("cpu_psi")],
                unit="percent",
                about="At least one task waits for a CPU.",
                width=8,
                maximum=100,
                bands=True,
            ),
            Panel(
                "Memory",
                [per_node("memory_psi", "{{node}} some"), _pressure("memory", "full")],
                unit="percent",
                about="At least one task waits for memory (some); all of them do (full).",
                width=8,
                maximum=100,
                bands=True,
            ),
            Panel(
                "IO",
                [per_node("io_psi", "{{node}} some"), _pressure("io", "full")],
                unit="percent",
                about="At least one task waits for IO (some); all of them do (full).",
                width=8,
                maximum=100,
                bands=True,
            ),
        ],
        "History": [
            Panel(
                "Load state over time",
                [_SCORE],
                "state-timeline",
                "percent",
                "The score's name at each time.",
                width=24,
                height=5,
                bands=True,
            ),
            Panel(
                "Score over time",
                [_SCORE],
                unit="percent",
                about="The largest of the three pressures.",
                width=24,
                maximum=100,
                bands=True,
            ),
            Panel(
                "Alerts",
                [
                    Query(
                        'count by (severity) (ALERTS{alertstate="firing"}) or label_replace(vector(0), "severity", "none", "", "")',
                        "{{severity}}",
                    )
                ],
                about="Firing now, by severity; Prometheus lists them under /alerts.",
                width=24,
                height=5,
            ),
        ],
    },
)
