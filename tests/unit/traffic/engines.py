"""Settings of a client, with what a test changes of them."""

from harness.spec.server import ServerSpec

HOST = "127.0.0.1"
LENGTHS = {"input_tokens": {"mean": 4}, "output_tokens": {"mean": 3}}
TENSORS = [{"name": "x", "shape": [1], "datatype": "FP32"}]


def engine(**changes):
    fields = {"command": ["x", "{port}"], "requests": LENGTHS} | changes
    if str(fields.get("protocol", "")).startswith("oip"):
        fields = {"model": "m", "tensors": TENSORS} | fields
    return ServerSpec.model_validate(fields)


def chat(**changes):
    return engine(protocol="openai-chat", model="m", **changes)
