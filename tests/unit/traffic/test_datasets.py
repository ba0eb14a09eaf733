"""Data files as people have them, each in its public shape; what is dropped, and what is refused."""

import gzip
import itertools
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import LoadError
from harness.traffic.arrivals import of_trace
from harness.traffic.datasets import REORDERED, load_facts
from harness.traffic.protocols import body_of
from harness.traffic.questions import questions
from harness.traffic.shapes import shape_of
from tests.unit.traffic.engines import chat, engine

SAMPLES = Path(__file__).parent / "samples"
MS = 1_000_000
MOST_MIB = 25
"""Of a trace that is read as a stream; one of as many lines that is kept whole takes 40."""


def trace_of(file, **more):
    return chat(requests={}, trace={"file": str(file), **more})


def file_of(file, **requests):
    return chat(requests={"output_tokens": {"mean": 3}, "file": str(file), **requests})


def facts(server):
    return load_facts(server).model_dump(exclude_defaults=True, exclude={"sha256", "file"})


AZURE, BURST = "Azure LLM inference trace", "BurstGPT"
FAILED, NO_QUESTION, UNREADABLE = "failed", "no-question", "unreadable"


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("azure_2023.csv", {"shape": AZURE, "requests": 3, "length_s": 2.0, "unit": "ms", "mean_per_s": 1.0}),
        ("azure_2024.csv", {"shape": AZURE, "requests": 3, "length_s": 2.0, "highest_per_s": 2.0}),
        ("burstgpt.csv", {"shape": BURST, "requests": 3, "length_s": 113.0, "unit": "s", "dropped": {FAILED: 2}}),
        ("burstgpt_2.csv", {"shape": BURST, "requests": 2, "length_s": 40.0}),
        ("bailian.jsonl", {"shape": "Qwen-Bailian", "requests": 2, "length_s": 2.0, "unit": "s"}),
        ("mooncake.jsonl", {"shape": "Mooncake", "requests": 3, "length_s": 3.0, "same_time": 1, "input_tokens": 1200}),
        ("aiperf_single_turn.jsonl", {"shape": "AIPerf single-turn", "requests": 2, "length_s": 0.5, "unit": "ms"}),
        ("aiperf_sessions.jsonl", {"shape": "AIPerf trace with sessions", "requests": 3, "sessions": 1, "length_s": 0.1}),
    ],
)  # fmt: skip
def test_a_trace_is_read_in_its_public_shape(file, expected):
    server = trace_of(SAMPLES / file)
    assert facts(server) == facts(server) | expected
    assert load_facts(server).unit_from == f"the form of {load_facts(server).shape}"
    begun = list(itertools.islice(of_trace(server.trace), 2))
    assert begun[0] == 0
    assert next(questions(server, 1)).output_tokens > 0


@pytest.mark.parametrize(
    ("file", "expected", "first"),
    [
        ("sharegpt.json", {"shape": "ShareGPT", "requests": 2, "dropped": {NO_QUESTION: 2}}, ["one", "three"]),
        ("sharegpt.jsonl", {"shape": "ShareGPT", "requests": 2}, ["one", "two"]),
        ("aiperf_single_turn.jsonl", {"shape": "AIPerf single-turn"}, ["What is machine learning?", "Explain neural networks."]),
        ("aiperf_multi_turn.jsonl", {"shape": "AIPerf multi-turn", "requests": 3, "sessions": 1}, ["What is it?", "Alone."]),
        ("guidellm.jsonl", {"shape": "guidellm", "input_tokens": 5.5, "output_tokens": 15.0}, ["Hello, how are you?", "What is your name?"]),
        ("guidellm.csv", {"shape": "guidellm", "input_tokens": 5.5, "output_tokens": 15.0}, ["Hello, how are you?", "What is your name?"]),
        ("vllm_custom.jsonl", {"shape": "prompts", "output_tokens": 755.0}, ["What is the capital of India?", "What is the capital of Iran?"]),
        ("messages.jsonl", {"shape": "messages", "requests": 2}, ["Bye", "Hello"]),
        ("openai_batch.jsonl", {"shape": "OpenAI batch", "requests": 2}, ["Bye", "Hello"]),
    ],
)  # fmt: skip
def test_a_file_of_requests_is_read_in_its_public_shape(file, expected, first):
    server = file_of(SAMPLES / file)
    assert facts(server) == facts(server) | {"requests": 2} | expected
    bodies = [json.loads(body_of(server, question)) for question in itertools.islice(questions(server, 1), 2)]
    assert sorted(body["messages"][-1]["content"] for body in bodies) == sorted(first)
    assert all(body["stream"] and body["model"] == "m" for body in bodies), "ours is laid over a batch's"


