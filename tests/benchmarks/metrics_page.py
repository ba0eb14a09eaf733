"""What does it take to read an engine's page of metrics? Ours beside prometheus_client's two parsers, which the tests hold it to.

python -m tests.benchmarks.metrics_page

The page is like vLLM's: 40 histograms of 31 buckets, with two labels. All the time the interpreter is held: requests that are due
meanwhile are sent late.
"""

import time

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus

from harness.traffic.exposition import read

TIMES = 20


def page() -> str:
    lines = []
    labels = 'engine="0",model_name="Qwen/Qwen3-0.6B"'
    for number in range(40):
        name = f"vllm:metric_{number}_seconds"
        lines += [f"# HELP {name} Something.", f"# TYPE {name} histogram"]
        lines += [f'{name}_bucket{{{labels},le="{bound}"}} 3.0' for bound in (*range(30), "+Inf")]
        lines += [f"{name}_count{{{labels}}} 3.0", f"{name}_sum{{{labels}}} 3.0"]
    return "\n".join(lines) + "\n"


def main() -> None:
    text = page()
    print(f"{text.count(chr(10))} lines")
    readers = {
        "ours": lambda: read(text),
        "prometheus_client, text": lambda: list(prometheus(text)),
        "prometheus_client, OpenMetrics": lambda: list(openmetrics(text + "# EOF\n")),
    }
    for name, reader in readers.items():
        begun_s = time.process_time()
        for _ in range(TIMES):
            reader()
        print(f"{name}: {1000 * (time.process_time() - begun_s) / TIMES:.1f} ms of CPU time a page")


if __name__ == "__main__":
    main()
