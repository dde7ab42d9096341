"""Tests of PPD against a plain implementation that appends prompt tokens to the whole text."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from small_models import PROMPT, deep, head_engine, serve

from paradecode.backends import open_backend
from paradecode.backends.interface import Span
from paradecode.core.decoder import TARGET, Forward
from paradecode.core.errors import DecoderError, InvalidModel
from paradecode.core.tree import TokenTree
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import Engine, Limits
from paradecode.methods.draft import row_drafter
from paradecode.methods.draft.acceptance import Odds
from paradecode.methods.draft.row_drafter import gains, hung, root_only
from paradecode.models.heads import build_head, read_head
from paradecode.testing.draft_heads import random_head
from paradecode.testing.toy import ToyBackend, toy_config
from tiers import examples

CONFIG, WEIGHTS = deep(4)
engine = partial(head_engine, (CONFIG, WEIGHTS))
TOY = toy_config(context_length=128)
NONE = np.empty(0, np.int32)
LEVELS, WIDTH = 3, 4


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a folder of trained prompt tokens that are like the embeddings of tokens."""
    random = np.random.default_rng(5)
    rows = WEIGHTS["embed"].float32()[random.integers(0, CONFIG.vocab_size, LEVELS)]
    random_head("ppd", CONFIG, tmp_path)
    save_file({"prompt_embeddings": rows.copy()}, tmp_path / "adapter_model.safetensors")
    return tmp_path


def guesses(backend: Any, known: np.ndarray, prompts: np.ndarray) -> list[list[int]]:
    """Return the WIDTH best tokens of each prompt row after a text, from one causal pass."""
    rows = np.concatenate([known, prompts])
    at = np.arange(len(rows), dtype=np.int32)
    span = Span(NONE, at, at, np.full(len(rows), -1, np.int32), 0, at[len(known) :],
                embeddings=rows)  # fmt: skip
    return backend.forward([span])[0].logits.top_k(WIDTH)[0].tolist()


@pytest.mark.parametrize("kind", ["transformer", "toy"])
def test_every_draft_is_made_of_the_papers_guesses(kind: str, folder: Path) -> None:
    """A draft holds the guesses after the last accepted token; the toy's are often right."""
    plain: Any = ToyBackend(TOY)
    eng, embed = Engine({TARGET: ToyBackend(TOY)}, Limits()), plain.embed
    prompts = embed(np.array([5, 6, 7]))
    if kind == "transformer":
        plain = open_backend("torch", CONFIG, WEIGHTS, dtype="fp64", threads=1)
        eng, embed = engine(), WEIGHTS["embed"].float32().__getitem__
        prompts = load_file(folder / "adapter_model.safetensors")["prompt_embeddings"]
    plain.reserve(1)
    save_file({"prompt_embeddings": prompts}, folder / "adapter_model.safetensors")
    spec = f"ppd(head='{folder}',width={WIDTH},budget=fixed)"
    (sequence,) = serve(eng, [spec], ignore_eos=True, max_tokens=40)
    text, deep_ones = list(PROMPT), 0
    for number, step in enumerate(sequence.trace):
        tree = step.tree
        assert (tree.tokens >= 0).all()  # The rows of prompts are no draft.
        assert (len(tree) > 0) == (number > 0 and len(text) < len(PROMPT) + 39)
        if len(tree):
            wanted = guesses(plain, embed(np.array(text[:-1])), prompts)
            for parent in {-1, *tree.parents.tolist()}:
                children = [int(tree.tokens[child]) for child in tree.children(parent)]
                level = 0 if parent < 0 else int(tree.depths[parent])
                assert children == wanted[level][: len(children)]
            deep_ones += int(tree.depths.max()) > 1
        text += step.tokens
    assert deep_ones > 10
    if kind == "toy":
        assert {0, 1, 2} <= {step.accepted for step in sequence.trace}


def test_prefixes_behind_prompt_rows_are_reused(folder: Path) -> None:
    eng, text = engine(), tuple(range(1, 20))
    (first,) = serve(eng, [f"ppd(head='{folder}')"], text, max_tokens=40, ignore_eos=True)
    longer = (*text, *first.output)
    (reused,) = serve(eng, ["greedy"], longer, max_tokens=8, ignore_eos=True)
    (fresh,) = serve(engine(), ["greedy"], longer, max_tokens=8, ignore_eos=True)
    assert reused.output == fresh.output
    assert reused.cached_tokens >= 48


RATES = st.lists(st.floats(0, 1), min_size=6, max_size=6)


@examples(60)
@given(rates=RATES, count=st.integers(1, 6), step=st.sampled_from([0.0, 0.05, 0.3]))
def test_a_level_adds_what_the_best_tree_with_it_gains(rates, count, step):
    """The gain of a level equals brute force over all trees of two ranks and three levels.

    A node costs ``step`` tokens to verify.
    """
    odds, values = Odds(rates), []
    for levels in range(4):
        paths = [[]] if levels else []
        reached = []
        for _ in range(levels):
            paths = [[*path, rank] for path in paths for rank in range(2)]
            reached += [np.prod([rates[2 * k + r] for k, r in enumerate(path)]) for path in paths]
        values.append(sum(max(reach - step, 0.0) for reach in sorted(reached)[-count:]))
    found = gains(odds, 3, 2, step * np.arange(count + 1))
    best = np.inf
    for gain, more in zip(found, np.diff(values)):
        best = min(best, more)
        assert gain == pytest.approx(best, abs=1e-9)


