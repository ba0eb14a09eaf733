"""The client over gRPC against a real server in the same process: what becomes of a request, and what is said of it."""

import asyncio
import time
from contextlib import asynccontextmanager

import grpc
import pytest
from tritonclient.grpc import service_pb2

from harness.traffic.open_inference import METHOD, STATUSES, GrpcClient
from harness.traffic.protocols import Question
from harness.traffic.records import BAD_ANSWER, BROKEN, OK, UNANSWERED, Exchange
from tests.unit.traffic.engines import HOST, engine

KEY = "a-secret-key"
GOOD = service_pb2.ModelInferResponse(outputs=[{"name": "y"}]).SerializeToString()


@asynccontextmanager
async def serving(answer, port=0):
    """A server whose only method is ``answer(request, context)``, bytes to bytes; its port."""
    _, service, method = METHOD.split("/")
    server = grpc.aio.server()
    handlers = {method: grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(0)


def asked(answer, **changes):
    """What becomes of one request."""

    async def ask():
        async with serving(answer) as port:
            asker = GrpcClient(engine(protocol="oip-grpc", **changes), port, HOST)
            try:
                return await asker.ask(Question(output_tokens=1, body=b"asked"), Exchange(time.perf_counter_ns()))
            finally:
                await asker.close()

    return asyncio.run(ask())


async def well(request, _context):
    return GOOD if request == b"asked" else b""


def test_a_good_answer_is_one():
    exchange = asked(well)
    assert (exchange.status, exchange.said, exchange.token_ns) == (OK, "", [])
    assert exchange.intended_ns <= exchange.sent_ns < exchange.end_ns


def test_a_proxy_of_the_environment_is_never_asked(monkeypatch):
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert asked(well).status == OK


@pytest.mark.parametrize(("answer", "said"), [(b"", "no outputs"), (b"<html>", "not a ModelInferResponse")])
def test_an_answer_that_is_none_is_a_bad_one(answer, said):
    async def badly(_request, _context):
        return answer

    exchange = asked(badly)
    assert exchange.status == BAD_ANSWER
    assert said in exchange.said


@pytest.mark.parametrize("code", [each for each in grpc.StatusCode if each is not grpc.StatusCode.OK])
def test_each_of_its_codes_is_said_and_has_a_number(code):
    async def refuse(_request, context):
        await context.abort(code, "because")

    exchange = asked(refuse)
    assert (exchange.status, exchange.said) == (STATUSES[code.name], f"gRPC {code.name}: because")


def test_the_key_goes_along_and_is_never_said(monkeypatch):
    monkeypatch.setenv("THE_KEY", KEY)

    async def refuse(_request, context):
        given = dict(context.invocation_metadata())["authorization"]
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"{given} is wrong")

    exchange = asked(refuse, api_key_env="THE_KEY")
    assert (exchange.status, exchange.said) == (401, "gRPC UNAUTHENTICATED: Bearer (key) is wrong")


def test_no_answer_in_time_is_said():
    async def never(_request, _context):
        await asyncio.Event().wait()

    exchange = asked(never, request_timeout_s=0.2)
    assert (exchange.status, exchange.said) == (UNANSWERED, "no whole answer within 0.2 s")


def test_a_server_that_goes_and_comes_back_is_asked_again():
    async def go_and_come():
        def ask():
            return asker.ask(Question(output_tokens=1, body=b"asked"), Exchange(time.perf_counter_ns()))

        async with serving(well) as port:
            asker = GrpcClient(engine(protocol="oip-grpc"), port, HOST)
            statuses = [(await ask()).status]
        statuses.append((await ask()).status)
        async with serving(well, port):
            status = BROKEN
            while status == BROKEN:
                status = (await ask()).status
            statuses.append(status)
        await asker.close()
        return statuses

    assert asyncio.run(go_and_come()) == [OK, BROKEN, OK]
