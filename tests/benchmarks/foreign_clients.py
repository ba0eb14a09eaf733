"""Our client and other programs, asking the same fake server with the same trace: ``server_client.py --beside``.

The fake notes when it read each request and sent each token, so that each client is held against what happened in its own run, and not
only against another's run. The other programs are none of our dependencies: those are asked that are on PATH, and what they say is read
from the file that they leave.
"""

import contextlib
import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from harness.analysis.statistics import percentile
from harness.replica.engine.readiness import HOST, takes_connections
from harness.replica.engine.workload import Families, ServerLedger, ServerLoad
from harness.replica.metrics import RequestMetrics
from harness.spec.server import ServerSpec
from harness.traffic.clients import HttpClient
from harness.traffic.questions import questions
from harness.traffic.records import CLIENT_FIELDS, OK
from tests.support.ports import free_port

FIRST_S, GAP_S, SPREAD = 0.2, 0.01, 0.5
"""What the fake plants: each request has times of its own, up to half as long again."""
PER_S, TOKENS = 20, 64
GOOD_MS = 1000
"""A request answered within it is a good one."""
AGREE = 0.01
PERCENTS = (50, 90, 99)
TIMEOUT_S = 600
OURS = "ours"


@dataclasses.dataclass
class Seen:
    """What a client says: its own percentiles in ms by figure and percent, counted from sending; how many, and good ones, a second."""

    answered: int
    per_s: float
    good_per_s: float | None
    percentiles: dict[str, dict[int, float]]


def side_by_side(names, seconds):
    """Each program that is there beside ours, held against what the fake did in its run; by program, its figures."""
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        file = written_trace(Path(folder) / "trace.jsonl", seconds)
        ours = [sys.executable, "-m", "tests.benchmarks.foreign_clients", "{port}", str(file), "{folder}"]
        commands = {OURS: (ours, read_ours)}
        for name in names:
            if program := shutil.which(name):
                commands[name] = (FOREIGN[name][0](program, file, Path(folder)), FOREIGN[name][1])
            else:
                print(f"{name} is not on PATH")
        for name, (command, read) in commands.items():
            figures[name] = of_one(Path(folder) / name, command, read)
    judge(figures)
    show(figures)
    return figures


def judge(figures):
    """Ours is right where it is within 1% of what the server did, and no dearer than any other."""
    for figure in figures.values():
        off = [abs(row["off"]) for row in figure["rows"].values() if row["off"] is not None]
        figure["most_off"] = max(off)
    dearer = any(figures[OURS]["cpu_s"] >= other["cpu_s"] for name, other in figures.items() if name != OURS)
    right = figures[OURS]["most_off"] <= AGREE
    figures[OURS]["verdict"] = "met" if right and not dearer else "MISSED"
    for name, figure in figures.items():
        figure.setdefault("verdict", "met")  # another's fault is none of ours
        figure["name"] = name


def show(figures):
    rows = list(figures[OURS]["rows"])
    print(f"{'what it says, over what the server did':40}" + "".join(f"{name:>26}" for name in figures))
    for row in rows:
        said = [figure["rows"][row] for figure in figures.values()]
        texts = [
            "-" if compared["off"] is None else f"{compared['said']:.2f} ({100 * compared['off']:+.2f}%)"
            for compared in said
        ]
        print(f"{row:40}" + "".join(f"{text:>26}" for text in texts))
    print(
        f"{'CPU seconds of the whole command':40}" + "".join(f"{figure['cpu_s']:>26.1f}" for figure in figures.values())
    )
    print(
        f"{'the server itself, late p99, ms':40}"
        + "".join(f"{figure['server_late_p99_ms']:>26.2f}" for figure in figures.values())
    )
    print(f"ours within {100 * AGREE:g}% of the server, and cheaper: {figures[OURS]['verdict']}")


def written_trace(file, seconds):
    chance, at_s, lines = random.Random(0), 0.0, []
    while at_s < seconds:
        lines.append(json.dumps({"timestamp": round(1000 * at_s), "input_length": 30, "output_length": TOKENS}))
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
    """What a client said beside what the fake did, and what the client's processes took of the CPU, from start to end."""
    folder.mkdir()
    with (
        timed_server(folder, first_s=FIRST_S, gap_s=GAP_S, spread=SPREAD) as (port, times, _),
        (folder / "log").open("wb") as log,
    ):
        words = [text.replace("{port}", str(port)).replace("{folder}", str(folder)) for text in command]
        client = subprocess.Popen(words, stdout=log, stderr=log)
        limit = threading.Timer(TIMEOUT_S, client.kill)
        limit.start()
        _, status, spent = os.wait4(client.pid, 0)
        client.returncode = os.waitstatus_to_exitcode(status)
        limit.cancel()
    if client.returncode:
        raise SystemExit(f"{words[0]} ended with {client.returncode}:\n{(folder / 'log').read_text()[-3000:]}")
    chats = [
        {key: np.array(value) / 1e6 for key, value in chat.items() if key != "text"}
        for chat in json.loads(times.read_text())
    ]
    late_ms = np.concatenate([chat["before"] - chat["due"] for chat in chats])
    return {
        "rows": rows(read(folder), chats),
        "cpu_s": spent.ru_utime + spent.ru_stime,
        "server_late_p99_ms": float(np.percentile(late_ms, 99)),
    }


