"""Tests of whole requests: the joint distribution of their first three tokens, ends, batches."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
import pytest
from chisquare import SIGNIFICANT, p_value

from engines import served
from paradecode.core.decoder import TARGET, Decoder
from paradecode.core.logits import ArrayLogits
from paradecode.core.sampling import Sampler, SamplingParams
from paradecode.core.tree import ROOT, Drawn, Mode, TokenTree
from paradecode.core.tree_builder import TreeBuilder, distribution, draw, draw_pooled
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.draft.loop import Budget, Drafter, DraftVerify
from paradecode.methods.draft.verifiers.top_down import NaiveSampling
from paradecode.methods.parts import make
from paradecode.testing.toy import LetterText, ToyBackend, toy_config

CONFIG = toy_config(vocab_size=4)
PROMPT = (0, 1, 2)
PARAMS = SamplingParams(
    max_tokens=3, temperature=0.3, presence_penalty=0.2, top_p=0.97, ignore_eos=True
)
EOS = CONFIG.eos_tokens[0]


@cache
def target_logits(text: tuple[int, ...]) -> np.ndarray:
    return ToyBackend(CONFIG, surprise=1024).plain_logits(np.array(text))


@cache
def q_of(text: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return a draft model that mixes the target with another model and ignores penalties."""
    other = ToyBackend(CONFIG, seed=1, surprise=1024).plain_logits(np.array(text))
    logits = ArrayLogits((target_logits(text) + other)[None, :] / 2)
    return distribution(logits, 0, replace(PARAMS, top_p=1.0).warp)


@dataclass
class Sampled(Drafter):
    """Samples trees of a given shape; ``twist`` makes a mistake with q of each inner node."""

    draw: str
    branching: tuple[int, ...]
    twist: Callable[[TokenTree, dict[int, Drawn]], TokenTree] | None = None

    def draft(self, seq, limit):
        builder = TreeBuilder()
        words = {ROOT: tuple(seq.tokens.tolist())}
        level = {ROOT: 1}
        for count in self.branching:
            below: dict[int, int] = {}
            for node, copies in level.items():
                ids, q = q_of(words[node])
                if self.draw == "top":
                    best = ids[np.argsort(-q)[:count]].tolist()
                    found = [builder.add(node, token) for token in best]
                elif self.draw == "pooled":
                    found = draw_pooled(builder, seq.sampler, node, ids, q, count * copies)
                else:
                    mode = Mode(self.draw)
                    found = draw(builder, seq.sampler, node, mode, ids, q, count * copies)
                for child in found:
                    words[child] = (*words[node], builder.tokens[child])
                below |= found if isinstance(found, dict) else dict.fromkeys(found, 1)
            level = below
        tree = builder.tree()
        if self.twist is not None:
            inner = {node for node in words if tree.children(node)}
            tree = self.twist(tree, {n: Drawn(Mode.SWOR, *q_of(words[n])) for n in inner})
        return tree


def decoder(name: str, drafter: Sampled) -> Decoder:
    return DraftVerify(drafter, Budget(64), make("verifier", name))


def serve(make, params: list[SamplingParams], batch: int = 64) -> list[LiveSequence]:
    engine = Engine(
        {TARGET: ToyBackend(CONFIG, surprise=1024)}, Limits(batch, 4096, 8192), LetterText
    )
    sequences = served(engine, [(make, PROMPT, each) for each in params])
    assert all(pool.held == 0 for pool in engine.pools.values())
    return sequences


def words(name: str, drafter: Sampled, count: int) -> Counter:
    params = [replace(PARAMS, seed=seed) for seed in range(count)]
    sequences = serve(lambda: decoder(name, drafter), params)
    return Counter(tuple(sequence.output) for sequence in sequences)


@cache
def truth() -> dict[tuple[int, ...], float]:
    """Return the distribution of plain decoding, computed by feeding every text anew."""
    law = {}
    for word in product(range(CONFIG.vocab_size), repeat=3):
        law[word] = 1.0
        for at, token in enumerate(word):
            sampler = Sampler(PARAMS, np.array(PROMPT, np.int32), ())
            sampler.advance(word[:at])
            row = ArrayLogits(target_logits((*PROMPT, *word[:at]))[None, :])
            law[word] *= float(sampler.processed(row, 0, ()).probabilities(PARAMS.warp)[0, token])
    return {word: share for word, share in law.items() if share > 0}


RUNS = 800
PAIRS = [
    ("coupled", Sampled("swor", (2, 1))), ("rejection", Sampled("iid", (1, 1))),
    ("specinfer", Sampled("pooled", (2, 2))), ("rsd", Sampled("swor", (2, 2))),
    ("naive-tree", Sampled("swor", (2, 2))), ("nss", Sampled("top", (2, 2))),
    ("block", Sampled("iid", (1, 1))), ("traversal", Sampled("swor", (2, 2))),
    ("spectr", Sampled("iid", (3, 2))),
]  # fmt: skip


