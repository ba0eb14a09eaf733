"""A client of the user's own, for a protocol that is not built in: ``module:factory``, imported by its name."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from harness.replica.engine.asking import Asker, Outcome
from harness.replica.engine.process import HOST
from harness.replica.engine.protocols import UNKNOWN, Answer, BadAnswerError, Question
from harness.replica.engine.settings import request_headers, without_key
from harness.replica.errors import WorkloadError
from harness.replica.registry import find_factory
from harness.spec.server import ServerSpec


class OwnClient(Protocol):
    """What the factory returns; one for the whole load, whose requests overlap on one event loop, and one for each request before it."""

    async def ask(self, prompt: str, output_tokens: int, on_token: Callable[[], None]) -> Mapping[str, int] | None:
        """Send one request and return when its whole answer is there.

        ``on_token`` is called when a piece of the answer arrives, where it comes piece by piece. Returned are the counts
        that the server gives, ``input_tokens`` and ``output_tokens``, or None. OSError: the connection broke; any other
        exception: the answer is not what it should be, and its text says why.
        """
        ...

    async def close(self) -> None:
        """Close its connections."""
        ...


class OwnAsker(Asker):
    """Sends requests through the user's client; arguments as of Asker. Raises WorkloadError where there is no such client."""

    def __init__(self, engine: ServerSpec, port: int, host: str = HOST, *, tls: bool = False) -> None:
        super().__init__(engine)
        factory: Callable[..., OwnClient] = find_factory(engine.client or "", "`server.client`")  # type: ignore[assignment]
        try:
            self._client = factory(host=host, port=port, tls=tls, model=engine.model, headers=request_headers(engine))
        except Exception as error:
            said = without_key(f"{type(error).__name__}: {error}", self._key)
            raise WorkloadError(f"the client {engine.client} cannot be made: {said}") from error
        if not all(callable(getattr(self._client, name, None)) for name in ("ask", "close")):
            raise WorkloadError(f"{engine.client} returned a {type(self._client).__name__} without ask() and close().")

    async def close(self) -> None:
        """Have the client close its connections."""
        await self._client.close()

    async def _exchange(self, question: Question, outcome: Outcome) -> None:
        outcome.sent_ns = time.perf_counter_ns()

        def on_token() -> None:
            outcome.token_ns.append(time.perf_counter_ns())

        asked: Awaitable[Mapping[str, int] | None] = self._client.ask(question.prompt, question.output_tokens, on_token)
        try:
            counts = await asked or {}
        except OSError:
            raise
        except Exception as error:
            raise BadAnswerError(f"{type(error).__name__}: {error}") from error
        answer = Answer(finished=True, output_tokens=len(outcome.token_ns) if self._engine.streams else UNKNOWN)
        answer.take_usage(
            {"prompt_tokens": counts.get("input_tokens"), "completion_tokens": counts.get("output_tokens")}
        )
        outcome.take(answer)
