"""Canvases in the engine: batches, ends of texts, memory, and wrong decisions of policies."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from canvases import EOS, MASK, PROMPT, PROMPTS, run, run_all, toy

from paradecode.core.decoder import Forward, Overwrite, Store
from paradecode.core.errors import DecoderError, InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.request import GenerationRequest
from paradecode.methods.canvas.block_rules import FixedBlocks
from paradecode.methods.canvas.caches.base import CacheRule, RowPlan, everything, marks
from paradecode.methods.canvas.caches.blockwise import NoCache
from paradecode.methods.canvas.canvas import Decision
from paradecode.methods.canvas.loop import Unmask
from paradecode.methods.canvas.policies.base import Policy
from paradecode.methods.canvas.policies.llada import Static
from paradecode.methods.specs import parse
from paradecode.testing.toy import LetterText, ToyBackend, toy_config

PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)


def engine(kind: str = "full", **limits: int) -> Engine:
    return Engine({"target": toy(kind)}, Limits(**{"kv_tokens": 2048, **limits}), LetterText)


def request(spec: str, prompt: tuple[int, ...] = PROMPT, **values: object) -> GenerationRequest:
    return GenerationRequest(np.array(prompt, np.int32), parse(spec), PARAMS, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_autoregressive_neighbours(cache: str) -> None:
    """In one engine a batch of canvas and autoregressive requests changes no request's text."""
    canvas = f"threshold(threshold=0.3,block_length=8,cache={cache})"
    specs = [canvas, "greedy", "prompt-lookup", canvas, "greedy"]
    jobs = [
        (spec, PROMPTS[index % 4], SamplingParams(max_tokens=20, temperature=0.5, seed=index))
        for index, spec in enumerate(specs)
    ]
    together = run_all(toy("causal"), jobs)
    for job, sequence in zip(jobs, together, strict=True):
        assert sequence.error is None
        assert run_all(toy("causal"), [job])[0].output == sequence.output


def test_text_is_shown_from_the_left_edge_only() -> None:
    eng = engine()
    sequence = eng.add(request("static(blocks=full)"))
    shown: list[int] = []
    gaps = 0
    while eng.busy:
        eng.step()
        eng.check()
        new = [token for commit in sequence.take() for token in commit.tokens]
        canvas = sequence.provisional
        if not sequence.finished:
            assert len(shown) + len(new) + len(canvas) == 24
            assert canvas[0] is None, "a decided token at the left edge was held back"
            gaps += any(token is not None for token in canvas)
        shown += new
    assert shown == sequence.output
    assert gaps > 5
    assert sum(len(step.tokens) for step in sequence.trace) == 24
    assert min(len(step.tokens) for step in sequence.trace) == 0


def test_an_end_of_text_counts_when_nothing_before_it_is_masked() -> None:
    ended = 0
    for seed in range(12):
        values = {"temperature": 1.0, "seed": seed, "logit_bias": {EOS: 1.5}}
        whole = run(toy("full"), "static", ignore_eos=True, **values)
        cut = run(toy("full"), "static", ignore_eos=False, **values)
        if EOS in whole.output:
            ended += 1
            end = whole.output.index(EOS) + 1
            assert cut.output == whole.output[:end]
            assert cut.finish_reason == "stop"
            assert cut.forwards <= whole.forwards
    assert ended > 3


def test_min_tokens_bans_the_end() -> None:
    sequence = run(toy("full"), "static", ignore_eos=False, min_tokens=10, logit_bias={EOS: 50.0})
    assert EOS not in sequence.output[:10]
    assert sequence.output[10:] == [EOS]


def test_stop_texts_and_stop_tokens() -> None:
    whole = run(toy("full"), "static")
    text = whole.text.value
    cut = run(toy("full"), "static", stop=text[7:10])
    assert cut.text.value == text[: text.index(text[7:10])]
    assert cut.finish_reason == "stop"
    token = whole.output[5]
    stopped = run(toy("full"), "static", stop_token_ids=(token,))
    assert stopped.output == whole.output[: whole.output.index(token) + 1]