def test_a_batch_keeps_what_is_its_own():
    server = file_of(SAMPLES / "openai_batch.jsonl")
    bodies = {
        body["max_tokens"]: body for body in (json.loads(q.body) for q in itertools.islice(questions(server, 1), 2))
    }
    assert bodies[7]["temperature"] == 0
    assert bodies[7]["stream_options"] == {"include_usage": True}


def test_a_file_of_traces_gives_lengths_alone():
    server = file_of(SAMPLES / "azure_2023.csv")
    lengths = {(len(q.prompt.split()), q.output_tokens) for q in itertools.islice(questions(server, 1), 3)}
    assert lengths == {(4808, 10), (3180, 8), (110, 27)}
    assert "length_s" not in facts(server)


def test_blocks_with_the_same_id_have_the_same_text():
    prompts = [q.prompt.split() for q in itertools.islice(questions(trace_of(SAMPLES / "mooncake.jsonl"), 1), 4)]
    assert list(map(len, prompts)) == [1200, 1800, 600, 1200]
    assert prompts[0][:512] == prompts[1][:512] == prompts[2][:512]
    assert prompts[0][512:1024] != prompts[1][512:1024]
    assert prompts[0] == prompts[3], "also when the trace begins again"
    small = [q.prompt.split() for q in itertools.islice(questions(trace_of(SAMPLES / "bailian.jsonl"), 1), 2)]
    assert small[0][:16] == small[1][:16]
    assert small[0][16:] != small[1][16:20]


def test_prefixes_are_shared_by_groups():
    server = chat(requests={"input_tokens": {"mean": 4}, "shared_prefix": {"tokens": 30, "groups": 2}})
    prompts = [q.prompt.split() for q in itertools.islice(questions(server, 1), 20)]
    assert {len(prompt) for prompt in prompts} == {34}
    assert len({tuple(prompt[:30]) for prompt in prompts}) == 2
    assert len({tuple(prompt[30:]) for prompt in prompts}) > 10


def line(timestamp=0, **more):
    return json.dumps({"timestamp": timestamp, "input_length": 3, "output_length": 2, **more})


