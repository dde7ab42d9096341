"""Tests of drafts by a diffusion model: exact outputs, one forward each, and right caches."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engines import served
from paradecode import LLM
from paradecode.backends.interface import Backend, Span, SpanResult
from paradecode.core.decoder import DRAFT, TARGET
from paradecode.core.errors import InvalidInput
from paradecode.core.logits import ArrayLogits
from paradecode.core.vocabulary import Vocabulary
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import Engine, Limits
from paradecode.testing.canvas_matrix import ATTENTION
from paradecode.testing.conformance import cases
from paradecode.testing.machines import Kind, oracle_backends
from paradecode.testing.reference import fresh_logits
from paradecode.testing.toy import ToyBackend, toy_config
from paradecode_lab.measure.tasks.tasks import TASKS

MASK = 28
PROMPT = (5, 6, 7, 8, 9) * 4 + (MASK, 9)
"""A prompt that holds the drafter's mask token, which is an ordinary token of the prompt."""
BLOCKS = ("block", "block-shift", "causal")
"""Kinds of attention of drafters whose caches are exact."""


class Watched(ToyBackend):
    """A masked toy model that records its forwards; its guess at each position can be set."""

    def __init__(self, kind: str, says: Sequence[int] = (), **config: Any) -> None:
        super().__init__(toy_config(**{**ATTENTION[kind], **config}), seed=1, surprise=700)
        self.says, self.spans = np.array(says, np.int64), list[Span]()
        self.replies = list[ArrayLogits]()

    def forward(self, spans: Sequence[Span]) -> list[SpanResult]:
        results = super().forward(spans)
        if len(self.says):
            about = [span.positions[span.logits] + int(self.config.shift) for span in spans]
            results = [SpanResult(ArrayLogits(60.0 * np.eye(29)[self.says[at]])) for at in about]
        self.spans += spans
        self.replies += [result.logits for result in results]
        return results


def serve(models, specs, prompt=PROMPT, curves=lambda engine: None, vocabulary=None, **params):
    known = {DRAFT: vocabulary} if vocabulary else {}
    engine = Engine(models, Limits(kv_tokens=4096), vocabularies=known)
    curves(engine)
    settings = {"max_tokens": 40, "seed": 3, "ignore_eos": True, **params}
    return served(engine, [(spec, prompt, settings) for spec in specs])


def truth(surprise: int = 200, **params: Any) -> list[int]:
    (plain,) = serve({TARGET: ToyBackend(surprise=surprise)}, ["greedy"], **params)
    return [*PROMPT, *plain.output, *[5] * 64]


