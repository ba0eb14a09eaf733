"""Our client and another program's, asking the same fake server with the same trace: ``server_client.py --against``.

The fake writes down when it sends each token, so that each client is held against what happened in its own run, and not only against the
other. The other program is none of our dependencies: its path is given.
"""

import contextlib
import dataclasses
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from harness.replica.engine.readiness import HOST, takes_connections
from harness.replica.engine.workload import Families, ServerLedger, ServerLoad
from harness.replica.metrics import RequestMetrics
from harness.spec.server import ServerSpec
from harness.traffic.clients import HttpClient
from harness.traffic.questions import questions
from harness.traffic.records import CLIENT_FIELDS, OK
from tests.support.ports import free_port

FIRST_S, GAP_S = 0.05, 0.02
PER_S, TOKENS = 20, (20, 80)
GOOD_MS = 1000
"""A request answered within it is a good one; about half of them are."""
SAMPLE_S = 0.2
TIMEOUT_S = 600


@dataclasses.dataclass
class Seen:
    """What a client says, by request; times in ms, from when it was sent; ``gaps`` None: it does not say them."""

    ttft: np.ndarray
    tpot: np.ndarray
    latency: np.ndarray
    first: np.ndarray
    tokens: np.ndarray
    per_s: float
    good_share: float
    gaps: list | None = None


def side_by_side(name, program, seconds):
    """Print both, each held against what the fake did in its own run."""
    with tempfile.TemporaryDirectory() as folder:
        file = written_trace(Path(folder) / "trace.jsonl", seconds)
        ours = [sys.executable, "-m", "tests.benchmarks.foreign_clients", "{port}", str(file), "{folder}"]
        rows = [
            told(*of_one(Path(folder) / "ours", ours, read_ours)),
            told(*of_one(Path(folder) / name, FOREIGN[name][0](program, file, Path(folder)), FOREIGN[name][1])),
        ]
    print(f"{'':34}{'ours':>22}{name:>22}   (in brackets: what the server itself saw in that run)")
    for label in rows[0]:
        print(f"{label:34}{rows[0][label]:>22}{rows[1][label]:>22}")


def written_trace(file, seconds):
    chance, at_s, lines = random.Random(0), 0.0, []
    while at_s < seconds:
        entry = {"timestamp": round(1000 * at_s), "input_length": 30, "output_length": chance.randint(*TOKENS)}
        lines.append(json.dumps(entry))
        at_s += chance.expovariate(PER_S)
    file.write_text("\n".join(lines) + "\n")
    return file