@pytest.mark.first(2)
@pytest.mark.parametrize(("name", "drafter"), PAIRS, ids=[name for name, _ in PAIRS])
def test_joint_law_of_three_tokens(name, drafter):
    assert p_value(words(name, drafter, RUNS), truth()) > SIGNIFICANT


def claimed(tree: TokenTree, drawn: dict[int, Drawn]) -> TokenTree:
    """Return the likeliest tokens, wrongly declared as samples."""
    return replace(tree, drawn=drawn)


def pruned(tree: TokenTree, drawn: dict[int, Drawn]) -> TokenTree:
    """Return a tree without its unlikely samples, wrongly declared as complete."""
    kept = [drawn[int(up)].of(int(token)) > 0.3 for up, token in zip(tree.parents, tree.tokens)]
    return tree._take(np.array(kept))


@pytest.mark.first(2)
@pytest.mark.parametrize(("name", "drafter"), [
    ("rsd", Sampled("top", (2, 2), claimed)), ("block", Sampled("top", (1, 1), claimed)),
    ("traversal", Sampled("swor", (2, 2), pruned)), ("typical", Sampled("top", (2, 2))),
], ids=["top 2 as draws", "argmax as a draw", "draws dropped", "typical acceptance"])  # fmt: skip
def test_biased_rules_are_found(name, drafter):
    assert p_value(words(name, drafter, RUNS), truth()) < SIGNIFICANT


LONG = [
    replace(PARAMS, max_tokens=20, seed=seed, ignore_eos=seed % 2 == 0, min_tokens=seed % 3)
    for seed in range(24)
]
METHODS = [(n, d) for n, d in PAIRS if n != "coupled"] + [("typical", Sampled("iid", (2, 1)))]


@pytest.mark.first(3)
@pytest.mark.parametrize(("name", "drafter"), METHODS, ids=[name for name, _ in METHODS])
def test_seeded_requests_do_not_depend_on_the_batch(name, drafter):
    outputs = [
        [tuple(s.output) for s in serve(lambda: decoder(name, drafter), LONG, batch)]
        for batch in (1, 7, 64)
    ]
    assert outputs[0] == outputs[1] == outputs[2]
    assert len(set(outputs[0])) > 12


@pytest.mark.first(4)
@pytest.mark.parametrize(("name", "drafter"), METHODS, ids=[name for name, _ in METHODS])
def test_outputs_end_where_they_must(name, drafter):
    stopped = inside = accepted = 0
    for params, sequence in zip(LONG, serve(lambda: decoder(name, drafter), LONG), strict=True):
        output = sequence.output
        if sequence.finish_reason == "stop":
            assert output.index(EOS) == len(output) - 1 >= params.min_tokens
            stopped += 1
            inside += sequence.trace[-1].accepted > 0
        else:
            assert len(output) == params.max_tokens
            assert params.ignore_eos or EOS not in output
        accepted += sequence.stats.accepted
        assert not any(step.tree.sampled for step in sequence.trace)  # q is not kept for ever.
    assert stopped
    assert accepted > 24
    assert inside  # EOS was in an accepted path.


def test_small_max_tokens_bound_the_draft():
    for count in (1, 2):
        params = [replace(PARAMS, max_tokens=count, seed=seed) for seed in range(30)]
        for name, drafter in METHODS:
            for sequence in serve(lambda: decoder(name, drafter), params):  # noqa: B023
                assert len(sequence.output) == count
                assert sequence.finish_reason == "length"


def test_a_verifier_that_reads_no_draws_lets_the_budget_cut():
    @dataclass
    class Watch(Budget):
        def cut(self, seq, tree):
            seen.append(tree.sampled)
            return super().cut(seq, tree)

    class Reads(NaiveSampling):
        modes = (Mode.IID,)

    for verify, reads in ((Reads(), True), (NaiveSampling(), False)):
        seen: list[bool] = []
        drafter = Sampled("iid", (1,))
        serve(
            lambda: DraftVerify(drafter, Watch(4), verify),  # noqa: B023
            [replace(PARAMS, seed=1)],
        )
        assert set(seen) == {reads}


def test_pages_and_texts_survive_many_seeds() -> None:
    """Verdicts that end inside the tree leave the cache right, so later outputs are equal."""
    params = [replace(PARAMS, max_tokens=12, seed=seed, logprobs=0) for seed in range(20)]
    for name, drafter in METHODS:
        for sequence in serve(lambda: decoder(name, drafter), params):  # noqa: B023
            for at, entry in enumerate(sequence.logprobs):
                text = (*PROMPT, *sequence.output[:at])
                row = ArrayLogits(target_logits(text)[None, :])
                fresh = row.log_probability(np.array([[entry.token]]))[0, 0]
                assert entry.logprob == pytest.approx(fresh, abs=1e-9)
