"""Compares options of LLaDA's sampler with its algorithm, written over forwards without a cache."""

from typing import Any

import numpy as np
import pytest
from canvases import OneForward, run, toy
from hub_folders import tiny_model

from paradecode.backends import open_backend
from paradecode.backends.interface import Backend
from paradecode.core.decoder import TokenSequence
from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.block_rules import FixedBlocks
from paradecode.methods.canvas.caches.blockwise import NoCache
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.loop import Unmask
from paradecode.methods.canvas.policies.llada import LateEnd
from paradecode.methods.parts import known
from paradecode.methods.specs import parse

LENGTH, BLOCK = 16, 8
PROMPTS = ([5, 17, 40, 8, 9, 33, 2], [70] * 9)


@pytest.fixture(scope="module", params=["llada", "dream"])
def model(request: pytest.FixtureRequest) -> Backend:
    pytest.importorskip("torch")
    return open_backend("torch", *tiny_model(request.param), dtype="fp64", threads=1)


def by_the_book(backend, prompt, cfg_scale=0.0, late=()):
    """Return the output of the reference, which decides one token a forward, in blocks."""
    mask, shift = backend.config.mask_token, int(backend.config.shift)
    assert mask is not None
    start = len(prompt)
    row = np.array([*prompt, *[mask] * LENGTH])
    for first in range(start, start + LENGTH, BLOCK):
        for _ in range(BLOCK):
            logits = _logits(backend, row, shift)
            if cfg_scale:
                without = row.copy()
                without[:start] = mask
                other = _logits(backend, without, shift)
                logits = other + (cfg_scale + 1) * (logits - other)
            logits[:, mask] = -np.inf
            best = logits.argmax(1)
            chance = 1 / np.exp(logits - logits.max(1, keepdims=True)).sum(1)
            chance[np.isin(best, late)] = -0.5
            allowed = (row == mask) & (np.arange(len(row)) >= first)
            allowed[first + BLOCK :] = False
            at = np.where(allowed, chance, -1.0).argmax()
            row[at] = best[at]
    return row[start:].tolist()


def _logits(backend: Backend, row: Any, shift: int) -> Any:
    """Return float64 [N, V]: row i has the logits of position i."""
    asked = OneForward(row.tolist(), list(range(len(row))))
    run(backend, lambda: asked)
    logits = np.asarray(asked.logits, np.float64)
    return np.concatenate([logits[:shift], logits[: len(logits) - shift]])


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("scale", [0.0, 0.5, 2.0])
def test_guidance(model: Backend, prompt: list[int], scale: float) -> None:
    made = run(model, f"guided(cfg_scale={scale},block_length={BLOCK})", prompt, LENGTH)
    assert made.output == by_the_book(model, prompt, scale)
    assert len(made.trace) == LENGTH
    assert made.forwards == (2 if scale else 1) * LENGTH


def test_guidance_changes_something(model: Backend) -> None:
    outputs = {tuple(by_the_book(model, PROMPTS[0], scale)) for scale in (0.0, 2.0)}
    assert len(outputs) == 2


def test_reported_probabilities_are_those_without_guidance() -> None:
    plain = run(toy("full"), "static", max_tokens=1, logprobs=5)
    made = run(toy("full"), "guided(scale=3)", max_tokens=1, logprobs=5)
    assert made.logprobs[0].top == plain.logprobs[0].top


def test_guidance_has_no_cache() -> None:
    for cache in known("cache").keys() - {"none"}:
        with pytest.raises(InvalidInput, match="use none"):
            parse(f"guided(cache={cache})")()
    parse("guided(cache=none)")()


LATE = tuple(range(0, 90, 2))


class EveryOther(Unmask):
    """A loop for which every second token ends a text, although text follows it."""

    def begin(self, seq: TokenSequence) -> Canvas:
        canvas = super().begin(seq)
        canvas.stops = LATE
        return canvas


def test_ends_come_last(model: Backend) -> None:
    prompt = PROMPTS[0]
    made = run(
        model, lambda: EveryOther(LateEnd(), FixedBlocks(), NoCache(), BLOCK), prompt, LENGTH
    )
    assert made.output == by_the_book(model, prompt, late=LATE)
    assert made.output != by_the_book(model, prompt)
    decided = [pair for s in made.trace for pair in zip(s.canvas.offsets, s.canvas.tokens)]
    ends = [token in LATE for at, token in decided if at < BLOCK]
    assert 0 < sum(ends) < len(ends)