def rows(seen, chats):
    """By figure, what the client says, and by how much that is off what the fake did."""
    sent = [(chat["before"] + chat["after"]) / 2 for chat in chats]
    begins, ends = (np.array([chat["read"] for chat in chats]), np.array([chat_ms[-1] for chat_ms in sent]))
    took_s = (ends.max() - begins.min()) / 1e3
    truth = {
        "TTFT": np.array([chat_ms[0] for chat_ms in sent]) - begins,
        "TPOT": np.array([(chat_ms[-1] - chat_ms[0]) / (len(chat_ms) - 1) for chat_ms in sent]),
        "ITL": np.concatenate([np.diff(chat_ms) for chat_ms in sent]),
        "latency": ends - begins,
    }
    made = {
        "requests answered": row(seen.answered, len(chats)),
        "requests/s": row(seen.per_s, len(chats) / took_s),
        f"goodput (within {GOOD_MS} ms), requests/s": row(
            seen.good_per_s, (truth["latency"] <= GOOD_MS).sum() / took_s
        ),
    }
    for name, values in truth.items():
        for at in PERCENTS:
            made[f"{name} p{at}, ms"] = row(
                seen.percentiles.get(name, {}).get(at), percentile(values, at / 100, least=1)
            )
    return made


def row(said, did):
    return {
        "said": None if said is None else float(said),
        "did": float(did),
        "off": None if said is None else float(said / did - 1),
    }


def read_ours(folder):
    requests = np.fromfile(folder / "requests.bin", dtype="<i8").reshape(-1, len(CLIENT_FIELDS))
    field = {name: requests[:, at] for at, name in enumerate(CLIENT_FIELDS)}
    assert set(field["status"]) == {OK}
    gaps = np.fromfile(folder / "gaps.bin", dtype="<i8").reshape(-1, 2)[:, 1]
    duration_s = ((field["intended_ns"] + field["latency_ns"]).max() - field["intended_ns"].min()) / 1e9
    latency = field["latency_ns"] - field["send_error_ns"]
    values = {
        "TTFT": field["ttft_ns"] - field["send_error_ns"],
        "TPOT": (field["latency_ns"] - field["ttft_ns"]) / (field["output_tokens"] - 1),
        "ITL": gaps,
        "latency": latency,
    }
    return Seen(
        len(requests),
        len(requests) / duration_s,
        (latency <= GOOD_MS * 1e6).sum() / duration_s,
        {
            name: {at: percentile(values_ns, at / 100, least=1) / 1e6 for at in PERCENTS}
            for name, values_ns in values.items()
        },
    )


def aiperf(program, file, folder):
    return [
        program, "profile", "--model", "fake", "--url", "http://127.0.0.1:{port}", "--endpoint-type", "chat", "--streaming",
        "--tokenizer", tokenizer(folder), "--input-file", str(file), "--custom-dataset-type", "mooncake_trace",
        "--fixed-schedule", "--use-server-token-count", "--ui-type", "none", "--artifact-dir", "{folder}",
        "--goodput", f"request_latency:{GOOD_MS}", "--no-gpu-telemetry", "--no-server-metrics",
    ]  # fmt: skip


AIPERF = {
    "TTFT": "time_to_first_token",
    "TPOT": "inter_token_latency",
    "ITL": "inter_chunk_latency",
    "latency": "request_latency",
}


def read_aiperf(folder):
    said = json.loads((folder / "profile_export_aiperf.json").read_text())
    return Seen(
        said["request_count"]["avg"],
        said["request_throughput"]["avg"],
        said["goodput"]["avg"],
        {name: {at: said[theirs][f"p{at}"] for at in PERCENTS} for name, theirs in AIPERF.items()},
    )


def guidellm(program, file, folder):
    source = {"kind": "trace_synthetic", "source": {"kind": "json_file", "path": str(file)}}
    return [
        "env", "HF_HUB_OFFLINE=1", program, "run", "--backend", "kind=openai_http,target=http://127.0.0.1:{port},model=fake,request_format=/v1/chat/completions",
        "--profile", "kind=replay,time_scale=0.001,schedule_turn=timestamp", "--data", json.dumps(source),
        "--tokenizer", f"kind=huggingface_auto,model={tokenizer(folder)}", "--output", "kind=json,path={folder}/out.json",
        "--disable-console",
    ]  # fmt: skip


GUIDELLM = {
    "TTFT": ("time_to_first_token_ms", 1),
    "TPOT": ("inter_token_latency_ms", 1),
    "latency": ("request_latency", 1e3),
}
"""Every gap it does not keep. Its requests a second are of windows between ends, its goodput needs an objective of latency alone."""


def read_guidellm(folder):
    (benchmark,) = json.loads((folder / "out.json").read_text())["benchmarks"]
    said = {
        name: figure["successful"] for name, figure in benchmark["metrics"].items() if figure and "successful" in figure
    }
    answered = said["request_latency"]["count"]
    latency_ms = [1e3 * request["request_latency"] for request in benchmark["requests"]["successful"]]
    return Seen(
        answered,
        answered / benchmark["duration"],
        sum(value <= GOOD_MS for value in latency_ms) / benchmark["duration"],
        {
            name: {at: scale * said[theirs]["percentiles"][f"p{at}"] for at in PERCENTS}
            for name, (theirs, scale) in GUIDELLM.items()
        },
    )


FOREIGN = {"aiperf": (aiperf, read_aiperf), "guidellm": (guidellm, read_guidellm)}


def tokenizer(folder):
    """Folder of one that needs no network: each byte is a token."""
    bytes_ = pre_tokenizers.ByteLevel.alphabet()
    made = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(sorted(bytes_))}, merges=[]))
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
    threading.Timer(last_ms / 1e3 + 0.2, stopping.set).start()
    load = ServerLoad(engine, HttpClient(engine, int(port), HOST), questions(engine, 0), ledger, seed=0, alive=lambda: None)  # fmt: skip
    load.run(stopping)
    load.close()


if __name__ == "__main__":
    ask(*sys.argv[1:])