def written(path, *lines, begin=""):
    path.write_text(begin + "\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("begin", [1_795_000_000, 61.114])
@pytest.mark.parametrize("more", [{"session_id": "a"}, {"hash_ids": [1]}, {"turns": [{"text": "x"}]}])
def test_milliseconds_are_not_taken_for_granted(begin, more):
    record = json.loads(line(begin, **more))
    if "turns" in more:
        record = {"turns": [{"text": "x", "timestamp": begin}]}
    assert shape_of(record).unit == ""
    record = json.loads(json.dumps(record).replace(str(begin), "27"))
    assert shape_of(record).unit == "ms"


def test_times_without_a_unit_are_refused_with_both_readings(tmp_path):
    for more in ({}, {"hash_ids": [1]}, {"text": "x"}):
        path = written(tmp_path / "trace.jsonl", line(0.5, **more), line(3600.5, **more))
        with pytest.raises(
            LoadError, match=r"3\.6 s if they are milliseconds, and within 1 h 00 min if they are seconds"
        ):
            load_facts(trace_of(path))
        assert facts(trace_of(path, unit="s"))["length_s"] == 3600
        assert load_facts(trace_of(path, unit="ms", factor=2)).length_s == 1.8


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_text_is_split_at_newlines_alone(tmp_path, pack):
    path = tmp_path / "asked.jsonl"
    texts = ["a\u2028b\x85c", "d"]
    lines = [json.dumps({"prompt": text, "output_tokens": 10.0}, ensure_ascii=False) for text in texts]
    path.write_bytes(pack(b"\xef\xbb\xbf" + "\r\n".join(["", *lines]).encode()))
    taken = list(itertools.islice(questions(file_of(path), 1), 2))
    assert sorted(question.prompt for question in taken) == texts
    assert {question.output_tokens for question in taken} == {10}


def test_lines_out_of_order_are_sorted_and_counted(tmp_path):
    path = written(tmp_path / "trace.jsonl", *(line(at) for at in (5000, 1000, 1000, 3000)))
    server = trace_of(path, unit="ms")
    assert facts(server) == facts(server) | {"out_of_order": 3, "same_time": 1, "length_s": 4.0}
    assert list(itertools.islice(of_trace(server.trace), 4)) == [0, 0, 2000 * MS, 4000 * MS]


def test_one_bad_entry_is_dropped_and_counted_and_many_are_refused(tmp_path):
    good = [line(at) for at in range(200)]
    path = written(tmp_path / "trace.jsonl", *good[:100], '{"timestamp": 1, "inp', *good[100:])
    read = load_facts(trace_of(path, unit="ms"))
    assert (read.requests, read.dropped) == (200, {UNREADABLE: 1})
    assert read.first_unreadable.startswith(f"{path}:101: it is not JSON")
    assert len(list(itertools.islice(questions(trace_of(path, unit="ms"), 1), 300))) == 300
    written(path, *good, *["x"] * 3)
    with pytest.raises(LoadError, match=r"trace\.jsonl:201: it is not JSON.*3 of 203 records cannot be read"):
        load_facts(trace_of(path, unit="ms"))
    (tmp_path / "share.json").write_text(json.dumps([{"conversations": [{"from": "human", "value": "x"}]}] * 200)[:-1])
    assert load_facts(file_of(tmp_path / "share.json")).dropped == {UNREADABLE: 1}, "cut off"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"prompt": None}, "`prompt` is null, and must be a text"),
        ({"prompt": []}, r"`prompt` is \[\]"),
        ({"prompt": 3}, "`prompt` is 3"),
        ({"prompt": "a", "output_tokens": "12"}, "output_tokens must be a number, and is '12'"),
        ({"prompt": "a", "output_tokens": -3}, "output_tokens must be 0 to 1000000, and is -3"),
        ({"prompt": "a", "output_tokens": 1.5}, "output_tokens must be a whole number"),
        ({"prompt": "a", "output_tokens": True}, "output_tokens must be a number, and is True"),
        ({"messages": "hi"}, "`messages` is 'hi', and must be a list"),
        ({"messages": []}, r"`messages` is \[\]"),
        ({"body": "x"}, "`body` is 'x', and must be an object"),
        ({"turns": []}, r"`turns` is \[\]"),
        ({"text": "a", "image": "x.png"}, "images and sounds"),
        ({"messages": [1], "message_mode": "delta"}, "message_mode delta"),
    ],
)
def test_what_would_mean_something_else_is_refused_with_its_line(tmp_path, record, message):
    good = json.dumps({"prompt": "a"})
    path = written(tmp_path / "asked.jsonl", *[good] * 300, json.dumps(record), good)
    with pytest.raises(LoadError, match=rf"asked\.jsonl:301: {message}"):
        load_facts(file_of(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf \n\n", "is empty"),
        (b"PAR1\x15\x04\x15", "is Parquet"),
        (b"PK\x03\x04\x14\x00", "is a zip archive"),
        (b"\x28\xb5\x2f\xfd\x04", "is zstd"),
        (b"a\0\0\0b", "is a binary file"),
        ('{"prompt": "a"}'.encode("utf-16"), "is UTF-16 text"),
        (gzip.compress(b"PAR1\x15\x04"), "is Parquet"),
        (gzip.compress(b'{"prompt": "a"}\n' * 999)[:40], "cannot be read"),
        (b"just words\n", "it is not JSON.*JSON lines, a JSON array or CSV"),
        (b"a,b\n1,2\n", "input_length is missing"),
        (b'"text"\n', "it must be an object"),
        (b'{"conversations": []}\n', "holds no request: all are dropped as no-question"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path, content, message):
    path = tmp_path / "data"
    path.write_bytes(content)
    with pytest.raises(LoadError, match=f"data.*{message}"):
        load_facts(file_of(path))


def test_content_that_the_protocol_does_not_send_is_refused():
    completions = {"protocol": "openai-completions", "model": "m"}
    with pytest.raises(LoadError, match="use a protocol of a chat"):
        load_facts(engine(**completions, requests={"file": str(SAMPLES / "messages.jsonl")}))
    with pytest.raises(LoadError, match="asks /v1/chat/completions, and the server is asked at /v1/completions"):
        load_facts(engine(**completions, requests={"file": str(SAMPLES / "openai_batch.jsonl")}))


def test_a_long_trace_is_read_with_flat_memory_and_its_disorder_is_bounded(tmp_path):
    path = tmp_path / "long.jsonl"
    chance = random.Random(1)
    with path.open("w") as file:
        for number in range(100_000):
            file.write(line(number * 10 + chance.randrange(50)) + "\n")
    program = (
        "import itertools, resource, sys\n"
        "from harness.traffic.arrivals import of_trace\n"
        "from harness.traffic.datasets import load_facts\n"
        "from tests.unit.traffic.test_datasets import trace_of\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "server = trace_of(sys.argv[1], unit='ms')\n"
        "assert load_facts(server).requests == 100_000\n"
        "due = list(itertools.islice(of_trace(server.trace), 1000))\n"
        "assert due == sorted(due)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert int(done.stdout) / 1024 < MOST_MIB
    with path.open("a") as file:
        file.write(line(0) + "\n")
    with pytest.raises(
        LoadError, match=rf"long\.jsonl:100001: it came before a line that is {REORDERED:,} lines above"
    ):
        load_facts(trace_of(path, unit="ms"))
