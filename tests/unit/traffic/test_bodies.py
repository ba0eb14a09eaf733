"""What is sent: the body that each protocol has, and the user's own fields laid over it."""

import json

import pytest

from harness.errors import LoadError
from harness.spec.server import LANGUAGE, Protocol
from harness.traffic.clients import HttpClient
from harness.traffic.protocols import BadAnswerError, Question, body_of, patched, read_whole
from tests.unit.traffic.engines import HOST, LENGTHS, chat, engine

QUESTION = Question(output_tokens=5, prompt='say "hi"')
MESSAGES = [{"role": "system", "content": "be short"}, {"role": "user", "content": "hi"}]
IMAGE = {"width": 8, "height": 8}


def body(protocol, question=QUESTION, **fields):
    return json.loads(body_of(engine(protocol=protocol, model="m", **fields), question))


@pytest.mark.parametrize(
    ("protocol", "path", "expected"),
    [
        ("openai-completions", "/v1/completions", {"prompt": 'say "hi"', "max_tokens": 5, "stream": True}),
        ("openai-responses", "/v1/responses", {"input": 'say "hi"', "max_output_tokens": 5, "stream": True}),
        ("anthropic", "/v1/messages", {"max_tokens": 5, "stream": True}),
        ("ollama-generate", "/api/generate", {"prompt": 'say "hi"', "options": {"num_predict": 5}, "stream": True}),
        ("ollama-chat", "/api/chat", {"options": {"num_predict": 5}, "stream": True}),
        (
            "triton-generate",
            "/v2/models/m/generate_stream",
            {"text_input": 'say "hi"', "max_tokens": 5, "stream": True},
        ),
    ],
)
def test_each_protocol_has_a_path_and_a_body(protocol, path, expected):
    sent = body(protocol)
    assert engine(protocol=protocol, model="m").target == path
    assert sent | expected == sent
    assert sent["model"] == "m"


@pytest.mark.parametrize("protocol", sorted(LANGUAGE))
def test_without_a_stream_none_is_asked_for(protocol):
    assert body(protocol, stream=False).get("stream", False) is False
    assert not engine(protocol=protocol, model="m", stream=False).target.endswith("_stream")


@pytest.mark.parametrize("protocol", sorted(LANGUAGE))
def test_messages_are_sent_by_protocols_of_a_chat_and_refused_by_others(protocol):
    question = Question(output_tokens=5, messages=MESSAGES)
    if protocol in {Protocol.OPENAI_COMPLETIONS, Protocol.OLLAMA_GENERATE, Protocol.TRITON_GENERATE}:
        with pytest.raises(LoadError, match="use a protocol of a chat"):
            body(protocol, question)
    else:
        assert MESSAGES in body(protocol, question).values()


@pytest.mark.parametrize(
    ("extra", "expected", "without"),
    [
        ({"max_tokens": None, "max_completion_tokens": "{output_tokens}"}, {"max_completion_tokens": 5}, "max_tokens"),
        ({"max_completion_tokens": "{output_tokens}"}, {"max_completion_tokens": 5}, "max_tokens"),
        ({"stream_options": None}, {"max_tokens": 5}, "stream_options"),
        (
            {"stream_options": {"continuous_usage_stats": True}},
            {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
            "max_completion_tokens",
        ),
        ({"a": [{"b": "{prompt}!", "c": "{output_tokens}"}]}, {"a": [{"b": 'say "hi"!', "c": 5}]}, "b"),
        ({"chat_template_kwargs": {"x": None, "y": 1}}, {"chat_template_kwargs": {"y": 1}}, "x"),
    ],
)
def test_the_user_s_fields_are_laid_over_it(extra, expected, without):
    sent = body("openai-chat", extra_body=extra)
    assert sent | expected == sent
    assert without not in sent


def test_a_patch_is_one_as_its_standard_says():
    """The example of RFC 7396."""
    document = {
        "title": "Goodbye!",
        "author": {"givenName": "John", "familyName": "Doe"},
        "tags": ["a"],
        "content": "c",
    }
    patch = {"title": "Hello!", "phone": "1", "author": {"familyName": None}, "tags": ["b"]}
    assert patched(document, patch) == {
        "title": "Hello!", "author": {"givenName": "John"}, "tags": ["b"], "content": "c", "phone": "1"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("protocol", "part"),
    [
        ("openai-responses", {"type": "input_image", "image_url": "data:image/png;base64,{image}"}),
        ("anthropic", {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "{image}"}}),
    ],
)
def test_an_image_is_a_part_of_the_message(protocol, part):
    sent = body(protocol, requests=LENGTHS | {"image": IMAGE})
    ((message,),) = (value for key, value in sent.items() if key in {"input", "messages"})
    assert part in message["content"]


@pytest.mark.parametrize(("protocol", "place"), [("ollama-chat", "messages"), ("ollama-generate", None)])
def test_ollama_has_images_beside_the_text(protocol, place):
    sent = body(protocol, requests=LENGTHS | {"image": IMAGE})
    assert (sent[place][0] if place else sent)["images"] == ["{image}"]


@pytest.mark.parametrize(
    ("fields", "headers"),
    [
        ({}, ["anthropic-version: 2023-06-01", "X-Api-Key: s3cr3t"]),
        ({"headers": {"Anthropic-Version": "2024"}}, ["Anthropic-Version: 2024", "X-Api-Key: s3cr3t"]),
        ({"api_key_header": "Authorization"}, ["anthropic-version: 2023-06-01", "Authorization: Bearer s3cr3t"]),
    ],
)
def test_anthropic_has_headers_of_its_own(monkeypatch, fields, headers):
    monkeypatch.setenv("MY_KEY", "s3cr3t")
    client = HttpClient(engine(protocol="anthropic", model="m", api_key_env="MY_KEY", **fields), 1, HOST)
    lines = client._head.decode().split("\r\n")
    assert [line for line in lines if line.lower().startswith(("anthropic", "x-api", "auth"))] == headers


def test_an_error_in_a_plain_answer_is_none_that_is_good():
    with pytest.raises(BadAnswerError, match="boom"):
        read_whole(engine(), b'{"error": {"message": "boom"}}')
    read_whole(engine(), b'{"error": null, "label": "cat"}')
    read_whole(engine(success={"contains": "label"}), b'{"error": "small", "label": "cat"}')


def test_what_is_not_json_is_named():
    with pytest.raises(BadAnswerError, match=r"\(text/html\) begins b'<html>'"):
        read_whole(chat(stream=False), b"<html>", "text/html")
