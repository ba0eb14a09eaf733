"""The servers of the page that answer at once are asked as it says, and answer as their programs do."""

import asyncio
import email
import io
import itertools
import json
import re
import time
import wave
from pathlib import Path

import pytest
import yaml

from harness.campaign.plan import expand
from harness.spec.load import parse_campaign
from harness.spec.server import ServerSpec
from harness.traffic.clients import HttpClient
from harness.traffic.questions import questions
from harness.traffic.records import BAD_ANSWER, OK, Exchange
from tests.support.cases import every
from tests.support.raw_server import RawServer, whole
from tests.unit.traffic.engines import HOST

PAGE = (Path(__file__).parents[3] / "docs/servers.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
SECTION = PAGE.partition("## Embeddings, rerankers, speech")[2]
WORKLOADS = yaml.safe_load(SECTION.partition("```yaml")[2].partition("```")[0])["workloads"]
ANSWERS = {
    "embeddings": b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1]}],"usage":{"total_tokens":9}}',
    "rerank": b'[{"index":0,"score":0.9},{"index":1,"score":0.1}]',
    "speech": b'{"text":"a red hill","usage":{"type":"duration","seconds":5}}',
}


def asked_of(server, answer):
    async def ask(port):
        client = HttpClient(server, port, HOST)
        (question,) = itertools.islice(questions(server, 0), 1)
        try:
            return await client.ask(question, Exchange(time.perf_counter_ns()))
        finally:
            await client.close()

    with RawServer(whole(answer, "Content-Type: application/json")) as double:
        return asyncio.run(ask(double.port)), double.heads[0], double.bodies[0]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload["name"])
def test_it_is_asked_and_answers(workload):
    server = ServerSpec.model_validate(workload["server"])
    exchange, head, body = asked_of(server, ANSWERS[workload["name"]])
    assert (exchange.status, exchange.said) == (OK, "")
    assert head.startswith(f"POST {server.path} HTTP/1.1\r\n")
    if workload["name"] != "speech":
        assert json.loads(body).keys() == server.body.keys()
    assert asked_of(server, b'{"error":"overloaded"}')[0].status == BAD_ANSWER


def test_a_form_holds_a_sound_as_it_is():
    (workload,) = (workload for workload in WORKLOADS if workload["name"] == "speech")
    _, head, body = asked_of(ServerSpec.model_validate(workload["server"]), ANSWERS["speech"])
    (kind,) = (line for line in head.split("\r\n") if line.lower().startswith("content-type:"))
    form = email.message_from_bytes(kind.encode() + b"\r\n\r\n" + body)
    model, sound = form.get_payload()
    assert model.get_payload() == "/models/whisper"
    with wave.open(io.BytesIO(sound.get_payload(decode=True))) as file:
        assert file.getnframes() == 5 * 16_000


@every(block for block in BLOCKS if not block.startswith("name:"))
def test_a_change_to_the_first_campaign_gives_a_valid_one(block):
    campaign, change = yaml.safe_load(BLOCKS[0]), yaml.safe_load(block)
    campaign["workloads"][0]["server"] |= change.pop("server", {})

    assert expand(parse_campaign(yaml.safe_dump(campaign | change), origin="servers.md"))
