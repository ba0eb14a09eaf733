"""Whatever an event holds in whatever place, it is read or refused: nothing else is raised, and nothing is counted that is not there."""

import contextlib
import copy
import json
import random

import pytest

from harness.traffic.framing import Event, Received
from harness.traffic.http_answer import AnswerHead
from harness.traffic.protocols import DIALECTS, BadAnswerError, EventStream, read_whole
from tests.support import dialect_server
from tests.unit.traffic.engines import engine

ODD = (None, 0, -1, 1.5, True, False, "", "x", [], [[]], ["x"], [None], {}, {"x": 1}, [{}], 10**30)
RECEIVED = Received(AnswerHead(200, {"content-type": "text/event-stream"}), "events")
ROUNDS = 8


def events():
    """Every object that a server of the list sends, and its name."""
    for entry in dialect_server.read():
        for text in entry.events:
            fields = dict(line.split(": ", 1) for line in text.decode().splitlines() if ": " in line)
            try:
                content = json.loads(fields.get("data", text))
            except ValueError:
                continue
            if isinstance(content, dict):
                yield fields.get("event", ""), content


EVENTS = list(events())


def places(value, path=()):
    """Each place in an object."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inside:
        yield (*path, key)
        yield from places(part, (*path, key))


def spoiled(content, chance):
    """The same with something odd in one place or two."""
    content = copy.deepcopy(content)
    for _ in range(chance.choice((1, 2))):
        if found := list(places(content)):
            *way, last = chance.choice(found)
            inside = content
            for key in way:
                inside = inside[key]
            inside[last] = copy.deepcopy(chance.choice(ODD))
    return content


@pytest.mark.parametrize("protocol", sorted(DIALECTS))
def test_nothing_but_a_refusal_is_raised(protocol):
    chance = random.Random(protocol)
    streamed, whole = engine(protocol=protocol, model="m"), engine(protocol=protocol, model="m", stream=False)
    for name, content in EVENTS * ROUNDS:
        data = json.dumps(spoiled(content, chance)).encode()
        with contextlib.suppress(BadAnswerError):
            stream = EventStream(streamed)
            assert 0 <= stream.take(Event(data, 1, name)) <= 3
            counts = stream.end(RECEIVED)
            assert (counts.pieces, 0 < counts.output_tokens < 2**62) == (1, True)
        with contextlib.suppress(BadAnswerError):
            assert read_whole(whole, data).output_tokens != 0


def test_an_object_of_a_million_levels_is_refused():
    stream = EventStream(engine(protocol="openai-chat"))
    stream.take(Event(b"[" * 1_000_000, 1))
    with pytest.raises(BadAnswerError, match="not a JSON object"):
        stream.end(RECEIVED)