@pytest.mark.parametrize("kind", ["full", "block"])
def test_pages_are_reserved_at_admission(kind: str) -> None:
    """With memory for one canvas the second request waits, and both end well."""
    eng = engine(kind, kv_tokens=112)
    both = [eng.add(request("static(cache=dual,block_length=8)")) for _ in range(2)]
    most = 0
    while eng.busy:
        eng.step()
        eng.check()
        most = max(most, len(eng.running))
    assert [s.finish_reason for s in both] == ["length"] * 2
    assert both[0].output == both[1].output
    assert most == 1


def test_cancelled_and_late_canvases_give_their_pages_back() -> None:
    eng = engine()
    gone = eng.add(request("static(cache=dual)"))
    late = eng.add(request("static(cache=prefix)", deadline=600.0))
    stays = eng.add(request("static(cache=dual)"))
    for _ in range(5):
        eng.step()
        eng.check()
    assert eng.pools["target"].held > 0
    eng.cancel(gone)
    eng.check()
    late.arrived -= 1000.0
    while eng.busy:
        eng.step()
        eng.check()
    assert (gone.finish_reason, late.finish_reason) == ("cancelled", "deadline")
    assert stays.output == run(toy("full"), "static(cache=dual)").output
    assert eng.pools["target"].held == 0


def test_small_steps_and_the_end_of_the_context() -> None:
    reference = run(toy("block"), "static(cache=prefix)")
    (small,) = run_all(toy("block"), [("static(cache=prefix)", PROMPT, PARAMS)], step_tokens=1)
    assert small.output == reference.output
    config = toy("full").config
    long = [4 + i % 20 for i in range(config.context_length - 3)]
    for kind in ("full", "shift", "block", "causal"):
        sequence = run(toy(kind), "static(cache=dual)", long, max_tokens=50)
        assert len(sequence.output) == 3
        assert sequence.finish_reason == "length"


def test_the_mask_token_is_never_proposed() -> None:
    """The mask token is not proposed even if the model is certain of it."""

    class Stubborn(ToyBackend):
        def head(self, states, tokens):
            logits = super().head(states, tokens)
            logits[:, MASK] = 50.0
            return logits

    for spec in ("static", "threshold(threshold=0)", "static(score=margin)"):
        for values in ({}, {"temperature": 1.5, "seed": 1}, {"logit_bias": {MASK: 100.0}}):
            sequence = run(Stubborn(toy_config(attention="full")), spec, **values)
            assert MASK not in sequence.output
            assert all(0 < c <= 1 for s in sequence.trace if s.canvas for c in s.canvas.confidences)


def test_log_probabilities_are_of_the_deciding_forward() -> None:
    sequence = run(toy("full"), "static", logprobs=3)
    assert [entry.token for entry in sequence.logprobs] == sequence.output
    assert all(len(entry.top) == 3 for entry in sequence.logprobs)
    bare = run(toy("full"), "static", logprobs=0)
    assert [e.logprob for e in bare.logprobs] == [e.logprob for e in sequence.logprobs]
    decided = {
        offset: confidence
        for step in sequence.trace if step.canvas
        for offset, confidence in zip(step.canvas.offsets, step.canvas.confidences, strict=True)
    }  # fmt: skip
    for offset, entry in enumerate(sequence.logprobs):
        # The confidence knows that the mask token is banned; the report is the model's own.
        assert entry.logprob <= np.log(decided[offset]) + 1e-9


def test_a_causal_model_without_a_mask_is_refused() -> None:
    with pytest.raises(InvalidInput, match="mask token"):
        run(ToyBackend(toy_config()), "static")


@dataclass
class Acts(Policy):
    """A policy that makes the given decision at each step."""

    decisions: list[object]
    revises = True

    def decide(self, view):
        step = min(view.progress.step, len(self.decisions) - 1)
        return self.decisions[step](view)  # type: ignore[operator]


def acting(*decisions: object) -> Unmask:
    return Unmask(Acts(list(decisions)), FixedBlocks(), NoCache())


def commit(view) -> Decision:
    return Decision(view.best(view.confidence, 2))


def test_revoked_positions_are_asked_again_and_shown_late() -> None:
    def undo(view) -> Decision:
        decided = np.flatnonzero(~view.canvas.masked)[view.canvas.start :]
        return Decision(view.best(view.confidence, 1), revoke=decided[:1])

    eng = engine()
    sequence = eng.add(
        GenerationRequest(
            np.array(PROMPT, np.int32), lambda: acting(commit, commit, undo, commit), PARAMS
        )
    )
    while eng.busy:
        eng.step()
        assert not sequence.output or sequence.finished, "text was shown that could be revoked"
    assert sequence.finish_reason == "length"
    steps = [step.canvas for step in sequence.trace]
    assert [len(step.revoked) for step in steps if step].count(1) == 1
    again = [offset for step in steps if step for offset in step.offsets]
    assert len(again) == 25


