"""Tests of verifiers in the engine: noise, processors, temperature 0, trees, thresholds."""

from types import SimpleNamespace

import numpy as np
import pytest
from languages import VERIFIERS

from paradecode.core.decoder import Reply
from paradecode.core.errors import BackendError, DecoderError, InvalidInput
from paradecode.core.logits import ArrayLogits
from paradecode.core.sampling import Sampler, SamplingParams
from paradecode.core.tree import EMPTY, ROOT, Drawn, Mode, TokenTree
from paradecode.core.tree_builder import TreeBuilder, distribution, draw, draw_pooled
from paradecode.methods.draft.verifiers import coupled
from paradecode.methods.draft.verifiers.rule import Noise, SamplingVerifier, Typical
from paradecode.methods.parts import known
from paradecode.methods.specs import parse

V = 12
PROMPT = np.array([1, 2, 3], np.int32)
SAMPLING = [name for name, entry in known("verifier").items() if entry.guarantee != "exact"]
PROCESSED = {"repetition_penalty": 1.3, "presence_penalty": 0.7, "frequency_penalty": 0.4,
             "logit_bias": {3: 1.5}, "min_tokens": 3, "top_p": 0.95, "min_p": 0.01}  # fmt: skip


def sequence(seed: int = 0, advanced: tuple[int, ...] = (), **values: object) -> SimpleNamespace:
    params = SamplingParams.from_mapping({"temperature": 0.9, "seed": seed, **values})
    sampler = Sampler(params, PROMPT, (7,))
    sampler.advance(advanced)
    return SimpleNamespace(sampler=sampler)


def case(seed: int, how: str = "swor") -> tuple[TokenTree, Reply]:
    rng = np.random.default_rng(seed)
    builder, sampler = TreeBuilder(), Sampler(SamplingParams(seed=seed), PROMPT, ())
    warp, level = SamplingParams(temperature=1.0).warp, [ROOT]
    for count in (2, 2):
        logits = ArrayLogits(rng.normal(0, 2, (len(level), V)))
        below: list[int] = []
        for row, node in enumerate(level):
            ids, q = distribution(logits, row, warp)
            if how == "pooled":
                below += draw_pooled(builder, sampler, node, ids, q, count)
            else:
                below += draw(builder, sampler, node, Mode(how), ids, q, count)
        level = below
    tree = builder.tree()
    return tree, Reply(ArrayLogits(rng.normal(0, 2, (len(tree) + 1, V)).astype(np.float32)))


@pytest.mark.parametrize("name", SAMPLING)
def test_the_same_seed_and_position_give_the_same_tokens(name):
    verdicts = set()
    for seed in range(20):
        tree, reply = case(0)
        one = VERIFIERS[name](sequence(seed), tree, reply)
        again = VERIFIERS[name](sequence(seed), tree, reply)
        later = VERIFIERS[name](sequence(seed, (5, 6)), tree, reply)
        assert (one.tokens, one.rows) == (again.tokens, again.rows)
        verdicts |= {(seed, *one.tokens), (seed, *later.tokens)}
        assert one.logits is reply.logits
    assert len(verdicts) > 20  # Another position is another draw.


@pytest.mark.parametrize("name", SAMPLING)
def test_verdicts_are_paths_and_one_token_more(name):
    for seed in range(30):
        for how in ("iid", "swor", "pooled"):
            tree, reply = case(seed, how)
            verdict = VERIFIERS[name](sequence(seed), tree, reply)
            for depth, row in enumerate(verdict.rows):
                assert _path(tree, row - 1) == verdict.tokens[:depth]
            assert len(verdict.rows) == len(verdict.tokens)
            node: int | None = ROOT
            for token in verdict.tokens:  # A last token that is in the tree is not left there.
                node = None if node is None else tree.child(node, token)
            assert node is None


def _path(tree: TokenTree, node: int) -> list[int]:
    return [] if node == ROOT else [*_path(tree, int(tree.parents[node])), int(tree.tokens[node])]


@pytest.mark.parametrize("name", SAMPLING)
def test_at_temperature_0_all_are_greedy(name):
    for seed in range(20):
        tree, reply = case(seed)
        for values in ({}, PROCESSED):
            seq = sequence(seed, temperature=0.0, **values)
            assert VERIFIERS[name](seq, tree, reply) == _anything_equal(coupled(seq, tree, reply))


def _anything_equal(verdict):
    class Same:
        def __eq__(self, other):
            return (other.tokens, other.rows) == (verdict.tokens, verdict.rows)

    return Same()


def test_greedy_refuses_to_sample():
    tree, reply = case(0)
    with pytest.raises(InvalidInput, match="temperature"):
        VERIFIERS["greedy"](sequence(), tree, reply)
    seq = sequence(temperature=0.0)
    verdict = VERIFIERS["greedy"](seq, tree, reply)
    assert verdict.tokens == coupled(seq, tree, reply).tokens


def test_processors_follow_the_path_of_each_row():
    """A row is what plain decoding would sample from after it had committed the row's path."""
    for seed in range(10):
        tree, reply = case(seed)
        seen: dict[int, np.ndarray] = {}

        class Looks(SamplingVerifier):
            def rule(self, p, tree, chance, seen=seen):
                seen.update({node: p(node) for node in range(ROOT, len(tree))})
                return [], chance.draw(p(ROOT))

        Looks()(sequence(seed, (4,), **PROCESSED), tree, reply)
        for node, row in seen.items():
            there = sequence(seed, (4, *_path(tree, node)), **PROCESSED).sampler
            one = there.processed(reply.logits, node + 1, ())
            assert row.tolist() == one.probabilities(there.warp)[0].tolist()
            assert (row[7] == 0) == (len(_path(tree, node)) < 2 or row[7] == 0)


