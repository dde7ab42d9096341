"""Any-subset decoding: drafts of several tokens keep the text of one token a forward."""

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
from canvases import PROMPT, PROMPTS, run, run_all, steps

from paradecode.backends.interface import Backend, Span
from paradecode.backends.native.backend import NativeBackend
from paradecode.core.errors import InvalidInput
from paradecode.core.logits import ArrayLogits
from paradecode.core.noise import key, mix
from paradecode.core.sampling import SamplingParams
from paradecode.methods.canvas.policies import assd
from paradecode.methods.specs import parse
from paradecode.models.tiny import tiny_checkpoint
from paradecode.testing.cases import records
from paradecode.testing.toy import ToyBackend, toy_config

KINDS: dict[str, dict[str, Any]] = {
    "full": {"attention": "full"}, "block": {"attention": "block", "block_length": 4},
    "causal": {"masked": True},
}  # fmt: skip
KINDS |= {f"{kind}-shift": {**facts, "shift": True} for kind, facts in KINDS.items()}
PARAMS = (
    {}, {"temperature": 0.9, "seed": 3},
    {"temperature": 1.0, "top_k": 4, "seed": 1, "logprobs": 2, "max_tokens": 9},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "min_tokens": 4, "ignore_eos": False},
)  # fmt: skip


def toy(kind: str, **config: Any) -> ToyBackend:
    return ToyBackend(toy_config(**KINDS[kind], **config), surprise=500)


