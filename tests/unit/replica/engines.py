"""Settings of a client, with what a test changes of them."""

from harness.replica.engine.settings import Engine

LENGTHS = {"input_tokens": {"mean": 4}, "output_tokens": {"mean": 3}}


def engine(**changes):
    return Engine(**{"command": ("x",), "requests": LENGTHS} | changes)


def chat(**changes):
    return engine(protocol="openai-chat", model="m", **changes)
