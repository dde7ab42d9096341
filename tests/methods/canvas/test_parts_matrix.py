"""Promises that every policy keeps with every block rule, cache and kind of attention."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from canvases import ATTENTION, MASK, POLICIES, PROMPTS, run_all, specs, toy

from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.methods.parts import known
from paradecode.methods.specs import parse
from paradecode.testing.trained_parts import folder

PARAMS = (
    SamplingParams(max_tokens=24, ignore_eos=True, seed=5),
    SamplingParams(max_tokens=19, temperature=0.9, seed=3),
    SamplingParams(max_tokens=9, temperature=1.0, top_k=4, seed=1, logprobs=2),
    SamplingParams(max_tokens=21, min_tokens=4, repetition_penalty=1.3, stop="gh", seed=2),
)


def cases() -> Iterator[Any]:
    """Yield specs and kinds of attention.

    Cases that add no new pair of parts are slow tests. Cases that add only a pair of a policy and a
    cache are mostly wide.
    """
    parts = product(range(len(POLICIES)), range(len(known("blocks"))), range(len(known("cache"))))
    for spec, (policy, blocks, cache) in zip(specs(), parts, strict=True):
        for number, kind in enumerate(ATTENTION):
            turn = blocks == (policy + cache) % len(known("blocks"))
            turn &= number == (policy + 3 * cache) % len(ATTENTION)
            marks = () if (policy + cache) % 4 == 0 else pytest.mark.wide
            yield pytest.param(spec, kind, marks=marks if turn else pytest.mark.slow)


def named(value: str) -> str:
    """Return the spec without the folder of trained parts, which differs between processes."""
    return value.replace(f"{folder()}/", "")


@pytest.mark.parametrize(("spec", "kind"), [*cases()], ids=named)
def test_promises(spec: str, kind: str) -> None:
    try:
        method = parse(spec).method
    except InvalidInput:
        pytest.skip("these parts say that they cannot work together")
    jobs = [(spec, prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
    together = run_all(toy(kind), jobs)
    for job, sequence in zip(jobs, together, strict=True):
        _, prompt, params = job
        if isinstance(sequence.error, InvalidInput):
            pytest.skip(f"not with this model: {sequence.error}")
        assert sequence.error is None
        (alone,) = run_all(toy(kind), [job])
        assert alone.output == sequence.output, "the batch changed the text"
        assert [s.canvas for s in alone.trace] == [s.canvas for s in sequence.trace]
        assert sequence.tokens[: len(prompt)].tolist() == list(prompt)
        assert MASK not in sequence.output
        assert len(sequence.output) <= params.max_tokens
        assert sequence.finish_reason in ("stop", "length")
        steps = [step.canvas for step in sequence.trace]
        assert all(steps)
        assert [t for s in sequence.trace for t in s.tokens] == sequence.output
        if not any(step.revoked for step in steps if step):
            # A model with blocks of its own decodes to the end of the last one.
            decisive = sum(bool(step.offsets) for step in steps if step)
            # Edits look at decided blocks again, and guidance runs each canvas twice.
            twice = method.name in ("edit", "guided")
            forwards = decisive if twice else sequence.forwards
            assert forwards <= params.max_tokens + 3, method.name
            decided = [offset for step in steps if step for offset in step.offsets]
            assert len(set(decided)) == len(decided)
