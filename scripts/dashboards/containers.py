"""Containers, as the kubelet's cAdvisor and kube-state-metrics see them."""

from __future__ import annotations

from scripts.dashboards.model import Dashboard, Panel, Query, Variable
from scripts.dashboards.queries import CONTAINERS, PODS, per_pod, rate

_ALL_CONTAINERS = 'container!="",container!="POD"'


def _by_pod(expression: str) -> str:
    return f"sum by (pod) ({expression})"


def _by_namespace(expression: str) -> str:
    return f"sum by (namespace) ({expression})"


CONTAINER_METRICS = Dashboard(
    uid="container-metrics",
    title="Container Metrics",
    about="CPU, memory, network, file system and state of the chosen pods, and of all namespaces side by side.",
    variables=[
        Variable("namespace", "Namespace", "inference_info", "namespace"),
        Variable("pod", "Pod", 'inference_info{namespace=~"$namespace"}', "pod"),
    ],
    rows={
        "AI workloads": [
            Panel("CPU", [per_pod("cpu_usage")], unit="short", about="Cores kept busy."),
            Panel(
                "Memory",
                [per_pod("memory_usage")],
                unit="bytes",
                about="Working set: what the kubelet counts when memory runs out.",
            ),
            Panel(
                "CPU pressure",
                [
                    Query(
                        f"100 * max by (pod) ({rate('container_pressure_cpu_waiting_seconds_total', CONTAINERS)})",
                        "{{pod}}",
                    )
                ],
                unit="percent",
                about="Share of the time in which at least one of the container's own tasks waited for a CPU.",
            ),
            Panel(
                "Memory and IO pressure",
                [
                    Query(
                        f"100 * max by (pod) ({rate('container_pressure_memory_waiting_seconds_total', CONTAINERS)})",
                        "{{pod}} memory",
                    ),
                    Query(
                        f"100 * max by (pod) ({rate('container_pressure_io_waiting_seconds_total', CONTAINERS)})",
                        "{{pod}} IO",
                    ),
                ],
                unit="percent",
                about="Share of the time in which at least one of the container's own tasks waited for memory, or for IO.",
            ),
            # The network belongs to the pod: its rows carry the name of no container of ours.
            Panel(
                "Network",
                [
                    Query(_by_pod(rate("container_network_receive_bytes_total", PODS)), "{{pod}} received"),
                    Query(_by_pod(rate("container_network_transmit_bytes_total", PODS)), "{{pod}} sent"),
                ],
                unit="Bps",
                about="Of the pod, all its containers together.",
            ),
            Panel(
                "File system",
                [
                    Query(_by_pod(rate("container_fs_reads_bytes_total", CONTAINERS)), "{{pod}} read"),
                    Query(_by_pod(rate("container_fs_writes_bytes_total", CONTAINERS)), "{{pod}} written"),
                    Query(_by_pod(f"container_fs_usage_bytes{{{CONTAINERS}}}"), "{{pod}} in use", unit="bytes"),
                ],
                unit="Bps",
                about="Read and written by the containers, and on the right the space that they have in use.",
            ),
            Panel(
                "Restarts",
                [Query(_by_pod(f"kube_pod_container_status_restarts_total{{{PODS}}}"), "{{pod}}")],
                about="Since the pod was made; one during a recording spoils it.",
            ),
            Panel(
                "Out of memory",
                [Query(_by_pod(f"container_oom_events_total{{{CONTAINERS}}}"), "{{pod}}")],
                about="Times that a process of the container was ended for memory.",
            ),
        ],
        "Pods": [
            Panel(
                "State",
                [
                    Query(f"max by (namespace, pod, phase) (kube_pod_status_phase{{{PODS}}} == 1)", ""),
                    Query(
                        f'max by (namespace, pod) (kube_pod_status_ready{{{PODS},condition="true"}})', "", "bool_yes_no"
                    ),
                    Query(f"time() - max by (namespace, pod) (kube_pod_start_time{{{PODS}}})", "", "dtdurations"),
                ],
                "table",
                about="Phase, readiness and age of each pod.",
                width=24,
                columns={
                    "namespace": "Namespace",
                    "pod": "Pod",
                    "phase": "Phase",
                    "Value #B": "Ready",
                    "Value #C": "Age",
                },
            ),
        ],
        "All namespaces": [
            Panel(
                "CPU by namespace",
                [Query(_by_namespace(rate("container_cpu_usage_seconds_total", _ALL_CONTAINERS)), "{{namespace}}")],
                unit="short",
                about="Cores kept busy.",
                stacked=True,
            ),
            Panel(
                "Memory by namespace",
                [Query(_by_namespace(f"container_memory_working_set_bytes{{{_ALL_CONTAINERS}}}"), "{{namespace}}")],
                unit="bytes",
                about="Working sets of all containers.",
                stacked=True,
            ),
            Panel(
                "Network received by namespace",
                [Query(_by_namespace(rate("container_network_receive_bytes_total", 'pod!=""')), "{{namespace}}")],
                unit="Bps",
                about="Of all pods.",
            ),
            Panel(
                "Pods by phase",
                [Query("sum by (phase) (kube_pod_status_phase)", "{{phase}}")],
                unit="short",
                about="Of all namespaces.",
            ),
        ],
    },
)
