"""A client of the user's own: what it returns and raises becomes an exchange like any other."""

import asyncio
import time

import pytest

from harness.replica.engine.workload import user_client
from harness.replica.errors import CannotBeMetError, WorkloadError
from harness.traffic.protocols import UNKNOWN, Question
from harness.traffic.records import BAD_ANSWER, BROKEN, OK, UNANSWERED, Exchange
from tests.unit.traffic.engines import HOST, engine


class Told:
    """Does as it is told by the prompt."""

    async def ask(self, prompt, output_tokens, on_token):
        if prompt == "hang":
            await asyncio.sleep(3600)
        if prompt == "broken":
            raise ConnectionResetError("gone")
        if prompt == "wrong":
            raise KeyError("label")
        for _ in range(output_tokens):
            on_token()
        return {"output_tokens": 7} if prompt == "counted" else None

    async def close(self):
        pass


def told(**_given):
    return Told()


def none(**_given):
    return object()


def failing(**_given):
    raise RuntimeError("no such model")


def asked(prompt, **changes):
    told_how = engine(**{"protocol": "own", "client": f"{__name__}:told", "request_timeout_s": 0.05} | changes)

    async def ask():
        client = user_client(told_how, 1, HOST)
        exchange = await client.ask(Question(3, prompt=prompt), Exchange(time.perf_counter_ns()))
        await client.close()
        return exchange

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("prompt", "status", "said"),
    [
        ("fine", OK, ""),
        ("broken", BROKEN, "gone"),
        ("wrong", BAD_ANSWER, "KeyError: 'label'"),
        ("hang", UNANSWERED, "no whole"),
    ],
)
def test_what_it_raises_is_what_became_of_the_request(prompt, status, said):
    exchange = asked(prompt, request_timeout_s=0.05 if prompt == "hang" else 60.0)

    assert exchange.status == status
    assert said in exchange.said
    assert len(exchange.token_ns) == (3 if prompt == "fine" else 0)


def test_counts_are_the_servers_else_the_pieces_else_unknown():
    assert asked("counted", request_timeout_s=60.0).output_tokens == 7
    assert asked("fine", request_timeout_s=60.0).output_tokens == 3
    assert asked("fine", request_timeout_s=60.0, stream=False).output_tokens == UNKNOWN


def telling(headers, **_given):
    raise RuntimeError(f"refused with {headers}")


def test_a_key_is_not_told_by_a_client_that_cannot_be_made(monkeypatch):
    monkeypatch.setenv("MY_KEY", "s3cret")

    with pytest.raises(WorkloadError, match=r"RuntimeError: refused with .*\(key\)") as caught:
        asked("fine", client=f"{__name__}:telling", api_key_env="MY_KEY")

    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("client", "error", "said"),
    [
        (f"{__name__}:none", WorkloadError, r"returned a object without ask\(\) and close\(\)"),
        (f"{__name__}:failing", WorkloadError, "cannot be made: RuntimeError: no such model"),
        (f"{__name__}:tolt", CannotBeMetError, "`server.client`: module .* has no callable 'tolt'; did you mean .told"),
        ("no_such_module:make", CannotBeMetError, "`server.client`: there is no module 'no_such_module'"),
    ],
)
def test_what_is_no_client_is_refused_before_anything_is_asked(client, error, said):
    with pytest.raises(error, match=said):
        asked("fine", client=client)
