"""Runs a search on the toy model, and decodes single branches of it separately."""

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paradecode.core.noise import Purpose, key
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest
from paradecode.methods.specs import parse
from paradecode.search.branch import Branch
from paradecode.search.run import SearchRun
from paradecode.search.strategies import find_strategy
from paradecode.testing.toy import LetterText, ToyBackend, letter

PROMPT = tuple(4 + (5 * i * i + 2 * i) % 24 for i in range(37))
LOOP = (5, 6, 7, 8, 9) * 4
SEED, MOST = 11, 24
STOPS = ("a",)


def text_of(tokens: Sequence[int]) -> str:
    return "".join(map(letter, tokens))


def value(text: str) -> float:
    """Return a score from 0 to 1 that depends only on the text."""
    return zlib.crc32(text.encode()) / 2**32


def scorer(prompt: str, texts: Sequence[str]) -> list[float]:
    return [value(text) for text in texts]


def engine() -> Engine:
    return Engine({"target": ToyBackend()}, new_text=LetterText)


def request(
    decoder: str = "greedy", prompt: Sequence[int] = PROMPT, **more: Any
) -> GenerationRequest:
    values = {"max_tokens": MOST, "temperature": 1.5, "seed": SEED, "stop": STOPS} | more
    return GenerationRequest(np.array(prompt, np.int32), parse(decoder), SamplingParams(**values))


def begin(
    engine: Engine,
    search: str,
    score: Callable[..., Any] | None = None,
    asked: GenerationRequest | None = None,
    **bounds: Any,
) -> SearchRun:
    asked = asked or request()
    return SearchRun(engine, asked, find_strategy(search), text_of, "", score, **bounds)


def run(
    search: str,
    score: Callable[..., Any] | None = None,
    decoder: str = "greedy",
    on: Engine | None = None,
    tokens: int = 1 << 20,
    **more: Any,
) -> SearchRun:
    """Run a search to its end.

    The page accounts are correct after every step, and empty at the end.
    """
    own = on or engine()
    found = begin(own, search, score, request(decoder, **more), tokens=tokens)
    for _ in range(3000):
        if found.finished:
            break
        own.step()
        own.check()
        found.advance()
        own.check()
    assert found.finished
    assert not own.busy
    assert not any(pool.held for pool in own.pools.values())
    return found


def alone(seed: int, after: Sequence[int] = (), most: int = MOST) -> tuple[list[int], str, float]:
    """Decode a branch plainly and alone.

    Returns its tokens, finish reason and mean log-probability.
    """
    own = engine()
    drawn = SEED if seed == 0 else key(SEED, seed, Purpose.CHILD_SEED)
    sequence = own.add(request(prompt=(*PROMPT, *after), seed=drawn, max_tokens=most, logprobs=0))
    while own.busy:
        own.step()
    scores = [entry.logprob for entry in sequence.logprobs]
    return sequence.output, sequence.finish_reason or "", sum(scores) / len(scores)


def best(found: SearchRun) -> Branch:
    assert found.error is None
    return found.found.best
