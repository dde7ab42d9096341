"""Who runs when: admission, priorities, deadlines, memory, chunks."""

from __future__ import annotations

import numpy as np
import pytest
from driving import LOOP, PROMPT, add, by, finish, greedy, plainly, toy_engine

from paradecode.core.errors import CapacityError, InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.decoders.registry import parse
from paradecode.engine.engine import Limits
from paradecode.engine.request import GenerationRequest


def test_priority_then_arrival() -> None:
    engine, ended = toy_engine(batch=1), []
    names = {}
    for name, priority in (("c", 5), ("a", 0), ("d", 5), ("b", 1)):
        names[id(add(engine, max_tokens=1, priority=priority))] = name
    while engine.busy:
        ended += [names[id(sequence)] for sequence in engine.step() if sequence.finished]
    assert ended == ["a", "b", "c", "d"]


def test_a_deadline_ends_a_request_with_what_it_has() -> None:
    engine = toy_engine(batch=1)
    running, waiting = add(engine, deadline=3600.0), add(engine, deadline=3600.0)
    other = add(engine)
    engine.step()
    engine.step()
    for sequence in (running, waiting):
        sequence.arrived -= 7200.0
    news = engine.step()
    assert running in news
    assert waiting in news
    assert (running.finish_reason, running.output) == ("deadline", greedy(count=2))
    assert (waiting.finish_reason, waiting.output) == ("deadline", [])
    finish(engine)
    assert other.output == greedy()


def test_too_big_a_request_is_refused_at_once() -> None:
    engine = toy_engine(kv_tokens=64)
    with pytest.raises(CapacityError, match="kv_tokens"):
        add(engine, max_tokens=60)
    assert not engine.busy


def test_requests_wait_for_memory() -> None:
    engine = toy_engine(kv_tokens=160, draft_tokens=0, batch=8)
    sequences = [add(engine, prompt=PROMPT[i:], max_tokens=12) for i in range(6)]
    engine.step()
    assert 1 <= len(engine.running) < 6
    finish(engine)
    for i, sequence in enumerate(sequences):
        assert sequence.output == greedy(PROMPT[i:])


def test_a_prompt_is_cut_where_the_step_is_full() -> None:
    engine = toy_engine(step_tokens=10)
    first, second = add(engine, prompt=PROMPT), add(engine, prompt=LOOP)
    steps = 0
    while not first.output:
        engine.step()
        steps += 1
    assert steps == 4
    assert not second.output
    assert first.stats.forwards == 1
    finish(engine)
    assert first.output == greedy(PROMPT)
    assert second.output == greedy(LOOP)


def test_running_requests_do_not_wait_for_a_long_prompt() -> None:
    engine = toy_engine(step_tokens=5)
    first = add(engine, prompt=(5, 6), max_tokens=8)
    engine.step()
    second = add(engine, prompt=PROMPT)
    for count in range(2, 6):
        engine.step()
        assert len(first.output) == count
        assert second.output == []
    finish(engine)
    assert second.output == greedy(PROMPT)


def test_each_request_of_a_batch_has_its_own_method() -> None:
    engine = toy_engine()
    specs = ("greedy", "prompt-lookup", "prompt-lookup(max_ngram=1)", "none")
    sequences = [
        engine.add(
            GenerationRequest(np.array(LOOP), parse(spec), SamplingParams(24, ignore_eos=True))
        )
        for spec in specs
    ]
    finish(engine)
    assert [sequence.output for sequence in sequences] == [greedy(count=24)] * 4
    forwards = [sequence.stats.forwards for sequence in sequences]
    assert forwards[0] == forwards[3] == 24
    assert max(forwards[1], forwards[2]) < 24


def test_unseeded_requests_differ() -> None:
    engine = toy_engine()
    sequences = [add(engine, temperature=2.0, max_tokens=20) for _ in range(2)]
    finish(engine)
    assert sequences[0].output != sequences[1].output


@pytest.mark.parametrize("prompt", [[], [[5]], [-1], [29], [5] * 160, [0.5]])
def test_unusable_prompts_are_refused(prompt: list[int]) -> None:
    engine = toy_engine()
    with pytest.raises(InvalidInput):
        engine.add(GenerationRequest(np.array(prompt), by(plainly)))
    assert not engine.busy


@pytest.mark.parametrize(
    "params", [{"logit_bias": {29: 1.0}}, {"stop_token_ids": (400,)}, {"stop": "x"}]
)
def test_parameters_this_model_cannot_serve_are_refused(params: dict[str, object]) -> None:
    engine = toy_engine()
    with pytest.raises(InvalidInput):
        add(engine, **params)
    assert not engine.busy


@pytest.mark.parametrize("name", ["batch", "step_tokens", "kv_tokens", "draft_tokens"])
@pytest.mark.parametrize("value", [-1, 1.5, True, 1 << 40])
def test_limits_are_checked(name: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=name):
        Limits(**{name: value})  # type: ignore[arg-type]