@pytest.mark.first(4)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", ATTENTION)
def test_any_draft_leaves_the_plain_output(kind: str, temperature: float) -> None:
    specs = ["deer", "deer(budget=fixed)", "deer(refresh=1,masks=8)", "deer(width=16,masks=1)"]
    specs += ["deer(budget=fixed,num_speculative_tokens=40,refresh=3)", "deer+prompt-lookup"]
    models = {TARGET: ToyBackend(), DRAFT: Watched(kind)}
    plain, *made = serve(models, ["greedy", *specs], temperature=temperature)
    for sequence, spec in zip(made, specs, strict=True):
        assert sequence.output == plain.output, spec


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    ("kind", "more"), [*((kind, {}) for kind in ATTENTION), ("causal", {"shift": False})]
)
def test_a_draft_of_any_length_is_one_forward(kind, more, temperature):
    params = {"temperature": temperature, "logit_bias": {MASK: -1000.0}}  # It is never drafted.
    right = truth(**params)
    draft = Watched(kind, right, **more)
    spec = "deer(width=1,budget=fixed,num_speculative_tokens=12)"
    (made,) = serve({TARGET: ToyBackend(), DRAFT: draft}, [spec], **params)
    assert made.output == right[len(PROMPT) :][:40]
    assert made.stats.accepted == made.stats.drafted
    assert made.stats.forwards == -(-40 // 13)
    assert len(draft.spans) == 3  # The fortieth token needs no draft.


def asked(span: Span) -> tuple[list[int], list[int]]:
    """Return the positions that a forward computed, and the cached ones that it attended to."""
    seen = range(span.context) if span.visible is None else span.visible.tolist()
    return span.positions.tolist(), list(seen)


def test_full_attention_uses_earlier_keys_and_values_again() -> None:
    """Between two refreshes a forward computes only the new text and the masks of the draft."""
    says = truth()
    draft = Watched("full", says)
    spec = "deer(width=1,budget=fixed,num_speculative_tokens=4,refresh=3,masks=10)"
    serve({TARGET: ToyBackend(), DRAFT: draft}, [spec])
    start, total = len(PROMPT), len(PROMPT) + 40
    for number, span in enumerate(draft.spans):
        text = start + 5 * number  # Four were accepted, and the target gave the next one.
        rows, seen = asked(span)
        end = min(text + max(10, min(4, total - text - 1)), total)
        if number % 3 == 0:
            known, refreshed = set(range(text)), set(range(end))
            assert (rows, seen) == ([*range(end)], [])
        else:
            new = [*range(text - 5, min(text + 4, total - 1))]
            assert rows == new
            assert set(seen) == (refreshed | known) - set(new)
        known |= set(rows)
        assert (span.slots == span.positions).all()


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_and_causal_attention_compute_no_finished_row_again(kind: str) -> None:
    draft = Watched(kind, truth())
    spec = "deer(width=1,budget=fixed,num_speculative_tokens=4)"
    serve({TARGET: ToyBackend(), DRAFT: draft}, [spec])
    block = 1 if kind == "causal" else 4
    for number, span in enumerate(draft.spans):
        text = len(PROMPT) + 5 * number
        first = max(text - 5, 0) // block * block if number else 0
        rows, seen = asked(span)
        assert rows[0] == first
        assert seen == [*range(first)]


@pytest.mark.parametrize(("kind", "more"), [
    *((kind, {}) for kind in ("full", "shift", *BLOCKS)), ("causal", {"shift": False}),
])  # fmt: skip
def test_exact_caches_predict_what_a_forward_without_a_cache_does(kind, more):
    """With ``refresh=1``, or an exact cache, q equals the q of a forward without a cache."""
    draft, depth = Watched(kind, **more), 6
    spec = f"deer(width=2,budget=fixed,num_speculative_tokens={depth},refresh=1,masks=9)"
    (made,) = serve({TARGET: ToyBackend(), DRAFT: draft}, [spec])
    text, config = [*PROMPT, *made.output], draft.config
    size = {"full": 1 << 20, "causal": 1}.get(config.attention, config.block_length)
    oracle = Watched(kind, **more)
    oracle.reserve(1)
    at = len(PROMPT)
    for step, reply in zip(made.trace, list(draft.replies), strict=False):
        count = min(depth, len(text) - at - 1)
        if at + 9 > len(text):  # There is no room for nine masks.
            break
        masks = 9 if config.attention == "full" else -(-(at + count) // size) * size - at
        row = [*text[:at], *[MASK] * masks]
        wanted = [at + level - config.shift for level in range(count)]
        fresh = np.asarray(fresh_logits(oracle, row, wanted, size).values)
        got = np.asarray(reply.values)
        got = got[1 - config.shift :][:count] if config.attention == "causal" else got
        assert np.array_equal(got, fresh)
        at += len(step.tokens)


def full_draft(kind: Kind) -> Mapping[str, Backend]:
    """Return the usual target, and a drafter with full attention."""
    config = toy_config(context_length=oracle_backends(kind)[TARGET].config.context_length)
    masked = replace(config, attention="full", mask_token=MASK)
    return {TARGET: ToyBackend(config), DRAFT: ToyBackend(masked, seed=1)}


def block_draft(kind: Kind) -> Mapping[str, Backend]:
    models = full_draft(kind)
    config = replace(models[DRAFT].config, attention="block", block_length=4)
    return {**models, DRAFT: ToyBackend(config, seed=1)}


CHOSEN = (
    "batch-of-16", "chunks-of-3", "little-memory", "mixed-methods", "prefix-cache", "tenants",
    "cancelled-neighbour", "context-end",
)  # fmt: skip
"""Cases in which the drafter's cache may disagree with the text.

Other files test the rules of the target.
"""


@pytest.mark.first(3)
@pytest.mark.parametrize("factory", [full_draft, block_draft])
@pytest.mark.parametrize("case", CHOSEN)
def test_conformance_with_other_attention(factory, case: str) -> None:
    """Drafters with other attention pass the conformance suite, whose own drafters are causal."""
    spec = "deer(budget=fixed,refresh=2)"
    for each in cases(spec, factory, kinds=("toy",), only=(case,)):
        each.run()


def test_finished_blocks_are_shared_between_requests() -> None:
    draft = Watched("block")
    models = {TARGET: ToyBackend(), DRAFT: draft}
    engine = Engine(models, Limits(kv_tokens=4096))
    outputs = []
    for _ in range(2):
        first = len(draft.spans)
        job = "deer(budget=fixed)", PROMPT * 2, {"max_tokens": 8, "ignore_eos": True}
        outputs.append(served(engine, [job])[0].output)
        assert draft.spans[first].positions[0] == (0 if not outputs[1:] else 32)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("kind", ["full", "causal"])
@pytest.mark.parametrize("verifier", ["rejection", "rsd", "block", "traversal"])
def test_verifiers_that_test_p_over_q_get_draws_of_each_position(kind: str, verifier: str) -> None:
    """Where q and p are sure of the same tokens, all sampled tokens are accepted."""
    draft = Watched(kind, truth(surprise=0))
    spec = f"deer(width=1,verifier={verifier},budget=fixed)"
    (made,) = serve({TARGET: ToyBackend(surprise=0), DRAFT: draft}, [spec], temperature=0.05)
    assert made.stats.accepted == made.stats.drafted > 0


def test_other_token_ids_are_translated() -> None:
    """A drafter drafts although its ids differ and it lacks the target's last three tokens."""
    order = np.random.default_rng(0).permutation(26)  # Its token i is order[i] of the target's.
    to_target = np.array([*order, -1, -1, -1], np.int32)
    own = [int(np.argsort(order)[token]) if token < 26 else 26 for token in range(29)]
    vocabulary = Vocabulary(to_target, np.array(own, np.int32), np.arange(30))
    says = np.array([own[token] for token in truth()])
    draft = Watched("full", says)
    models = {TARGET: ToyBackend(), DRAFT: draft}
    specs = ["greedy", "deer(width=1,budget=fixed)"]
    plain, made = serve(models, specs, vocabulary=vocabulary)
    assert made.output == plain.output
    assert made.stats.accepted > 0.8 * made.stats.drafted > 0


def test_a_short_context_drafts_while_it_can() -> None:
    for kind in ATTENTION:
        draft = Watched(kind, truth(), context_length=40)
        plain, made = serve({TARGET: ToyBackend(), DRAFT: draft}, ["greedy", "deer(budget=fixed)"])
        assert made.output == plain.output
        assert 0 < made.stats.accepted < 19


def test_a_draft_model_without_a_mask_token_is_refused_by_name() -> None:
    for models in ({TARGET: ToyBackend()}, {TARGET: ToyBackend(), DRAFT: ToyBackend(seed=1)}):
        with pytest.raises(InvalidInput, match="draft_model"):
            serve(models, ["deer"])


def test_a_hopeless_drafter_rests() -> None:
    draft = Watched("full")

    def curves(engine: Engine) -> None:
        engine.load.curve = CostCurve((1, 32), (64,), ((1.0, 2.0),))
        engine.load.others[DRAFT] = CostCurve((1, 32), (64,), ((0.5, 0.6),))

    models = {TARGET: ToyBackend(surprise=1024), DRAFT: draft}
    (made,) = serve(models, ["deer"], curves=curves, max_tokens=100)
    assert len(made.output) == 100
    assert len(draft.spans) < 25


def test_the_models_that_ship() -> None:
    """The autoregressive model accepts more than half of the diffusion model's draft tokens."""
    with LLM(
        "paradecode/tiny-autoregressive", draft_model="paradecode/tiny-diffusion", threads=1
    ) as llm:
        prompts = [
            llm.chat_tokens([{"role": "user", "content": task.held_out(1)[0].prompt}])
            for task in TASKS[:6]
        ]
        spec = "deer(budget=fixed,num_speculative_tokens=16,width=1)"
        for params in ({"temperature": 0}, {"temperature": 0.8, "seed": 5}):
            plain = llm.complete(prompts, max_tokens=48, decoder="greedy", **params)
            made = llm.complete(prompts, max_tokens=48, decoder=spec, **params)
            assert [m.token_ids for m in made] == [p.token_ids for p in plain]
            assert [m.error for m in made] == [None] * 6
        greedy = llm.complete(prompts, max_tokens=48, temperature=0, decoder=spec)
        tokens = sum(m.stats.generated for m in greedy)
        assert tokens > 2.5 * sum(m.stats.forwards for m in greedy)