def test_a_policy_that_only_revokes_is_stopped() -> None:
    def back(view) -> Decision:
        decided = np.flatnonzero(~view.canvas.masked)[view.canvas.start :]
        return Decision(revoke=decided) if len(decided) else commit(view)

    with pytest.raises(DecoderError, match="does not end"):
        run(toy("full"), lambda: acting(back))


def test_a_canvas_may_be_cut_and_ends_there() -> None:
    def cut(view) -> Decision:
        return Decision(view.best(view.confidence, 1), truncate=view.canvas.start + 9)

    sequence = run(toy("full"), lambda: acting(commit, cut, commit))
    assert len(sequence.output) == 9
    assert sequence.finish_reason == "stop"
    assert [step.canvas.length for step in sequence.trace if step.canvas][:2] == [24, 9]


@pytest.mark.parametrize("decision", [
    lambda view: Decision(np.array([0])), lambda view: Decision(np.array([view.canvas.end])),
    lambda view: Decision(view.positions[:1], tokens=np.array([MASK], np.int32)),
    lambda view: Decision(view.positions[:2], tokens=np.array([1], np.int32)),
    lambda view: Decision(view.positions[[0, 0]]), lambda view: Decision(revoke=np.array([1])),
    lambda view: Decision(revoke=view.positions[:1]),
    lambda view: Decision(view.positions[:1], truncate=2), lambda view: None,
])  # fmt: skip
def test_impossible_decisions_end_their_request_only(decision) -> None:
    jobs = [(lambda: acting(decision), PROMPT, PARAMS), ("static", PROMPT, PARAMS)]
    wrong, right = run_all(toy("full"), jobs)
    assert wrong.finish_reason == "error"
    assert right.output == run(toy("full"), "static").output


@dataclass
class Plans(CacheRule):
    """A cache rule that returns the given plans, after a first forward that stores the prompt."""

    make: object = field(default=None)

    def plan(self, canvas, window):
        if canvas.steps == 0:
            return everything(canvas, window, store=marks(canvas, 0, canvas.start))
        return self.make(canvas)  # type: ignore[operator]


@pytest.mark.parametrize("make", [
    lambda c: RowPlan(marks(c, 0, c.end), marks(c, 0, 0), marks(c, 0, 1), False),
    lambda c: RowPlan(marks(c, 0, 0), marks(c, 0, 0), marks(c, 0, 0)),
    lambda c: RowPlan(marks(c, 0, c.start), marks(c, 0, 0), marks(c, 0, 0)),
    lambda c: RowPlan(marks(c, c.start, c.end), marks(c, 0, 2), marks(c, 0, 2)),
    lambda c: RowPlan(marks(c, c.start, c.end - 1), marks(c, 0, 0), marks(c, c.end - 1, c.end)),
])  # fmt: skip
def test_impossible_plans_end_their_request(make) -> None:
    made = make
    sequence = run_all(
        toy("full"), [(lambda: Unmask(Static(), FixedBlocks(), Plans(made)), PROMPT, PARAMS)]
    )[0]
    # The first plan is fine: what is computed is left out of what is seen.
    assert (sequence.error is None) == (sequence.finish_reason == "length")
    assert sequence.finish_reason in ("length", "error")


def test_slots_that_were_never_written_are_not_read() -> None:
    def decode(seq):
        yield Forward(
            np.array([5], np.int32), store=Store.NONE, positions=np.array([3], np.int32),
            visible=np.array([2], np.int32),
        )  # fmt: skip

    def past(seq):
        yield Forward(np.array([5], np.int32), store=Overwrite(np.array([4000], np.int32)))

    @dataclass
    class By:
        decode: object

    for function in (decode, past):
        (sequence,) = run_all(toy("full"), [(lambda f=function: By(f), PROMPT, PARAMS)])  # type: ignore[misc,list-item]
        assert isinstance(sequence.error, DecoderError)
        assert "slots" in str(sequence.error)