@pytest.mark.first(8)
@pytest.mark.parametrize("blocks", ["fixed,block_length=8", "full", "sliding", "adaptive"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_that_of_one_token_a_forward(kind: str, blocks: str) -> None:
    for prompt, params in zip(PROMPTS, PARAMS, strict=True):
        plain = run(toy(kind), f"assd(tokens=1,blocks={blocks})", prompt, **params)
        for tokens in (2, 5, 64):
            made = run(toy(kind), f"assd(tokens={tokens},blocks={blocks})", prompt, **params)
            assert made.output == plain.output
            assert made.logprobs == plain.logprobs
            assert [s.offsets for s in steps(made)] == [s.offsets for s in steps(plain)]
            assert made.forwards <= plain.forwards


def density(backend: Backend, given: dict[int, int], left: dict[int, int], at: int) -> np.ndarray:
    """Return the logits [V] of a masked position, from one forward without a cache.

    The forward reads the ``given`` tokens, the tokens to the left that were decided, in order, and
    the mask. In a model with a shift the row of the token before the mask gives the logits. That
    row is the token's only one, except where the token was given and others were decided since.
    """
    config = backend.config
    rows = [*sorted(given), *sorted(left), at - config.shift]
    texts = [*(given[r] for r in sorted(given)), *(left[r] for r in sorted(left))]
    texts.append({**given, **left}[at - 1] if config.shift else config.mask_token)
    seen = np.zeros((len(rows), len(rows)), bool)
    for i, row in enumerate(rows):
        for j, other in enumerate(rows):
            if i < len(given) and j < len(given):
                size = {"full": 1 << 20, "causal": 1}.get(config.attention, config.block_length)
                seen[i, j] = other // size <= row // size
            else:
                seen[i, j] = j <= i and (j < len(given) or other <= row)
    if config.shift and (at - 1 in left or not left):
        seen[-1, rows.index(at - 1)] = False
    span = Span(
        pages=np.empty(0, np.int32), tokens=np.array(texts, np.int32),
        positions=np.array(rows, np.int32), slots=np.full(len(rows), -1, np.int32), context=0,
        mask=seen, logits=np.array([len(rows) - 1], np.int32),
    )  # fmt: skip
    logits = np.array(backend.forward([span])[0].logits.values[0], np.float64)
    logits[config.mask_token] = -np.inf
    return logits


@pytest.mark.first(3)
@pytest.mark.parametrize("placed", ["", "0:9 8, 10:7, 22:6 5"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_density_is_the_one_of_its_definition(kind: str, placed: str) -> None:
    """Each output token must be drawn from the density that its definition gives.

    Rows see the tokens that were placed to their right, except given tokens under causal attention.
    """
    backend, count = toy(kind), 24
    backend.reserve(1)
    given = dict(enumerate(PROMPT))
    if placed:
        start = len(PROMPT)
        given |= {start: 9, start + 1: 8, start + 10: 7, start + count - 2: 6, start + count - 1: 5}
    for params in PARAMS[:2]:
        made = run(toy(kind), f"assd(placed='{placed}')", **params, max_tokens=count)
        left: dict[int, int] = {}
        for at in range(len(PROMPT), len(PROMPT) + count):
            if at not in given:
                logits = ArrayLogits(density(backend, given, left, at)[None])
                warp = SamplingParams(**params).warp
                keys = [key(mix(params["seed"]), at)] if params else []
                left[at] = int(logits.sample(warp, keys)[0])
        text = {**given, **left}
        assert made.output == [text[at] for at in range(len(PROMPT), len(PROMPT) + count)]


@pytest.mark.first(3)
@pytest.mark.parametrize("kind", KINDS)
def test_constraints_hold_and_the_text_stays(kind: str) -> None:
    for temperature in (0.0, 1.0):
        made = []
        for tokens in (1, 5):
            backend = toy(kind)
            constraint = records(backend.config.vocab_size)
            params = SamplingParams(max_tokens=24, temperature=temperature, seed=5)
            job = f"assd(tokens={tokens})", PROMPT, params
            (sequence,) = run_all(backend, [job], constraint)
            assert sequence.error is None
            assert sequence.finish_reason == "stop"
            matcher = constraint.follow((backend.config.eos_tokens[0],))
            output = sequence.output
            assert all(matcher.allows(output[:at], token) for at, token in enumerate(output))
            made.append(sequence.output)
        assert made[0] == made[1]


@pytest.mark.parametrize("kind", ["causal", "causal-shift"])
def test_with_causal_attention_it_is_static_from_left_to_right(kind: str) -> None:
    for prompt, params in zip(PROMPTS, PARAMS, strict=True):
        made = run(toy(kind), "assd", prompt, **params)
        plain = run(toy(kind), "static(block_length=1)", prompt, **params)
        assert made.output == plain.output
        assert made.forwards <= plain.forwards
        assert made.rows < plain.rows


class Sure(ToyBackend):
    """A model that predicts the same token at each position, whatever it sees."""

    def forward(self, spans):
        results = super().forward(spans)
        for span, result in zip(spans, results, strict=True):
            about = span.positions[span.logits]
            result.logits.values[:] = 20.0 * np.eye(29)[about % 7 + 5]
        return results


@pytest.mark.first(2)
@pytest.mark.parametrize("tokens", [1, 2, 5, 8, 64])
def test_forwards(tokens: int) -> None:
    """A draft takes two forwards if all its tokens are right; no token takes more than one."""
    made = run(Sure(toy_config(attention="full")), f"assd(tokens={tokens},blocks=full)")
    whole, rest = divmod(24, tokens)
    assert made.forwards == (24 if tokens == 1 else 2 * whole + min(rest, 2))
    for surprise in (0, 500, 1024):
        backend = ToyBackend(toy_config(attention="full"), surprise=surprise)
        made = run(backend, f"assd(tokens={tokens})", temperature=1.0, seed=4)
        assert made.forwards <= 24


@pytest.mark.parametrize("kind", KINDS)
def test_keys_and_values_of_what_is_decided_are_final(kind: str) -> None:
    """Every token is computed at most twice after it is known."""
    made = run(toy(kind), "assd(tokens=4,blocks=full)")
    assert made.rows <= len(PROMPT) + made.forwards * 4 + 2 * 28


SMALL = toy_config(vocab_size=4, attention="full")
DRAWN = {"temperature": 1.0, "max_tokens": 3}


def truth() -> dict[tuple[int, ...], float]:
    """Return the exact distribution of three tokens, by enumeration.

    It is the chain rule on densities that are computed without a cache.
    """
    backend = ToyBackend(SMALL, surprise=1024)
    backend.reserve(1)
    given = {0: 0, 1: 1}
    law = {}
    for word in product(range(3), repeat=3):
        share, left = 1.0, {}
        for at, token in enumerate(word, len(given)):
            logits = density(backend, given, left, at)
            chances = np.exp(logits - logits.max())
            share *= chances[token] / chances.sum()
            left[at] = token
        law[word] = share
    return law


def statistic(count: int = 4000) -> float:
    """Return chi-square of ``count`` seeded texts against the exact distribution.

    There are 26 degrees of freedom.
    """
    jobs = [
        ("assd(tokens=3)", (0, 1), SamplingParams(**DRAWN, seed=seed, ignore_eos=True))
        for seed in range(count)
    ]
    made = run_all(ToyBackend(SMALL, surprise=1024), jobs, batch=64, kv_tokens=1 << 15)
    found = Counter(tuple(sequence.output) for sequence in made)
    law = truth()
    assert abs(sum(law.values()) - 1) < 1e-9
    assert set(found) <= set(law)
    return sum((found[word] - count * p) ** 2 / (count * p) for word, p in law.items())


@pytest.mark.wide
def test_samples_have_the_law_of_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples must have the exact distribution; drafts that are not verified fail this test.

    Chi-square exceeds 54.1 in one of a thousand cases.
    """
    assert statistic() < 54.1
    real = assd.ordered

    def careless(canvas, given, known, tokens, asked):
        count = 0 if canvas.masked[known].any() else len(known)  # Drafts are not shown to others.
        return real(canvas, given, known[:count], tokens[:count], asked)

    monkeypatch.setattr(assd, "ordered", careless)
    assert statistic(1000) > 200


@pytest.mark.parametrize("kind", ["block", "block-shift"])
@pytest.mark.parametrize("length", [32, 37])
def test_a_finished_prefix_is_shared_and_changes_nothing(kind: str, length: int) -> None:
    backend = toy(kind)
    prompt = PROMPTS[2][:length]
    job = ("assd", prompt, SamplingParams(max_tokens=12, ignore_eos=True))
    alone = run(toy(kind), *job[:2], max_tokens=12)
    one = ("static(cache=prefix)", *job[1:])
    _, second, third = run_all(backend, [one, job, job], batch=1)
    assert second.output == third.output == alone.output
    assert second.rows < alone.rows


@pytest.mark.parametrize("kind", ["llada", "sdar"])
def test_the_native_core_gives_equal_bits(kind: str) -> None:
    config, weights = tiny_checkpoint(kind)
    texts = {
        tokens: [
            run(NativeBackend(config, weights, dtype="q4", threads=threads), spec, **params).output
            for params, threads in (({}, 1), ({"temperature": 0.8, "seed": 2}, 2))
        ]
        for tokens in (1, 2, 5)
        for spec in [f"assd(tokens={tokens})"]
    }
    assert texts[1] == texts[2] == texts[5]


def test_what_cannot_work_is_refused() -> None:
    for spec in ("assd(cache=prefix)", "assd(tokens=0)", "assd(placed='x')"):
        with pytest.raises(InvalidInput):
            parse(spec)
    with pytest.raises(InvalidInput, match="placed"):
        run(toy("full"), "assd(placed='99:5')")


@pytest.mark.parametrize("policy", ["assd", "edit", "ete", "freedave", "guided"])
@pytest.mark.parametrize("wrapper", ["late-end", "credit", "guided", "refine"])
def test_a_policy_with_a_loop_of_its_own_is_no_base(policy: str, wrapper: str) -> None:
    with pytest.raises(InvalidInput, match=r"base.*loop of its own"):
        run(toy("full"), f"{wrapper}(base={policy})")


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("spec", [
    "assd(placed='2:29')", "dimple(prior='2:5 999999999')", "prophet(anchor='2:29')",
])  # fmt: skip
def test_placed_tokens_are_of_the_vocabulary(spec: str, constrained: bool) -> None:
    backend = toy("full")
    constraint = records(backend.config.vocab_size) if constrained else None
    (sequence,) = run_all(backend, [(spec, PROMPT, SamplingParams(max_tokens=24))], constraint)
    assert isinstance(sequence.error, InvalidInput)
    assert "give token ids below 29" in str(sequence.error)
