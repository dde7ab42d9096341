"""Whatever is drafted, the output is that of plain decoding; and no request disturbs another."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from drafting import Request, hashed, play
from small_models import backend

from paradecode.core.decoder import TARGET
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest
from paradecode.methods.specs import parse
from paradecode.models.tiny import tiny_checkpoint

METHODS = (
    "copyspec", "suffix", "suffix(mode=path,max_spec_factor=4.0)", "token-recycling", "aded",
    "stand", "retrieval", "rasd", "input-copy", "jacobi(explore=always)",
    "lookahead(explore=always,level=4,num_speculative_tokens=24)", "predicted-output",
    "suffix+token-recycling", "copyspec+jacobi+stand(num_speculative_tokens=12)",
)  # fmt: skip
PROMPTS = ([5, 6, 7, 8, 9] * 4, [11, 12] * 5, [3], list(range(20, 50)))


@cache
def outputs(method: str, temperature: float) -> list[list[int]]:
    """Outputs of a transformer for all prompts in one batch."""
    engine = Engine({TARGET: backend(tiny_checkpoint())})
    params = SamplingParams(max_tokens=24, temperature=temperature, seed=7, ignore_eos=True)
    sequences = [
        engine.add(
            GenerationRequest(
                np.array(prompt, np.int32), parse(method), params,
                prediction=np.arange(30, dtype=np.int32),
            )
        )
        for prompt in PROMPTS
    ]  # fmt: skip
    while engine.busy:
        engine.step()
        engine.check()
    assert [sequence.error for sequence in sequences] == [None] * len(PROMPTS)
    return [sequence.output for sequence in sequences]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("spec", METHODS)
def test_equals_plain_decoding_through_the_engine(spec: str, temperature: float) -> None:
    assert outputs(spec, temperature) == outputs("greedy", temperature)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("spec", METHODS)
def test_equals_plain_decoding_request_after_request(spec: str, temperature: float) -> None:
    """The stores that requests share are full by then."""
    stores: dict[str, object] = {}
    for seed in range(3):
        wanted, got = (
            play(method, Request([1, 2, 3], 60, shared, temperature=temperature, seed=seed), law)
            for method, shared in (("greedy", {}), (spec, stores))
            for law in [hashed(16)]
        )
        assert got.output == wanted.output


@pytest.mark.parametrize("spec", [m for m in METHODS if "always" not in m])
def test_with_steep_costs_hardly_anything_is_drafted(spec: str) -> None:
    """On a machine where every row costs a full step, a random text is decoded almost plainly."""
    seq = Request([1, 2, 3], 120, curve=lambda rows: rows)
    play(spec, seq, hashed(32, memory=4))
    assert sum(len(tree) for tree in seq.trees) < 30


@pytest.mark.parametrize("spec", METHODS)
@pytest.mark.parametrize("limit", [1, 2, 3])
def test_few_tokens_and_little_room(spec: str, limit: int) -> None:
    inside = "," in spec or "(" in spec.rsplit("+")[-1]
    if "num_speculative_tokens" not in spec:
        head = spec[:-1] + "," if inside else spec + "("
        spec = f"{head}num_speculative_tokens={limit})"
    for max_tokens in (1, 2, 3, 9):
        seq = play(spec, Request([1, 2, 1, 2, 1], max_tokens), hashed(8))
        assert len(seq.output) == max_tokens
