"""Synthetic texts of a given number of tokens: short words, or those of a tokenizer."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import LoadError
from harness.traffic.protocols import UNKNOWN

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TOKENIZER_FILE = "tokenizer.json"
_WORDS = ("the", "sun", "on", "a", "red", "hill", "is", "low", "and", "we", "go", "home", "by", "sea", "with", "two")
"""Each is one token to most tokenizers."""
_FEWEST_WORDS = 2


@functools.lru_cache(maxsize=4096)
def _drawn_words(words: tuple[str, ...], name: str, tokens: int) -> tuple[str, ...]:
    return tuple(random.Random(name).choices(words, k=tokens))  # noqa: S311 - texts to repeat, not a secret


class Texts:
    """Texts of words that count as one token each; by a tokenizer of exactly so many, without special ones and the model's template.

    ``path`` is ``tokenizer.json``, or the folder that holds it. Raises LoadError where there is no tokenizer, or none of
    whose tokens texts of a given length can be made.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._words: Sequence[str] = _WORDS
        self._between = " "
        self._tokenizer: Any = _read_tokenizer(path) if path else None
        if self._tokenizer is None:
            return
        for between, candidates in ((" ", _WORDS), (" ", self._vocabulary()), ("", self._vocabulary())):
            self._between = between
            self._words = self._that_stay_apart(candidates)
            if len(self._words) >= _FEWEST_WORDS:
                return
        raise LoadError(
            f"no text of a given number of tokens can be made with the tokenizer {path}: no two words stay one token each, side by "
            "side; leave requests.tokenizer out."
        )

    def make(self, tokens: int, chance: random.Random) -> str:
        """A text of so many tokens."""
        return self._between.join(chance.choices(self._words, k=tokens))

    def join(self, *texts: str) -> str:
        """One text of several, whose tokens stay those that they are."""
        return self._between.join(text for text in texts if text)

    def fixed(self, name: str, tokens: int) -> str:
        """The text of that name: each shorter one is the beginning of a longer one."""
        return self._between.join(_drawn_words(tuple(self._words), name, tokens))

    def of_blocks(self, ids: Sequence[int], size: int, tokens: int, chance: random.Random) -> str:
        """A text of so many tokens in blocks of ``size``, alike wherever they have the same id; beyond its blocks it is drawn."""
        whole = [
            self.fixed(f"block {number}", min(size, tokens - begin))
            for number, begin in zip(ids, range(0, tokens, size), strict=False)
        ]
        return self.join(*whole, self.make(max(tokens - size * len(ids), 0), chance))

    def known(self, tokens: int) -> int:
        """How many tokens a text has that was made of so many; UNKNOWN without a tokenizer."""
        return UNKNOWN if self._tokenizer is None else tokens

    def count(self, text: str) -> int:
        """How many tokens a text has; UNKNOWN without a tokenizer."""
        return UNKNOWN if self._tokenizer is None else len(self._numbers(text))

    def _numbers(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _vocabulary(self) -> Iterator[str]:
        numbers = sorted(self._tokenizer.get_vocab().values())
        texts = (self._tokenizer.decode([number]).strip() for number in numbers)
        return (text for text in texts if text.isascii() and text.isalnum())

    def _that_stay_apart(self, candidates: Iterable[str]) -> list[str]:
        """A few words that are one token each wherever they stand: at the beginning, in the middle and at the end, after each other."""
        kept: list[str] = []
        for word in candidates:
            known = self._tokenizer.decode(self._numbers(word)).strip() == word
            if known and word not in kept and all(self._apart(word, other) for other in (word, *kept)):
                kept.append(word)
                if len(kept) == len(_WORDS):
                    break
        return kept

    def _apart(self, word: str, other: str) -> bool:
        """Two orders hold each of the two at the beginning, after the other, before it and at the end."""
        orders = ([word], [word, other, word, other], [other, word, other, word])
        return all(self.count(self._between.join(order)) == len(order) for order in orders)


def _read_tokenizer(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer  # an extra brings it

    file = path / _TOKENIZER_FILE if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoadError(
            f"the tokenizer {file} cannot be read: {error.strerror}; give a folder with {_TOKENIZER_FILE}, or that file. Nothing is fetched."
        ) from error
    except Exception as error:  # the library raises no narrower one
        raise LoadError(f"{file} is not a tokenizer of the form of {_TOKENIZER_FILE}: {error!s:.200}") from error
    tokenizer.no_truncation()  # a file may ask for both
    tokenizer.no_padding()
    return tokenizer
