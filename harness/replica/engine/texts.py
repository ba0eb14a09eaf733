"""Synthetic texts of so many tokens: by a rule of thumb, or exactly by a tokenizer of this machine's own."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.replica.engine.protocols import UNKNOWN
from harness.replica.errors import CannotBeMetError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"
_WORDS = ("the", "sun", "on", "a", "red", "hill", "is", "low", "and", "we", "go", "home", "by", "sea", "with", "two")
"""Each is one token to most tokenizers."""
_FEWEST = 2


class Texts:
    """Texts of words that count as one token each."""

    def __init__(self) -> None:
        self._words: Sequence[str] = _WORDS
        self._between = " "

    def make(self, tokens: int, chance: random.Random) -> str:
        """A text of so many tokens."""
        return self._between.join(chance.choices(self._words, k=tokens))

    def known(self, tokens: int) -> int:  # noqa: ARG002 - without a tokenizer nobody knows
        """How many tokens a text has that was made of so many."""
        return UNKNOWN

    def count(self, text: str) -> int:  # noqa: ARG002 - as above
        """How many tokens a text has."""
        return UNKNOWN


class ExactTexts(Texts):
    """Texts of exactly so many tokens, without special ones and the model's template.

    Args:
        path: ``tokenizer.json``, or the folder that holds it.

    Raises:
        CannotBeMetError: there is no tokenizer, or none of whose tokens texts of a given length can be made.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._tokenizer = _read(path)
        for between, candidates in ((" ", _WORDS), (" ", self._vocabulary()), ("", self._vocabulary())):
            self._between = between
            self._words = self._that_stay_apart(candidates)
            if len(self._words) >= _FEWEST:
                return
        raise CannotBeMetError(
            f"no text of a given number of tokens can be made with the tokenizer {path}: no two words stay one token each, side by "
            "side; leave requests.tokenizer out."
        )

    def known(self, tokens: int) -> int:
        """As many."""
        return tokens

    def count(self, text: str) -> int:
        """How many tokens a text has."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _vocabulary(self) -> Iterator[str]:
        numbers = sorted(self._tokenizer.get_vocab().values())
        texts = (self._tokenizer.decode([number]).strip() for number in numbers)
        return (text for text in texts if text.isascii() and text.isalnum())

    def _that_stay_apart(self, candidates: Iterable[str]) -> list[str]:
        """A few words that are one token each wherever they stand: at the beginning, in the middle and at the end, after each other."""
        kept: list[str] = []
        for word in candidates:
            known = self._tokenizer.decode(self._tokenizer.encode(word, add_special_tokens=False).ids).strip() == word
            if known and word not in kept and all(self._apart(word, other) for other in (word, *kept)):
                kept.append(word)
                if len(kept) == len(_WORDS):
                    break
        return kept

    def _apart(self, one: str, other: str) -> bool:
        """Two orders hold each of the two at the beginning, after the other, before it and at the end."""
        orders = ([one], [one, other, one, other], [other, one, other, one])
        return all(self.count(self._between.join(order)) == len(order) for order in orders)


def texts(path: str | None) -> Texts:
    """What makes and counts texts: by the tokenizer at ``path``, or None. Raises CannotBeMetError as ExactTexts does."""
    return ExactTexts(Path(path)) if path else Texts()


def _read(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer  # an extra brings it

    file = path / FILE if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CannotBeMetError(
            f"the tokenizer {file} cannot be read: {error.strerror}; give a folder with {FILE}, or that file. Nothing is fetched."
        ) from error
    except Exception as error:  # the library raises no narrower one
        raise CannotBeMetError(f"{file} is no tokenizer as {FILE} holds one: {error!s:.200}") from error
    tokenizer.no_truncation()  # a file may ask for both
    tokenizer.no_padding()
    return tokenizer
