"""Images and sounds are what other programs read, repeat with the seed, and are made before the first request."""

import base64
import io
import itertools
import json
import random
import wave

import pytest
from PIL import Image

from harness.traffic import questions as asked
from tests.unit.traffic.engines import engine

LENGTHS = {"input_tokens": {"mean": 5}, "output_tokens": {"mean": 3}}
BOTH = LENGTHS | {"image": {"width": 9, "height": 6}, "audio": {"seconds": 0.25}}


def bodies(count, seed=0, **server):
    taken = itertools.islice(asked.questions(engine(**{"requests": BOTH, **server}), seed), count)
    return [question.body for question in taken]


def opened(data):
    """An image as another program reads it, to its end."""
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def held(data):
    """Channels, bytes of a sample, rate and samples of a sound, as another program reads them."""
    with wave.open(io.BytesIO(data)) as sound:
        return (*sound.getparams()[:3], len(sound.readframes(sound.getnframes())) // 2)


@pytest.mark.parametrize("size", [(1, 1), (4, 4), (5, 7), (225, 222)])
def test_an_image_has_its_size_and_repeats_with_the_seed(size):
    data = asked.png(*size, random.Random(1))
    image = opened(data)
    assert (image.format, image.mode, image.size) == ("PNG", "RGB", size)
    assert data == asked.png(*size, random.Random(1)) != asked.png(*size, random.Random(2))


def test_an_image_is_as_large_as_a_photograph():
    data = asked.png(640, 480, random.Random(1))
    assert 1 < len(data) * 8 / 640 / 480 < 3, "bits of a pixel"
    assert len(opened(data).getcolors(640 * 480)) > 15_000, "noise: 160 x 120 squares"


@pytest.mark.parametrize(("seconds", "samples"), [(0.01, 160), (1.5, 24_000)])
def test_a_sound_has_its_length_and_repeats_with_the_seed(seconds, samples):
    data = asked.wav(seconds, random.Random(1))
    assert held(data) == (1, 2, 16_000, samples)
    assert data == asked.wav(seconds, random.Random(1)) != asked.wav(seconds, random.Random(2))


def test_a_chat_has_text_image_and_sound_in_one_message():
    for body in bodies(3, protocol="openai-chat", model="m"):
        ((message,), (text, image, sound)) = (found := json.loads(body)["messages"]), found[0]["content"]
        assert (message["role"], text["type"], len(text["text"].split())) == ("user", "text", 5)
        kind, _, data = image["image_url"]["url"].partition(",")
        assert (image["type"], kind, opened(base64.b64decode(data)).size) == (
            "image_url",
            "data:image/png;base64",
            (9, 6),
        )
        assert (sound["type"], sound["input_audio"]["format"]) == ("input_audio", "wav")
        assert held(base64.b64decode(sound["input_audio"]["data"])) == (1, 2, 16_000, 4000)


def test_a_body_of_one_s_own_has_them_where_it_says():
    (body,) = bodies(1, body={"inputs": [{"picture": "{image}", "text": "{prompt}"}], "sound": "data:{audio}"})
    found = json.loads(body)
    assert opened(base64.b64decode(found["inputs"][0]["picture"])).size == (9, 6)
    assert held(base64.b64decode(found["sound"].removeprefix("data:")))[-1] == 4000
    (body,) = bodies(1, body="{image}", requests=LENGTHS | {"image": BOTH["image"]})
    assert opened(base64.b64decode(body)).size == (9, 6)


def test_a_few_are_made_before_the_first_request_and_asked_in_turn(monkeypatch):
    questions = asked.questions(engine(body="{image} {audio}", requests=BOTH), 3)
    first = next(questions).body
    monkeypatch.delattr(asked, "png")  # nothing is made any more
    turn = [first, *(question.body for question in itertools.islice(questions, 2 * asked.POOL - 1))]
    assert len(set(turn)) == asked.POOL
    assert turn[: asked.POOL] == turn[asked.POOL :]


def test_the_seed_repeats_them_and_texts_are_the_same_as_without():
    assert bodies(3, body="{image}{audio}") == bodies(3, body="{image}{audio}") != bodies(3, 1, body="{image}{audio}")
    alone = bodies(3, protocol="openai-chat", requests=LENGTHS)
    beside = bodies(3, protocol="openai-chat")
    texts = [json.loads(body)["messages"][0]["content"][0]["text"] for body in beside]
    assert texts == [json.loads(body)["messages"][0]["content"] for body in alone]