@pytest.mark.parametrize("name", SAMPLING)
def test_an_empty_draft_is_a_plain_draw(name):
    reply = Reply(ArrayLogits(np.log(np.array([[0.7, 0.2, 0.1]]))))
    drawn = [VERIFIERS[name](sequence(seed, temperature=1.0), EMPTY, reply) for seed in range(400)]
    assert all(len(verdict.tokens) == 1 and verdict.rows == [0] for verdict in drawn)
    counts = np.bincount([verdict.tokens[0] for verdict in drawn], minlength=3) / 400
    assert np.abs(counts - [0.7, 0.2, 0.1]).max() < 0.1


@pytest.mark.parametrize("name", [n for n in SAMPLING if VERIFIERS[n].reads_draws])
def test_a_child_that_q_cannot_give_is_an_error(name):
    q = Drawn(Mode.IID, np.array([1, 2]), np.array([0.5, 0.5]))
    tree = TokenTree(np.array([3]), np.array([-1]), drawn={ROOT: q})
    reply = Reply(ArrayLogits(np.zeros((2, V), np.float32)))
    with pytest.raises(DecoderError, match="q cannot give"):
        VERIFIERS[name](sequence(), tree, reply)


@pytest.mark.parametrize("name", ["rsd", "traversal", "block", "spectr"])
def test_equal_children_drawn_without_replacement_are_an_error(name):
    q = Drawn(Mode.SWOR, np.array([1, 2]), np.array([0.5, 0.5]))
    tree = TokenTree(np.array([1, 1]), np.array([-1, -1]), drawn={ROOT: q})
    row = np.full(V, -50.0, np.float32)
    row[3] = 5.0  # The target rejects both.
    with pytest.raises(DecoderError, match="without replacement"):
        VERIFIERS[name](sequence(), tree, Reply(ArrayLogits(np.stack([row] * 3))))


@pytest.mark.parametrize("name", SAMPLING)
def test_rows_without_numbers_are_an_error(name):
    reply = Reply(ArrayLogits(np.full((1, V), np.nan, np.float32)))
    with pytest.raises(BackendError):
        VERIFIERS[name](sequence(), EMPTY, reply)


def test_noise_draws_what_has_weight():
    noise = Noise(5)
    weights = np.array([0.0, 1e-300, 0.0, 3.0, 0.0])
    assert {noise.draw(weights) for _ in range(200)} == {3}
    noise.uniform = lambda: 1 - 2.0**-53  # type: ignore[method-assign]
    assert noise.draw(weights) == 3
    noise.uniform = lambda: 0.0  # type: ignore[method-assign]
    assert noise.draw(weights) == 1
    assert not noise.accept(0.0)
    assert noise.accept(1e-300, 1.0)


def test_the_guarantee_of_a_method_is_its_weakest_part():
    assert parse("prompt-lookup").guarantee == "exact"
    assert parse("prompt-lookup(verifier=greedy)").guarantee == "exact"
    assert parse("prompt-lookup(verifier=traversal)").guarantee == "distribution"
    assert parse("prompt-lookup(verifier=typical)").guarantee == "lossy"
    assert parse("greedy").guarantee == "exact"


FLAT = np.array([0.05, *[0.95 / 19] * 19])
"""A distribution of much entropy: exp(-entropy) is 1 / 20."""
SHARP = np.array([0.92, 0.08])
"""A distribution of little entropy: exp(-entropy) is about 0.76."""


class Always:
    """A source of randomness that always draws the likeliest token."""

    def accept(self, p: float, q: float = 1.0) -> bool:
        raise AssertionError("typical acceptance draws no test")

    def draw(self, weights: np.ndarray) -> int:
        return int(np.argmax(weights))


def accepted(row: np.ndarray, token: int, **settings: float) -> int:
    path, _ = Typical(**settings).rule(lambda node: row, TokenTree.chain([token]), Always())
    return len(path)


def test_the_smaller_threshold_decides() -> None:
    assert Typical().threshold(FLAT) == pytest.approx(0.3 / 20, rel=1e-2)
    assert accepted(FLAT, 0) == 1  # Below 0.09, but everything is unsure here.
    assert Typical().threshold(SHARP) == 0.09  # Below 0.3 exp(-entropy), which is 0.23.
    assert accepted(SHARP, 1) == 0
    assert accepted(np.array([0.85, 0.15]), 1) == 1


def test_both_thresholds_are_settings() -> None:
    assert accepted(SHARP, 1, epsilon=0.05) == 1
    assert accepted(FLAT, 0, delta=1.0) == 0
    decoder = parse("prompt-lookup(verifier=typical(epsilon=0.2,delta=0.5))")()
    assert (decoder.verify.epsilon, decoder.verify.delta) == (0.2, 0.5)
    decoder = parse("prompt-lookup(verifier=typical(posterior_threshold=0.2))")()
    assert decoder.verify.epsilon == 0.2
    with pytest.raises(InvalidInput, match="epsilon"):
        parse("prompt-lookup(verifier=typical(epsilon=2))")