@examples(60)
@given(
    parents=st.lists(st.integers(-1, 4), max_size=5), step=st.floats(0.01, 0.2),
    chances=st.lists(st.floats(0.1, 0.5), min_size=5, max_size=5), room=st.integers(0, 8),
)  # fmt: skip
def test_prompt_rows_hang_where_they_bring_most(parents, chances, step, room):
    """Prompt rows are added where they bring most, as brute force over two levels finds them."""
    known = [min(parent, n - 1) for n, parent in enumerate(parents)]
    shares = np.array([chance / max(known.count(p), 1) for p, chance in zip(known, chances)])
    tree = TokenTree(list(range(len(known))), known, shares.astype(np.float32))
    level, rows = [0.6, 0.3], len(known) + 1
    most = np.full(rows, 2)
    counts = hung(tree, level, most, room, lambda _, rows: step * np.arange(rows + 1))
    reach = np.concatenate([[1.0], tree.reach])
    ends = [reach[n] - sum(reach[c + 1] for c in tree.children(n - 1)) for n in range(rows)]

    def gain(ways: Sequence[int]) -> float:
        return sum(end * sum(level[:n]) for end, n in zip(ends, ways)) - step * sum(ways)

    best = max(gain(w) for w in np.ndindex(*(3,) * rows) if sum(w) <= room)
    assert gain(counts.tolist()) == pytest.approx(best, abs=1e-6)
    assert counts.sum() <= room


def test_where_rows_are_dear_there_are_few_prompt_rows(folder: Path) -> None:
    """Where rows are measured to be costly there are few prompt rows, and then no drafts."""
    rows = []
    for dear in (1.05, 33.0):
        curve = CostCurve((1, 32), (64,), ((1.0, dear),))
        (one,) = serve(engine(curve=curve), [f"ppd(head='{folder}')"], ignore_eos=True)
        rows.append(one.stats.rows - len(PROMPT) - one.stats.generated)
    assert rows[0] > 40
    assert rows[1] < 12


@pytest.mark.first(1)
@pytest.mark.parametrize("whenever", [False, True])
def test_what_hopeless_prompt_tokens_cost_is_bounded(whenever, folder, monkeypatch):
    """Prompt tokens that are never right cost at most 1/32 of plain decoding's time.

    This holds over short requests, even if every possible draft has them. The two tokens of initial
    trust and one trial come on top.
    """
    if whenever:
        hang = lambda seq, forward, *_: root_only(seq, forward, LEVELS)  # noqa: E731
        monkeypatch.setattr(row_drafter, "paying", hang)
    eng, extra, tokens = engine(curve=CostCurve((1, 32), (64,), ((1.0, 5.65),))), 0.0, 0
    for seed in range(12):
        text = np.random.default_rng(seed).integers(1, CONFIG.vocab_size, 20).tolist()
        (one,) = serve(eng, [f"ppd(head='{folder}')"], text, max_tokens=40, ignore_eos=True)
        extra += 0.15 * (one.stats.rows - len(text) - one.stats.forwards + 1)
        tokens += one.stats.generated
    assert 0 < extra < tokens / 32 + 4 * whenever


def test_guesses_are_judged_that_were_never_verified(folder: Path) -> None:
    """Guesses that were not verified are compared with the later text, which corrects estimates."""
    eng = engine(curve=CostCurve((1, 32), (64,), ((1.0, 1.2),)))
    (one,) = serve(eng, [f"ppd(head='{folder}',num_speculative_tokens=1)"], ignore_eos=True)
    (odds,) = [found for found in vars(one)["_stores"].values() if isinstance(found, Odds)]
    assert odds.totals[1][1] > 20  # A second guess: only first ones are verified.


@pytest.mark.parametrize(("tokens", "given_rows"), [
    ([5, -1], np.zeros((2, CONFIG.hidden_size), np.float32)),
    ([5, -1], np.zeros((3, CONFIG.hidden_size), np.float32)),
    ([5, 6], np.zeros((1, CONFIG.hidden_size), np.float32)),
    ([5, -1], np.zeros((1, CONFIG.hidden_size + 1), np.float32)),
    ([-1, -1], np.zeros((1, CONFIG.hidden_size), np.float32)), ([5, -1], None),
])  # fmt: skip
def test_rows_that_do_not_fit_are_refused(tokens: list[int], given_rows: Any) -> None:
    class Decoder:
        def decode(self, seq: Any) -> Any:
            yield Forward(seq.pending, tree=TokenTree.chain(tokens), given=given_rows)

    with pytest.raises(DecoderError, match=r"token ids|given"):
        serve(engine(), [Decoder])


@pytest.mark.parametrize(("change", "field"), [
    ({"virtual_tokens_per_special_token": 2}, "virtual_tokens"),
    ({"use_custom_lm_head": True}, "custom_lm_head"),
    ({"num_special_tokens": 5}, "num_special_tokens"), ({}, "prompt_embeddings"),
])  # fmt: skip
def test_prompt_tokens_of_other_kinds_are_refused(change, field, folder):
    said = json.loads((folder / "adapter_config.json").read_text()) | change
    (folder / "adapter_config.json").write_text(json.dumps(said))
    if not change:
        wide = np.zeros((LEVELS, CONFIG.hidden_size + 1), np.float32)
        save_file({"prompt_embeddings": wide}, folder / "adapter_model.safetensors")
    with pytest.raises(InvalidModel, match=field):
        build_head(read_head(folder), CONFIG, {}.__getitem__)
