"""Pages that a real Prometheus scrapes, with the labels that a cluster's configuration gives to each target."""

import json
import time

from tests.support.http_double import Answering, Double

PODS = ["work-a", "work-b"]
CONTAINERS = (
    'container_cpu_usage_seconds_total{{namespace="inference",pod="{pod}",container="{container}"}} {cores} {time_ms}\n'
    'container_memory_working_set_bytes{{namespace="inference",pod="{pod}",container="{container}"}} 1e9 {time_ms}\n'
)


class Pages:
    """Two replicas, their containers, a GPU and a node.

    Attributes:
        down: names of the pages that answer 500.
        housekeeping_s: how often the containers are measured; their samples carry their own time, as cAdvisor's do.
        devices: number of GPUs.
        gauges: what is read of each, as DCGM calls it.
    """

    def __init__(self, *, housekeeping_s=0.5, devices=1):
        self.down = set()
        self.housekeeping_s = housekeeping_s
        self.devices = devices
        self.gauges = ["DEV_GPU_UTIL", "DEV_FB_USED", "DEV_POWER_USAGE", "DEV_GPU_TEMP", "PROF_SM_ACTIVE"]
        self._server = Double(_Handler)
        self._server.pages = self
        self._server.__enter__()
        self.begun_s = time.time()

    def page(self, name):
        """The text of one page."""
        now_s = time.time()
        served = int(10 * (now_s - self.begun_s))
        if name in PODS:
            return replica(served * (1 + PODS.index(name)))
        if name == "dcgm":
            return "".join(
                f'DCGM_FI_{gauge}{{gpu="{gpu}",UUID="GPU-{gpu + 1}"}} 60\n'
                for gauge in self.gauges
                for gpu in range(self.devices)
            )
        if name == "node":
            return "".join(
                f"node_pressure_{kind}_waiting_seconds_total {served / 100}\n" for kind in ("cpu", "memory", "io")
            )
        measured_s = now_s // self.housekeeping_s * self.housekeeping_s
        return "".join(
            CONTAINERS.format(
                pod=pod, container=container, cores=measured_s - self.begun_s, time_ms=int(measured_s * 1000)
            )
            for pod in PODS
            for container in ("replica", "POD", "")
        )

    def config(self, interval="1s"):
        """Of the Prometheus that scrapes them."""

        def job(name, page, **labels):
            target = {"targets": [f"127.0.0.1:{self._server.port}"], "labels": labels}
            return {"job_name": name, "metrics_path": f"/{page}", "static_configs": [target]}

        jobs = [job(f"ai-{pod}", pod, namespace="inference", pod=pod, node="n1") for pod in PODS]
        jobs += [job("dcgm-exporter", "dcgm", node="n1"), job("node-exporter", "node", node="n1")]
        jobs += [job("kubelet-cadvisor", "cadvisor", node="n1")]
        scraping = {"scrape_interval": interval, "scrape_timeout": interval}
        return json.dumps({"global": scraping, "scrape_configs": jobs})

    def close(self):
        self._server.__exit__()


def replica(served):
    """What a replica says of itself after so many requests of 20 ms."""
    return (
        f"inference_requests_total {served}\n"
        f'inference_latency_seconds_bucket{{le="0.01"}} 0\n'
        f'inference_latency_seconds_bucket{{le="0.03"}} {served}\n'
        f'inference_latency_seconds_bucket{{le="+Inf"}} {served}\n'
        f"inference_latency_seconds_sum {served * 0.02}\n"
        f"inference_latency_seconds_count {served}\n"
    )


class _Handler(Answering):
    def reply(self):
        pages, name = self.server.pages, self.path.strip("/")
        if name in pages.down:
            self.answer(500)
        else:
            self.answer(200, pages.page(name))
