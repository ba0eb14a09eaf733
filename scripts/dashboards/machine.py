"""The node: what it has to give, and how long its tasks wait for it."""

from __future__ import annotations

from scripts.dashboards.model import Dashboard, Panel, Query, Variable
from scripts.dashboards.queries import NODE, per_node, rate

_NODE = Variable("node", "Node", "node_uname_info", "node")
_DISKS = f'{NODE},fstype!~"tmpfs|ramfs|overlay|squashfs|nsfs"'
_IDLE = f'{NODE},mode="idle"'
_WORKING = f'{NODE},mode!="idle"'
_BLOCK = f'{NODE},device!~"loop.+|ram.+|dm-.+"'

SYSTEM_RESOURCES = Dashboard(
    uid="system-resources",
    title="System Resources",
    about="CPU, memory, disks and network of the nodes.",
    variables=[_NODE],
    rows={
        "Now": [
            Panel(
                "CPU",
                [Query(f"node:cpu_usage:percent{{{NODE}}}")],
                "gauge",
                "percent",
                width=6,
                height=5,
                maximum=100,
                bands=True,
            ),
            Panel(
                "Memory",
                [Query(f"node:memory_usage:percent{{{NODE}}}")],
                "gauge",
                "percent",
                width=6,
                height=5,
                maximum=100,
                bands=True,
            ),
            Panel(
                "Disks",
                [Query(f"node:disk_usage:percent{{{NODE}}}", "{{node}} {{mountpoint}}")],
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
            Panel("CPU in total", [Query(f"node:cpu_usage:percent{{{NODE}}}")], unit="percent", maximum=100),
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
            ),
            Panel("Memory in percent", [Query(f"node:memory_usage:percent{{{NODE}}}")], unit="percent", maximum=100),
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
                width=24,
            ),
        ],
    },
)


def _pressure(resource: str, kind: str) -> Query:
    return Query(
        f'node:pressure:percent{{{NODE},resource="{resource}",kind="{kind}"}}', "{{node}} {{resource}}, {{kind}}"
    )


_SCORE = Query(f"node:pressure:score{{{NODE}}}")

SYSTEM_PRESSURE = Dashboard(
    uid="system-pressure",
    title="System Pressure",
    about="How long tasks wait for CPU, memory and IO (PSI). Empty is below 10 %, modest below 70 %, high up to 90 %, critical above.",
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
                [
                    _pressure("cpu", "some"),
                    _pressure("memory", "some"),
                    _pressure("memory", "full"),
                    _pressure("io", "some"),
                    _pressure("io", "full"),
                ],
                "bargauge",
                "percent",
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
            Panel("Load state over time", [_SCORE], "state-timeline", "percent", width=24, height=5, bands=True),
            Panel("Score over time", [_SCORE], unit="percent", width=24, maximum=100, bands=True),
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
