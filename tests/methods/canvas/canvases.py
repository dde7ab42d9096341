"""Models of masked diffusion for tests, and a way to run canvases on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paradecode.backends.interface import Backend
from paradecode.core.automaton import TokenAutomaton
from paradecode.core.decoder import Decoder
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.parts import known
from paradecode.methods.specs import methods, parse
from paradecode.testing.canvas_matrix import ATTENTION, policies, spec
from paradecode.testing.toy import LetterText, ToyBackend, toy_config
from paradecode.testing.trained_parts import settings

MASK = 28
"""The mask token of every toy model."""
EOS = 3
PROMPT = (5, 6, 7, MASK, 9, 4, 1)
"""A prompt that has the mask token, which is an ordinary token there."""
PROMPTS = (PROMPT, (8,), tuple(4 + (3 * i * i + i) % 24 for i in range(37)), (MASK,) * 9)

POLICIES = policies()
"""Every registered canvas method with parts."""
UNTRAINED = sorted(name for name in POLICIES if methods()[name].training == "none")
"""Methods that need nothing trained; the others get the files of ``trained_parts``."""


def toy(kind: str, surprise: int = 700) -> ToyBackend:
    return ToyBackend(toy_config(**ATTENTION[kind]), surprise=surprise)


def specs() -> list[str]:
    """Every policy with every block rule and every cache; trained parts have random weights."""
    parts = settings()
    assert set(parts) == set(POLICIES) - set(UNTRAINED), "a trained method without a test's part"
    return [
        spec(policy, blocks, cache)
        for policy in POLICIES
        for blocks in known("blocks")
        for cache in known("cache")
    ]


Method = str | Callable[[], Decoder]


def run_all(
    backend: Backend,
    jobs: Sequence[tuple[Method, Sequence[int], SamplingParams]],
    constraint: TokenAutomaton | None = None,
    **limits: Any,
) -> list[LiveSequence]:
    """Run requests in one engine; the page books must be right after every step."""
    engine = Engine({"target": backend}, Limits(**{"kv_tokens": 4096, **limits}), LetterText)
    sequences = []
    for method, prompt, params in jobs:
        make = parse(method) if isinstance(method, str) else method
        tokens = np.array(prompt, np.int32)
        request = GenerationRequest(tokens, make, params, constraint=constraint)
        sequences.append(engine.add(request))
    steps = 0
    while engine.busy:
        engine.step()
        engine.check()
        steps += 1
        assert steps < 5000, "no end in sight"
    assert engine.pools["target"].held == 0
    return sequences


def run(
    backend: Backend,
    method: Method,
    prompt: Sequence[int] = PROMPT,
    max_tokens: int = 24,
    constraint: TokenAutomaton | None = None,
    **params: Any,
) -> LiveSequence:
    """One request to its end; raises what ended it."""
    values = SamplingParams(**{"max_tokens": max_tokens, "ignore_eos": True, **params})
    (sequence,) = run_all(backend, [(method, prompt, values)], constraint)
    if sequence.error is not None:
        raise sequence.error
    return sequence
