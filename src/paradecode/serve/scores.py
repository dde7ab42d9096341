"""Log-probabilities of tokens: stored in columns, and written in the forms of several servers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from paradecode.serve.wire import WireScores

MAX_SCORES = 1 << 18
"""The most log-probabilities in one answer that is not streamed, and for all prompts of one
request."""


class Scored(NamedTuple):
    """A token with its bytes and its log-probability."""

    token: int
    spelled: bytes
    logprob: float

    @property
    def text(self) -> str:
        return self.spelled.decode("utf-8", "replace")


class ScoreColumns:
    """The scores of an output: 13 bytes for each, and the text of each different token once.

    Iterating gives for each position its own token, and then the likeliest ones.
    """

    def __init__(self, *found: WireScores | None) -> None:
        self._sizes, self._tokens, self._logprobs = array("B"), array("i"), array("d")
        self._spelled: dict[int, bytes] = {}
        for scores in found:
            self.add(scores)

    def add(self, found: WireScores | None) -> None:
        if found is not None:
            self._sizes.extend(found.sizes)
            self._tokens.extend(found.tokens)
            self._logprobs.extend(found.logprobs)
            for token, spelled in zip(found.tokens, found.spelled, strict=True):
                if token not in self._spelled:
                    self._spelled[token] = spelled.encode("latin-1")

    def __len__(self) -> int:
        return len(self._sizes)

    def parts(self, most: int) -> Iterator[list[list[Scored]]]:
        """Pieces of at most ``most`` positions; there is at least one piece, which may be empty."""
        positions = iter(self)
        yield list(islice(positions, most))
        while some := list(islice(positions, most)):
            yield some

    def __iter__(self) -> Iterator[list[Scored]]:
        start = 0
        for size in self._sizes:
            yield [
                Scored(token, self._spelled[token], logprob)
                for token, logprob in zip(
                    self._tokens[start : start + size],
                    self._logprobs[start : start + size],
                    strict=True,
                )
            ]
            start += size


def chat_logprobs(scores: Iterable[list[Scored]]) -> dict[str, Any]:
    """The scores in OpenAI's form; its list is an iterator."""
    content = (
        {**_candidate(chosen), "top_logprobs": [_candidate(one) for one in top]}
        for chosen, *top in scores
    )
    return {"content": content, "refusal": None}


def text_logprobs(
    parts: Sequence[Iterable[list[Scored]]], offset: int = 0, prompt: bool = False
) -> dict[str, Any]:
    """The scores in OpenAI's older form; its lists are iterators.

    Args:
        parts: the scores in pieces; they are iterated several times.
        offset: characters of the tokens before these.
        prompt: whether the first token is a prompt's, which has no log-probability.
    """

    def offsets() -> Iterator[int]:
        at = offset
        for chosen, *_ in each():
            yield at
            at += len(chosen.text)

    def each() -> Iterator[list[Scored]]:
        return chain.from_iterable(parts)

    def known(values: Iterator[Any]) -> Iterator[Any]:
        for number, value in enumerate(values):
            yield None if prompt and number == 0 else value

    return {
        "tokens": (chosen.text for chosen, *_ in each()),
        "token_logprobs": known(chosen.logprob for chosen, *_ in each()),
        # The token itself is told as well. Of tokens with one text the likeliest is.
        "top_logprobs": known(
            {one.text: one.logprob for one in (chosen, *reversed(top))} for chosen, *top in each()
        ),
        "text_offset": offsets(),
    }


def text_length(scores: Iterable[list[Scored]]) -> int:
    """Characters of the tokens, each written by itself."""
    return sum(len(chosen.text) for chosen, *_ in scores)


def prompt_logprobs(scores: Iterable[list[Scored]]) -> Iterator[dict[str, Any] | None]:
    """The scores in vLLM's form: for each token an object by token id, with the token itself
    first."""
    for number, (chosen, *top) in enumerate(scores):
        ranks = {candidate.token: rank for rank, candidate in enumerate(top, 1)}
        yield {
            str(one.token): {
                "logprob": one.logprob, "rank": ranks.get(one.token), "decoded_token": one.text,
            }
            for one in (chosen, *top)
        } if number else None  # fmt: skip


def _candidate(found: Scored) -> dict[str, Any]:
    return {"token": found.text, "logprob": found.logprob, "bytes": list(found.spelled)}
