"""Log-probabilities of tokens: stored in columns, and written in the forms of several servers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from paradecode.serve.wire import WireScores

MAX_SCORES = 1 << 18
"""The most log-probabilities in one answer without a stream, and for all prompts of a request."""


class Scored(NamedTuple):
    """A token with its bytes and its log-probability."""

    token: int
    spelled: bytes
    logprob: float

    @property
    def text(self) -> str:
        return self.spelled.decode("utf-8", "replace")


class ScoreColumns:
    """The scores of an output, with 13 bytes for each score and the text of each token once.

    Iteration gives a list for each position: its own token first, and then the most likely tokens.
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
        """Yield pieces of at most ``most`` positions.

        There is at least one piece, which may be empty.
        """
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
    """Return the scores in OpenAI's form for chats. The list in it is an iterator."""
    content = (
        {**_candidate(chosen), "top_logprobs": [_candidate(one) for one in top]}
        for chosen, *top in scores
    )
    return {"content": content, "refusal": None}


def text_logprobs(
    parts: Sequence[Iterable[list[Scored]]], offset: int = 0, prompt: bool = False
) -> dict[str, Any]:
    """Return the scores in OpenAI's form for completions. The lists in it are iterators.

    Args:
        parts: the scores in pieces, which are iterated several times.
        offset: number of characters of the tokens before these scores.
        prompt: whether the first token begins a prompt, so that it has no log-probability.
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
        # The token itself is reported, too. If several tokens have the same text, the most likely
        # one is reported.
        "top_logprobs": known(
            {one.text: one.logprob for one in (chosen, *reversed(top))} for chosen, *top in each()
        ),
        "text_offset": offsets(),
    }


def text_length(scores: Iterable[list[Scored]]) -> int:
    """Count the characters of the tokens, where each token is written by itself."""
    return sum(len(chosen.text) for chosen, *_ in scores)


def prompt_logprobs(scores: Iterable[list[Scored]]) -> Iterator[dict[str, Any] | None]:
    """Yield the scores in vLLM's form: for each token an object by token id.

    The token itself is the first entry. The first position has no scores, and gives None.
    """
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
