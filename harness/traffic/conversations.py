"""From what a file holds, or the campaign file asks for, to the requests of conversations: their texts, lengths and history.

A turn of a session has what was said before it: the recorded answers, or synthetic ones as long as they were asked for. What
the server answers is not repeated to it, so that every sharing mode is asked the same.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.spec.server import CHATS, LANGUAGE, Protocol, ServerSpec
from harness.spec.server_requests import LengthSpec
from harness.traffic.datasets import MS_PER_S, SCALE_MS, Conversation, Dataset, most_turns
from harness.traffic.protocols import UNKNOWN, Question, body_of
from harness.traffic.shapes import BLOCK_TOKENS, Turn
from harness.traffic.texts import Texts


def questions(server: ServerSpec, texts: Texts, chance: random.Random, seed: int) -> Iterator[Question]:
    """The first request of each conversation, endless; those after it are in its ``following``, and are made when they are taken."""
    requests = server.requests
    cancels = random.Random(f"cancel {seed}")  # noqa: S311 - requests to repeat, not a secret
    for number, (conversation, writer) in enumerate(_conversations(server, texts, chance)):
        turns = writer.questions(conversation, chance, number, seed)
        if requests.cancel:
            turns = _cancelled(turns, cancels, requests.cancel.percent, requests.cancel.after_s)
        first = next(turns)
        yield replace(first, following=turns) if first.goes_on else first


def _cancelled(turns: Iterator[Question], chance: random.Random, percent: float, after_s: float) -> Iterator[Question]:
    for turn in turns:
        yield replace(turn, cancel_after_s=after_s) if 100 * chance.random() < percent else turn


def _conversations(server: ServerSpec, texts: Texts, chance: random.Random) -> Iterator[tuple[Conversation, Writer]]:
    trace, file = server.trace, server.requests.file
    if trace:
        dataset = Dataset(Path(trace.file), trace.unit, timed=True)
        writer = Writer(server, texts, dataset)
        while True:
            yield from ((conversation, writer) for conversation in dataset.conversations())
    if file:
        dataset = Dataset(Path(file))
        writer, entries = Writer(server, texts, dataset), list(dataset.conversations())
        start = chance.randrange(len(entries))  # replicas do not ask the same at the same time
        yield from ((entry, writer) for entry in itertools.islice(itertools.cycle(entries), start, None))
    writer, sessions = Writer(server, texts), server.requests.sessions
    synthetic = Conversation(0, [Turn()] * (sessions.turns if sessions else 1))
    yield from itertools.repeat((synthetic, writer))


def drawn(length: LengthSpec, chance: random.Random) -> int:
    """One of such lengths."""
    return min(max(round(chance.gauss(length.mean, length.stddev)), length.min), length.max)


class Writer:
    """Writes the requests of conversations, of a data file or synthetic ones."""

    def __init__(self, server: ServerSpec, texts: Texts, dataset: Dataset | None = None) -> None:
        self._server, self._requests, self._texts = server, server.requests, texts
        self._scale_ms = SCALE_MS[dataset.unit] if dataset and dataset.unit else 1.0
        self._most = most_turns(server, dataset.shape) if dataset else None
        trace = server.trace
        self._factor = trace.factor if trace else 1.0
        of_shape = dataset.shape.block_tokens if dataset else BLOCK_TOKENS
        self._block_tokens = (trace.block_tokens if trace else None) or of_shape

    def questions(
        self, conversation: Conversation, chance: random.Random, number: int, seed: int
    ) -> Iterator[Question]:
        """One for each turn, with all that was said before it."""
        turns, history = conversation.turns[: self._most], list[dict[str, str]]()
        begin = turns[0].at
        for index, turn in enumerate(turns, start=1):
            question, said = self._question(turn, history, chance)
            if len(turns) == 1:
                yield question
                return
            # Turns are made when they are due, and yet have the same texts whenever that is.
            chance = random.Random(f"{seed} {number} {index}")  # noqa: S311 - as above
            offset = 0.0 if turn.at is None or begin is None else (turn.at - begin) * self._scale_ms
            question = replace(question, session=number, turn=index, turns=len(turns))
            yield replace(question, delay_s=self._delay_s(turn), offset_s=offset / self._factor / MS_PER_S)
            answer = turn.answer or self._texts.make(question.output_tokens, chance)
            history += [*said, {"role": "assistant", "content": answer}]

    def _delay_s(self, turn: Turn) -> float:
        if turn.delay_ms is not None:
            return turn.delay_ms / self._factor / MS_PER_S
        sessions = self._requests.sessions
        return sessions.delay_s if sessions and turn.at is None else 0.0

    def _question(
        self, turn: Turn, history: list[dict[str, str]], chance: random.Random
    ) -> tuple[Question, list[dict[str, str]]]:
        """The request of a turn, and what it adds to the history."""
        text, tokens = self._text(turn, chance, begins=not history)
        output_tokens = turn.output_tokens if turn.output_tokens > 0 else drawn(self._requests.output_tokens, chance)
        if turn.messages is not None or turn.body is not None:
            question = Question(output_tokens=output_tokens, messages=turn.messages, body=self._body(turn))
            return self._with_extra(question, turn), []
        system = turn.system if self._server.protocol is not Protocol.ANTHROPIC else ""  # which takes none as a message
        text = "\n".join((turn.system, str(text))) if turn.system != system else text
        said = [{"role": "system", "content": system}] if system else []
        before = [*history, *said]
        question = Question(output_tokens=output_tokens, prompt=text, input_tokens=UNKNOWN if before else tokens)
        if before and self._server.protocol in CHATS:
            question = replace(question, messages=[*before, {"role": "user", "content": text}])
        elif before:
            question = replace(question, prompt="\n".join([*(message["content"] for message in before), str(text)]))
        return self._with_extra(question, turn), [*said, {"role": "user", "content": text}]

    def _text(self, turn: Turn, chance: random.Random, *, begins: bool) -> tuple[Any, int]:
        """What a turn says, and how many tokens that has."""
        if turn.prompt:
            return turn.prompt, self._texts.count(turn.prompt) if isinstance(turn.prompt, str) else UNKNOWN
        if turn.has_content:
            return "", UNKNOWN
        tokens = turn.input_tokens if turn.input_tokens > 0 else drawn(self._requests.input_tokens, chance)
        shared = self._requests.shared_prefix if begins else None
        if turn.hash_ids:
            text = self._texts.of_blocks(turn.hash_ids, self._block_tokens, tokens, chance)
        elif shared:
            group = f"prefix {chance.randrange(shared.groups)}"
            text = self._texts.join(self._texts.fixed(group, shared.tokens), self._texts.make(tokens, chance))
            tokens += shared.tokens
        else:
            text = self._texts.make(tokens, chance)
        return text, self._texts.known(tokens)

    def _body(self, turn: Turn) -> Any:
        """A whole body as it is; of OpenAI's batches with our model and way of answering laid over it."""
        if turn.body is None or not turn.url or self._server.protocol not in LANGUAGE:
            return turn.body
        own = json.loads(body_of(self._server, Question(output_tokens=1)))
        streams = {key: own[key] for key in ("model", "stream", "stream_options") if key in own}
        kept = {key: value for key, value in turn.body.items() if key not in {"stream", "stream_options"}}
        return kept | dict(self._server.extra_body) | streams

    def _with_extra(self, question: Question, turn: Turn) -> Question:
        if not turn.extra or self._server.protocol not in LANGUAGE:
            return question
        return replace(question, body=json.loads(body_of(self._server, question)) | dict(turn.extra))
