"""How the tokens of a run's answers were counted and sent, where that changes what its figures mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from harness.analysis.read import ClientRequests
from harness.errors import ReasonCode
from harness.metrics.quality import Finding, Severity
from harness.results.requests import Rows
from harness.traffic.records import TokenSource

TOKENS_PER_PIECE = 1.2
"""More than so many tokens a piece: the gaps between pieces are none between tokens."""
BUFFERED_GAP_NS = 20_000
"""No model makes a token for one stream in less: such pieces came together."""
FEWEST_PIECES = 4
MOST_TEMPLATE_TOKENS, TEMPLATE_SHARE = 64, 1.2
"""What a chat's template may add to a prompt without the tokenizers being different."""
_MANY = 0.5


def token_sources(well: Rows) -> dict[str, int]:
    """How many answers had their number of output tokens from where, by the name of the source."""
    counts = Counter(well["token_source"].tolist())
    return {source.name.lower(): counts[source] for source in TokenSource if counts[source]}


def findings_of_answers(requests: ClientRequests) -> Iterator[Finding]:
    """What a reader of the figures has to know of the answers."""
    well = requests.well
    streamed = well[(well["pieces"] > 0) & (well["output_tokens"] > 0)]
    yield from _of_counts(streamed)
    yield from _of_pieces(streamed)
    yield from _of_prompts(well)


def _of_counts(streamed: Rows) -> Iterator[Finding]:
    unsaid = int((streamed["token_source"] == TokenSource.PIECES).sum())
    if unsaid > _MANY * len(streamed):
        yield remark(
            ReasonCode.TOKENS_NOT_SAID,
            f"{unsaid} of {len(streamed)} answers do not say how many tokens they have (no `usage`, or zeros): the pieces of the stream are counted, "
            "and a piece may hold several tokens.",
        )
    hidden = int((streamed["token_source"] == TokenSource.USAGE_WITH_HIDDEN).sum())
    if hidden:
        yield remark(
            ReasonCode.TOKENS_HIDDEN,
            f"{hidden} of {len(streamed)} answers count tokens of reasoning that were never sent: they have no time per token, and their first "
            "token comes after the reasoning.",
        )


def _of_pieces(streamed: Rows) -> Iterator[Finding]:
    said = streamed[np.isin(streamed["token_source"], (TokenSource.USAGE, TokenSource.LISTED))]
    tokens, pieces = int(said["output_tokens"].sum()), int(said["pieces"].sum())
    if tokens > TOKENS_PER_PIECE * pieces:
        yield remark(
            ReasonCode.TOKENS_PER_PIECE,
            f"A piece of the stream holds {tokens / pieces:.3g} tokens ({tokens} in {pieces}): inter-token latency is the gap between pieces. "
            "Time per output token counts tokens.",
        )
    long = streamed[streamed["pieces"] >= FEWEST_PIECES]
    spent_ns = long["end_ns"] - long["first_token_ns"]
    together = int((spent_ns < BUFFERED_GAP_NS * (long["pieces"] - 1)).sum())
    if together > _MANY * len(long):
        yield remark(
            ReasonCode.STREAM_BUFFERED,
            f"The pieces of {together} of {len(long)} answers arrived all at once: a proxy or the server holds the stream back. The time to first "
            "token is that of the whole answer, and gaps say nothing. Switch buffering off (nginx: `proxy_buffering off`).",
        )


def _of_prompts(well: Rows) -> Iterator[Finding]:
    both = well[(well["tokenizer_tokens"] > 0) & (well["input_tokens"] > 0)]
    ours, theirs = both["tokenizer_tokens"], both["input_tokens"]
    apart = (theirs < ours) | (theirs > TEMPLATE_SHARE * ours + MOST_TEMPLATE_TOKENS)
    if apart.sum() > _MANY * len(both):
        yield remark(
            ReasonCode.TOKENIZER_DISAGREES,
            f"The server counts {theirs.mean():.4g} tokens per prompt and `requests.tokenizer` {ours.mean():.4g}: it is another model's. The "
            "server's number is kept.",
        )


def remark(code: ReasonCode, message: str) -> Finding:
    """What a reader has to know, and no fault of the data."""
    return Finding(Severity.INFO, code, "", message)