@contextlib.contextmanager
def timed_server(folder, *, first_s, gap_s, spread=0.0):
    """The port of a fake that leaves the times of its tokens in a file, the file, and its process."""
    port, times = free_port(), folder / "times.json"
    fake = [sys.executable, "-m", "tests.support.fake_streaming_server", "--port", str(port), "--times", str(times)]
    command = [*fake, "--gap-s", str(gap_s), "--first-s", str(first_s), "--spread", str(spread)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        while not takes_connections(port):
            time.sleep(0.1)
        yield port, times, server
        server.terminate()


def of_one(folder, command, read):
    """What a client said, what the fake did (s: each request read, its tokens sent), and the client's processor seconds meanwhile."""
    folder.mkdir()
    with timed_server(folder, first_s=FIRST_S, gap_s=GAP_S) as (port, times), (folder / "log").open("wb") as log:
        told_to = [text.replace("{port}", str(port)).replace("{folder}", str(folder)) for text in command]
        client = subprocess.Popen(told_to, stdout=log, stderr=log)
        samples = []
        deadline_s = time.monotonic() + TIMEOUT_S
        while client.poll() is None and time.monotonic() < deadline_s:
            samples.append((time.perf_counter(), spent_s(client.pid)))
            time.sleep(SAMPLE_S)
    if client.poll() != 0:
        client.kill()
        raise SystemExit(f"{told_to[0]} ended with {client.poll()}:\n{(folder / 'log').read_text()[-3000:]}")
    sent = [np.array(each) / 1e9 for each in json.loads(times.read_text()).values()]
    at_s, cpu_s = np.array(samples).T
    begin_s, end_s = min(each[1] for each in sent), max(each[-1] for each in sent)
    return read(folder), sent, np.interp(end_s, at_s, cpu_s) - np.interp(begin_s, at_s, cpu_s)


def spent_s(pid):
    """Of a process and all below it."""
    total = 0.0
    try:
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            total += sum(process.cpu_times()[:2])
    except psutil.Error:
        pass
    return total


def told(seen, sent, cpu_s):
    """By its name, each figure as the client says it, and in brackets what the fake did."""
    begin_s, end_s = min(each[0] for each in sent), max(each[-1] for each in sent)
    latency = 1e3 * np.array([each[-1] - each[0] for each in sent])
    truth = {
        "TTFT": 1e3 * np.array([each[1] - each[0] for each in sent]),
        "TPOT": 1e3 * np.array([(each[-1] - each[1]) / (len(each) - 2) for each in sent]),
        "ITL": 1e3 * np.concatenate([np.diff(each[1:]) for each in sent]),
        "latency": latency,
    }
    gaps = None if seen.gaps is None else np.concatenate(seen.gaps)
    said = {"TTFT": seen.ttft, "TPOT": seen.tpot, "ITL": gaps, "latency": seen.latency}
    rows = {
        "requests answered": f"{len(seen.ttft)} ({len(sent)})",
        "requests per second": f"{seen.per_s:.2f} ({len(sent) / (end_s - begin_s):.2f})",
        f"answered within {GOOD_MS} ms, %": f"{100 * seen.good_share:.1f} ({100 * (latency <= GOOD_MS).mean():.1f})",
    }
    for name, values in said.items():
        for at in (50, 99):
            own = "-" if values is None else format(np.percentile(values, at), ".2f")
            rows[f"{name} p{at}, ms"] = f"{own} ({np.percentile(truth[name], at):.2f})"
    rows["gap error p50 / p99, ms"] = "-"
    if seen.gaps is not None and len(seen.gaps) == len(sent):
        # The same request: of so many tokens, the next one to begin.
        theirs = [seen.gaps[each] for each in np.lexsort((seen.first, seen.tokens))]
        own = sorted(sent, key=lambda each: (len(each), each[1]))
        error = np.abs(np.concatenate([np.asarray(a) - 1e3 * np.diff(b[1:]) for a, b in zip(theirs, own, strict=True)]))
        rows["gap error p50 / p99, ms"] = f"{np.median(error):.2f} / {np.percentile(error, 99):.2f}"
    rows["CPU seconds per 1,000 tokens"] = f"{1000 * cpu_s / sum(len(each) - 1 for each in sent):.3f}"
    return rows


def read_ours(folder):
    requests = np.fromfile(folder / "requests.bin", dtype="<i8").reshape(-1, len(CLIENT_FIELDS))
    field = {name: requests[:, at] for at, name in enumerate(CLIENT_FIELDS)}
    assert set(field["status"]) == {OK}
    gaps = np.fromfile(folder / "gaps.bin", dtype="<i8").reshape(-1, 2)[:, 1] / 1e6
    each = np.split(gaps, np.cumsum(field["output_tokens"] - 1)[:-1])
    duration_s = ((field["intended_ns"] + field["latency_ns"]).max() - field["intended_ns"].min()) / 1e9
    latency = (field["latency_ns"] - field["send_error_ns"]) / 1e6
    return Seen(
        ttft=(field["ttft_ns"] - field["send_error_ns"]) / 1e6,
        tpot=np.array([one.mean() for one in each]),
        latency=latency,
        first=field["intended_ns"] + field["ttft_ns"],
        tokens=field["output_tokens"],
        per_s=len(requests) / duration_s,
        good_share=(latency <= GOOD_MS).mean(),
        gaps=each,
    )


def aiperf(program, file, folder):
    return [
        program, "profile", "--model", "fake", "--url", "http://127.0.0.1:{port}", "--endpoint-type", "chat", "--streaming",
        "--tokenizer", tokenizer(folder), "--input-file", str(file), "--custom-dataset-type", "mooncake_trace",
        "--fixed-schedule", "--use-server-token-count", "--ui-type", "none", "--artifact-dir", "{folder}",
        "--goodput", f"request_latency:{GOOD_MS}", "--no-gpu-telemetry", "--no-server-metrics",
    ]  # fmt: skip


def read_aiperf(folder):
    lines = [json.loads(line) for line in (folder / "profile_export.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "profile_export_aiperf.json").read_text())
    good = [each for each in lines if "time_to_first_token" in each["metrics"]]

    def values(name):
        return np.array([each["metrics"][name]["value"] for each in good])

    return Seen(
        ttft=values("time_to_first_token"),
        tpot=values("inter_token_latency"),
        latency=values("request_latency"),
        first=np.array([each["metadata"]["request_start_ns"] for each in good]) + 1e6 * values("time_to_first_token"),
        tokens=values("output_sequence_length"),
        per_s=summary["request_throughput"]["avg"],
        good_share=summary["goodput"]["avg"] / summary["request_throughput"]["avg"],
        gaps=[each["metrics"]["inter_chunk_latency"]["value"] for each in good],
    )


def guidellm(program, file, folder):
    source = {"kind": "trace_synthetic", "source": {"kind": "json_file", "path": str(file)}}
    return [
        "env", "HF_HUB_OFFLINE=1", program, "run", "--backend", "kind=openai_http,target=http://127.0.0.1:{port},model=fake,request_format=/v1/chat/completions",
        "--profile", "kind=replay,time_scale=0.001,schedule_turn=timestamp", "--data", json.dumps(source),
        "--tokenizer", f"kind=huggingface_auto,model={tokenizer(folder)}", "--output", "kind=json,path={folder}/out.json",
        "--disable-console",
    ]  # fmt: skip


def read_guidellm(folder):
    (benchmark,) = json.loads((folder / "out.json").read_text())["benchmarks"]
    good = benchmark["requests"]["successful"]
    latency = 1e3 * np.array([each["request_latency"] for each in good])
    return Seen(
        ttft=np.array([each["time_to_first_token_ms"] for each in good]),
        tpot=np.array([each["inter_token_latency_ms"] for each in good]),
        latency=latency,
        first=np.array([each["info"]["timings"]["first_token_iteration"] for each in good]),
        tokens=np.array([each["output_metrics"]["text_tokens"] for each in good]),
        per_s=benchmark["metrics"]["requests_per_second"]["successful"]["mean"],
        good_share=(latency <= GOOD_MS).mean(),
    )


FOREIGN = {"aiperf": (aiperf, read_aiperf), "guidellm": (guidellm, read_guidellm)}


def tokenizer(folder):
    """Folder of one that needs no network: each byte is a token."""
    bytes_ = pre_tokenizers.ByteLevel.alphabet()
    made = Tokenizer(models.BPE(vocab={each: number for number, each in enumerate(sorted(bytes_))}, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    own = folder / "tokenizer"
    own.mkdir(exist_ok=True)
    made.save(str(own / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "!", "eos_token": "!"}
    (own / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(own)


def ask(port, file, folder):
    """Our client, in a process of its own as a replica's is: the trace once, and the logs that every experiment has."""
    with Path(file).open(encoding="utf-8") as lines:
        last_ms = json.loads(list(lines)[-1])["timestamp"]
    once = Path(folder) / "once.jsonl"  # a line that is never reached, so that the trace does not begin again
    never = {"timestamp": 100 * last_ms, "input_length": 1, "output_length": 1}
    once.write_text(Path(file).read_text() + json.dumps(never))
    engine = ServerSpec.model_validate(
        {"command": ["{port}"], "protocol": "openai-chat", "trace": {"file": str(once), "unit": "ms"}}
    )
    ledger = ServerLedger(Families(streams=True), RequestMetrics(), Path(folder))
    stopping = threading.Event()
    threading.Timer(last_ms / 1e3 + SAMPLE_S, stopping.set).start()
    load = ServerLoad(engine, HttpClient(engine, int(port), HOST), questions(engine, 0), ledger, seed=0, alive=lambda: None)  # fmt: skip
    load.run(stopping)
    load.close()


if __name__ == "__main__":
    ask(*sys.argv[1:])
