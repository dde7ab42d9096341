"""Clocks do not change outputs, and attribute time correctly."""

import numpy as np
import pytest

from paradecode.core.decoder import DRAFT, TARGET, Forward, Store
from paradecode.core.logits import ArrayLogits, Warp
from paradecode.core.sampling import SamplingParams
from paradecode.core.tree import TokenTree
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.request import GenerationRequest
from paradecode.methods.specs import parse
from paradecode.testing.toy import LetterText, ToyBackend, toy_config
from paradecode_lab.measure.clock import Clock, Clocked, TimedLogits, is_draft

PROMPT = np.array([5, 6, 7, 8, 9] * 4, np.int32)
SPECS = ("greedy", "prompt-lookup(budget=fixed)", "suffix", "token-recycling", "layer-skip",
         "prompt-lookup+token-recycling", "prompt-lookup(verifier=block)", "lookahead")  # fmt: skip


def decode(build, temperature=0.0):
    engine = Engine({TARGET: ToyBackend(toy_config())}, Limits(4, 512, 4096), LetterText)
    params = SamplingParams(max_tokens=30, temperature=temperature, seed=1, ignore_eos=True)
    sequence = engine.add(GenerationRequest(PROMPT, build, params))
    while not sequence.finished:
        engine.step()
    assert sequence.error is None
    engine.check()
    return sequence


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("spec", SPECS)
def test_the_output_is_the_same_behind_clocks(spec, temperature):
    clock = Clock()
    with_clock = decode(lambda: Clocked(parse(spec), clock), temperature)
    without = decode(parse(spec), temperature)
    assert with_clock.output == without.output
    assert with_clock.stats.forwards == without.stats.forwards
    assert with_clock.stats.accepted == without.stats.accepted
    assert clock.sample > 0
    assert (clock.draft > 0) == (spec != "greedy")


def test_time_goes_to_who_spent_it(monkeypatch):
    clock, now = Clock(), [0.0]
    monkeypatch.setattr("paradecode_lab.measure.clock.perf_counter", lambda: now[0])
    slow = parse("prompt-lookup(budget=fixed)")()
    propose, verify = slow.drafter.propose, slow.verify

    def lazy_propose(seq, limit):
        now[0] += 2.0
        return (yield from propose(seq, limit))

    def lazy_verify(seq, tree, reply):
        now[0] += 4.0
        return verify(seq, tree, reply)

    slow.drafter.propose, slow.verify = lazy_propose, lazy_verify
    sequence = decode(lambda: Clocked(lambda: slow, clock))
    steps = sequence.stats.forwards
    assert clock.verify == pytest.approx(4.0 * steps)
    assert 2.0 * (steps - 1) <= clock.draft <= 2.0 * steps
    assert clock.sample == 0.0


def test_draft_forwards_are_told_from_the_targets():
    one = np.array([1], np.int32)
    assert not is_draft(Forward(one))
    # Its rows are stored, so it decodes, although not exactly.
    assert not is_draft(Forward(one, layers=(0, 1)))
    assert is_draft(Forward(one, layers=(0, 1), store=Store.NONE))
    assert is_draft(Forward(one[:0], tree=TokenTree.chain([1, 2]), layers=(0,)))
    assert is_draft(Forward(one, model=DRAFT))
    clock = Clock()
    clock.count([Forward(one), Forward(one, model=DRAFT, tree=TokenTree.chain([1, 2]))])
    assert (clock.forwards, clock.rows) == (1, 3)


def test_timed_logits_behave_as_logits():
    clock = Clock()
    bare = ArrayLogits(np.random.default_rng(0).normal(size=(3, 11)))
    timed = TimedLogits(bare, clock)
    assert timed.shape == (3, 11)
    assert clock.sample == 0
    assert timed.argmax().tolist() == bare.argmax().tolist()
    chosen = timed.select([2]).with_bias([(np.array([4], np.int32), np.array([9.0], np.float32))])
    assert isinstance(chosen, TimedLogits)
    assert chosen.sample(Warp(), [1]).tolist() == [4]
    assert clock.sample > 0
