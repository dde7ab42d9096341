"""Packed, paged, cached forwards against one naive sequence at a time (float64, 1e-10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from naive import Naive, random_weights, tiny_config

torch = pytest.importorskip("torch")

from paradecode.backends.interface import PAGE, Span  # noqa: E402
from paradecode.backends.torch.backend import TorchBackend  # noqa: E402
from paradecode.core.errors import InvalidInput, InvalidModel  # noqa: E402
from paradecode.core.tree import TokenTree  # noqa: E402
from paradecode.models.config import Rope  # noqa: E402

TOLERANCE = 1e-10
CONFIGS = {
    "plain": tiny_config(),
    "window": tiny_config(sliding_window=3),
    "everything": tiny_config(
        qkv_bias=True, output_bias=True, mlp_bias=True, qk_norm=True, tied_head=True,
        rope=Rope(dim=4, scaling="yarn", factor=4.0, original_context=64, attention_factor=1.1),
    ),
    "factors": tiny_config(rope=Rope(dim=8, factors=(1.0, 1.5, 4.0, 8.0))),
}  # fmt: skip


class House:
    """A backend with a fixed page table per sequence, and its naive twin."""

    def __init__(self, config, dtype: str = "fp64", device: str = "cpu") -> None:
        weights = random_weights(config)
        self.config = config
        self.naive = Naive(config, weights)
        self.backend = TorchBackend(config, weights, dtype=dtype, device=device)
        self.backend.reserve(64)
        for cache in (*self.backend.keys, *self.backend.values):
            cache.fill_(777.0)  # A slot that nobody wrote must not be seen.
        self._free = list(np.random.default_rng(0).permutation(64))

    def text(self, length: int, seed: int = 0) -> np.ndarray:
        rng = np.random.default_rng([length, seed])
        return rng.integers(0, self.config.vocab_size, length).astype(np.int32)

    def pages(self, slots: int) -> np.ndarray:
        """Pages nobody has, in random order."""
        return np.array([self._free.pop() for _ in range(-(-slots // PAGE))], np.int32)

    def prefill(self, pages: np.ndarray, tokens: np.ndarray) -> None:
        self.backend.forward([causal(pages, tokens, 0, len(tokens))])

    def run(self, *spans: Span) -> list[np.ndarray]:
        results = self.backend.forward(spans)
        return [result.logits.values for result in results]


def causal(pages: np.ndarray, text: np.ndarray, start: int, end: int) -> Span:
    """Rows start .. end - 1 of ``text``, stored behind what is cached; all rows' logits."""
    at = np.arange(start, end, dtype=np.int32)
    return Span(
        pages=pages,
        tokens=text[start:end],
        positions=at,
        slots=at,
        context=start,
        logits=np.arange(end - start, dtype=np.int32),
    )


def ints(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.int32)


def close(got: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)


@pytest.fixture(params=CONFIGS)
def house(request) -> House:
    return House(CONFIGS[request.param])


def test_chunked_prefill(house):
    text = house.text(53)
    pages = house.pages(53)
    cuts = [0, 1, 18, 19, 40, 53]
    parts = [house.run(causal(pages, text, a, b))[0] for a, b in pairwise(cuts)]
    close(np.concatenate(parts), house.naive.logits(text))


def test_sequences_of_many_lengths_share_a_forward(house):
    texts = [house.text(length, seed) for seed, length in enumerate((5, 40, 17, 1))]
    tables = [house.pages(len(text)) for text in texts]
    done = [2, 0, 16, 0]
    for text, pages, count in zip(texts, tables, done):
        if count:
            house.prefill(pages, text[:count])
    spans = [causal(p, t, d, len(t)) for p, t, d in zip(tables, texts, done)]
    for got, text, count in zip(house.run(*spans), texts, done, strict=True):
        close(got, house.naive.logits(text)[count:])


def test_neighbours_change_nothing(house):
    text, other = house.text(20), house.text(33, 1)
    alone = house.run(causal(house.pages(20), text, 0, 20))[0]
    together = house.run(
        causal(house.pages(33), other, 0, 33), causal(house.pages(20), text, 0, 20)
    )[1]
    close(together, alone)


def test_rows_of_logits_in_any_order(house):
    text = house.text(9)
    span = replace(causal(house.pages(9), text, 0, 9), logits=ints([8, 0, 8, 3]))
    close(house.run(span)[0], house.naive.logits(text)[[8, 0, 8, 3]])
    none = replace(causal(house.pages(9), text, 0, 9), logits=ints([]))
    assert house.run(none)[0].shape == (0, house.config.vocab_size)


TREE = TokenTree(ints([3, 4, 3, 9, 9, 1, 7]), ints([-1, -1, 0, 0, 1, 2, 5]))


def paths_of(tree: TokenTree) -> list[list[int]]:
    return [tree.tokens[np.flatnonzero(row)].tolist() for row in tree.visibility]


def test_tree(house):
    """Each node equals a text that ends with its path; slots and order do not matter."""
    text = house.text(21)
    pages = house.pages(40)
    house.prefill(pages, text)
    span = Span(
        pages=pages,
        tokens=TREE.tokens,
        positions=20 + TREE.depths,
        slots=ints([39, 21, 30, 22, 38, 24, 23]),
        context=21,
        logits=np.arange(len(TREE), dtype=np.int32),
        mask=TREE.visibility,
    )
    got = house.run(span)[0]
    for row, path in zip(got, paths_of(TREE), strict=True):
        close(row, house.naive.logits([*text, *path])[-1])


def test_tail_slots_grow_a_tree_level_by_level(house):
    """Rows of earlier forwards are tail slots, each seen by its descendants only."""
    text = house.text(18)
    pages = house.pages(48)
    house.prefill(pages, text)
    slots = ints([30, 19, 25, 40, 18, 33, 47])
    for level in range(1, int(TREE.depths.max()) + 1):
        new, old = np.flatnonzero(TREE.depths == level), np.flatnonzero(TREE.depths < level)
        old = old[::-1]
        span = Span(
            pages=pages,
            tokens=TREE.tokens[new],
            positions=17 + TREE.depths[new],
            slots=slots[new],
            context=18,
            logits=np.arange(len(new), dtype=np.int32),
            tail=slots[old],
            tail_positions=17 + TREE.depths[old],
            mask=np.concatenate(
                [TREE.visibility[np.ix_(new, old)], np.eye(len(new), dtype=bool)], axis=1
            ),
        )
        for row, node in zip(house.run(span)[0], new, strict=True):
            close(row, house.naive.logits([*text, *paths_of(TREE)[node]])[-1])


def test_tail_without_a_mask_is_seen_by_all(house):
    text = house.text(24)
    pages = house.pages(24)
    house.prefill(pages, text[:20])
    span = replace(causal(pages, text, 20, 24), context=17, tail=ints([17, 18, 19]),
                   tail_positions=ints([17, 18, 19]))  # fmt: skip
    close(house.run(span)[0], house.naive.logits(text)[20:])


def test_visible_slots(house):
    """Rows that see a chosen list of slots: as if the others were masked."""
    text = house.text(26)
    pages = house.pages(26)
    house.prefill(pages, text[:22])
    visible = [0, 1, 2, 7, 15, 16, 17, 21]
    span = replace(causal(pages, text, 22, 26), visible=ints(visible))
    # The cached rows saw everything; the new ones see ``visible`` and one another.
    seen = np.tri(26, dtype=bool)
    seen[22:, :22] = False
    seen[np.ix_(range(22, 26), visible)] = True
    close(house.run(span)[0], house.naive.logits(text, seen=seen)[22:])
    nothing = replace(causal(pages, text, 22, 26), visible=ints([]))
    alone = np.tri(26, dtype=bool)
    alone[22:, :22] = False
    close(house.run(nothing)[0], house.naive.logits(text, seen=alone)[22:])


def test_full_attention(house):
    """Rows that all see one another, as masked-diffusion models do."""
    text = house.text(12)
    span = replace(causal(house.pages(12), text, 0, 12), mask=np.ones((12, 12), bool))
    close(house.run(span)[0], house.naive.logits(text, seen=np.ones((12, 12), bool)))


def caches(house: House) -> list[torch.Tensor]:
    return [cache.clone() for cache in (*house.backend.keys, *house.backend.values)]


def test_rows_without_slots_leave_no_trace(house):
    text = house.text(30)
    pages = house.pages(30)
    house.prefill(pages, text[:25])
    before = caches(house)
    span = replace(causal(pages, text, 25, 30), slots=np.full(5, -1, np.int32))
    close(house.run(span)[0], house.naive.logits(text)[25:])
    assert all(torch.equal(a, b) for a, b in zip(before, caches(house), strict=True))


def test_some_rows_without_slots(house):
    """Only the rows that have one are stored, each in its own."""
    text = house.text(20)
    pages = house.pages(20)
    house.prefill(pages, text[:16])
    span = replace(causal(pages, text, 16, 20), slots=ints([16, -1, 17, -1]))
    house.run(span)
    # Now slots 16 and 17 hold rows 16 and 18 of the text.
    after = Span(
        pages=pages, tokens=ints([5]), positions=ints([20]), slots=ints([-1]), context=16,
        logits=ints([0]), tail=ints([16, 17]), tail_positions=ints([16, 18]),
    )  # fmt: skip
    seen = np.tri(21, dtype=bool)
    seen[20, [17, 19]] = False
    close(house.run(after)[0][0], house.naive.logits([*text, 5], seen=seen)[20])


def test_overwriting_slots(house):
    """A block that is written again, seeing the rest of the cache but not its own old rows."""
    old, new = house.text(24), house.text(24)
    new[8:16] = house.text(8, 5)
    pages = house.pages(24)
    house.prefill(pages, old)
    block = np.arange(8, 16, dtype=np.int32)
    span = Span(
        pages=pages, tokens=new[8:16], positions=block, slots=block[::-1], context=0,
        logits=np.arange(8, dtype=np.int32), visible=np.arange(8, dtype=np.int32),
    )  # fmt: skip
    close(house.run(span)[0], house.naive.logits(new[:16])[8:])
    # The slots are reversed; the next row sees them as a list.
    after = Span(
        pages=pages, tokens=ints([3]), positions=ints([16]), slots=ints([16]), context=8,
        logits=ints([0]), tail=block[::-1], tail_positions=block,
    )  # fmt: skip
    close(house.run(after)[0][0], house.naive.logits([*new[:16], 3])[-1])


def test_hidden_outputs(house):
    text = house.text(19)
    states = house.naive.hidden(text)
    span = replace(causal(house.pages(19), text, 0, 19), hidden=(0, 2))
    result = house.backend.forward([span])[0]
    assert set(result.hidden) == {0, 2}
    for layer, got in result.hidden.items():
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, states[layer + 1], rtol=2e-7, atol=1e-7)


def test_spans_may_ask_for_different_hidden_layers(house):
    text = house.text(7)
    one = replace(causal(house.pages(7), text, 0, 7), hidden=(1,))
    two = causal(house.pages(7), text, 0, 7)
    results = house.backend.forward([one, two])
    assert [set(result.hidden) for result in results] == [{1}, set()]


def test_resume_above_a_subset_is_the_full_run(house):
    """Layer 0, then layers 1 and 2 from its output; hidden states travel as float32."""
    text = house.text(23)
    pages = house.pages(23)
    lower = replace(causal(pages, text, 0, 23), layers=(0,), hidden=(0,))
    early = house.backend.forward([lower])[0]
    close(early.logits.values, house.naive.logits(text, layers=[0]))
    resumed = replace(causal(pages, text, 0, 23), layers=(1, 2), resume=early.hidden[0])
    got = house.run(resumed)[0]
    close(got, house.naive.logits(text, embeddings=early.hidden[0], layers=[1, 2]))
    np.testing.assert_allclose(got, house.naive.logits(text), rtol=0, atol=1e-4)
    # Together they filled every layer: decoding goes on as if the run had been one.
    after = house.run(causal(pages, np.append(text, 4).astype(np.int32), 23, 24))[0]
    np.testing.assert_allclose(after, house.naive.logits([*text, 4])[23:], rtol=0, atol=1e-4)


def test_skipped_layers(house):
    """Self-speculation: a draft runs layers 0 and 2 over caches that the full model wrote."""
    text = house.text(15)
    span = replace(causal(house.pages(15), text, 0, 15), layers=(0, 2))
    close(house.run(span)[0], house.naive.logits(text, layers=[0, 2]))
    none = replace(causal(house.pages(15), text, 0, 15), layers=())
    close(house.run(none)[0], house.naive.logits(text, layers=[]))


def test_embeddings_equal_tokens(house):
    text = house.text(14)
    rows = house.naive.w["embed"][text].astype(np.float32)
    span = replace(causal(house.pages(14), text, 0, 14), tokens=ints([]), embeddings=rows)
    close(house.run(span)[0], house.naive.logits(text))
    other = replace(span, embeddings=rows[::-1], pages=house.pages(14))
    close(house.run(other)[0], house.naive.logits(text[::-1]))


def physical(pages: np.ndarray, slots: Sequence[int]) -> np.ndarray:
    return np.array([pages[s // PAGE] * PAGE + s % PAGE for s in slots], np.int64)


def test_copy_keeps_an_accepted_path(house):
    """The path of node 6 moves behind the committed slots; moves overlap."""
    text = house.text(16)
    pages = house.pages(32)
    house.prefill(pages, text)
    slots = np.arange(16, 16 + len(TREE), dtype=np.int32)
    house.run(Span(
        pages=pages, tokens=TREE.tokens, positions=15 + TREE.depths, slots=slots, context=16,
        logits=ints([]), mask=TREE.visibility,
    ))  # fmt: skip
    path = np.flatnonzero(TREE.visibility[6])
    assert path.tolist() == [0, 2, 5, 6]
    house.backend.copy(physical(pages, slots[path]), physical(pages, [16, 17, 18, 19]))
    kept = np.concatenate([text, TREE.tokens[path], [8]]).astype(np.int32)
    close(house.run(causal(pages, kept, 20, 21))[0], house.naive.logits(kept)[20:])


@pytest.mark.parametrize("moves", [[1, 2, 3, 0], [0, 0, 1, 2], [3, 2, 1, 0]])
def test_copy_reads_all_before_it_writes(moves):
    """Rotations, shifts and swaps come out as if every source had been set aside first."""
    house = House(CONFIGS["plain"])
    pages = house.pages(20)
    house.prefill(pages, house.text(20))
    spots = physical(pages, [2, 3, 17, 5])
    before = caches(house)
    house.backend.copy(spots[moves], spots)
    for old, new in zip(before, caches(house), strict=True):
        expected = old.clone()
        expected[spots] = old[spots[moves]]
        assert torch.equal(new, expected)
        assert not torch.equal(new, old)


def test_copied_page_serves_another_sequence(house):
    text = house.text(30)
    pages = house.pages(32)
    house.prefill(pages, text)
    twin = ints([pages[0], house.pages(1)[0]])
    rows = np.arange(PAGE, dtype=np.int64)
    house.backend.copy(pages[1] * PAGE + rows, twin[1] * PAGE + rows)
    longer = [np.append(text, token).astype(np.int32) for token in (3, 9)]
    spans = [causal(table, t, 30, 31) for table, t in zip((pages, twin), longer)]
    for got, t in zip(house.run(*spans), longer, strict=True):
        close(got, house.naive.logits(t)[30:])
    again = [np.append(t, 1).astype(np.int32) for t in longer]
    for table, t in zip((pages, twin), again):
        close(house.run(causal(table, t, 31, 32))[0], house.naive.logits(t)[31:])


def test_a_sliding_window_forgets():
    """The window matters here: without it the logits differ."""
    windowed, plain = House(CONFIGS["window"]), House(CONFIGS["plain"])
    text = plain.text(20)
    a = windowed.run(causal(windowed.pages(20), text, 0, 20))[0]
    b = plain.run(causal(plain.pages(20), text, 0, 20))[0]
    close(a[:3], b[:3])
    assert (np.abs(a[3:] - b[3:]).max(axis=1) > 1e-3).all()


def test_a_wrong_mask_is_noticed(house):
    """Negative control: one wrong bit of the tree's mask shows far above the tolerance."""
    text = house.text(12)
    pages = house.pages(32)
    house.prefill(pages, text)
    mask = TREE.visibility.copy()
    mask[4, 0] = True  # Node 4 hangs under node 1.
    span = Span(
        pages=pages, tokens=TREE.tokens, positions=11 + TREE.depths,
        slots=np.full(7, -1, np.int32), context=12, logits=ints([4]), mask=mask,
    )  # fmt: skip
    wrong = house.run(span)[0][0]
    assert np.abs(wrong - house.naive.logits([*text, *paths_of(TREE)[4]])[-1]).max() > 1e-3


def test_a_row_that_sees_nothing_is_an_error():
    house = House(CONFIGS["plain"])
    span = replace(causal(house.pages(2), house.text(2), 0, 2), mask=np.zeros((2, 2), bool))
    with pytest.raises(InvalidInput, match="mask"):
        house.run(span)


def test_random_histories(house):
    """Random chunks, trees and settlements of several sequences at once, step by step."""
    rng = np.random.default_rng(7)
    texts = [house.text(int(rng.integers(1, 20)), seed) for seed in range(3)]
    tables = [house.pages(96) for _ in texts]
    lengths = [0, 0, 0]
    for _ in range(6):
        spans, rows = [], []
        for index, text in enumerate(texts):
            start, count = lengths[index], len(text) - lengths[index]
            size = int(rng.integers(0, 6))
            parents = ints([int(rng.integers(-1, node)) if node else -1 for node in range(size)])
            tree = TokenTree(house.text(size, len(text)), parents)
            mask = np.zeros((count + size, count + size), bool)
            mask[:, :count] = np.tri(count + size, count, dtype=bool)
            mask[count:, count:] = tree.visibility
            at = np.arange(start, start + count + size, dtype=np.int32)
            positions = np.concatenate([at[:count], len(text) - 1 + tree.depths])
            spans.append(Span(
                pages=tables[index], tokens=np.concatenate([text[start:], tree.tokens]),
                positions=positions.astype(np.int32), slots=at, context=start,
                logits=np.arange(count + size, dtype=np.int32), mask=mask,
            ))  # fmt: skip
            rows.append((text, start, count, tree))
        for index, (got, (text, start, count, tree)) in enumerate(
            zip(house.run(*spans), rows, strict=True)
        ):
            close(got[:count], house.naive.logits(text)[start:])
            for row, path in zip(got[count:], paths_of(tree), strict=True):
                close(row, house.naive.logits([*text, *path])[-1])
            path = np.flatnonzero(tree.visibility[-1]) if len(tree) else np.empty(0, np.int64)
            source = physical(tables[index], len(text) + path)
            target = physical(tables[index], range(len(text), len(text) + len(path)))
            house.backend.copy(source, target)
            lengths[index] = len(text) + len(path)
            extra = house.text(int(rng.integers(1, 4)), 9)
            texts[index] = np.concatenate([text, tree.tokens[path], extra])


# Other precisions, devices, and what is refused.


@pytest.mark.parametrize(("dtype", "bound"), [("fp32", 1e-4), ("bf16", 1.0)])
def test_lower_precisions(dtype, bound):
    house = House(CONFIGS["plain"], dtype)
    text = house.text(40)
    pages = house.pages(40)
    parts = [house.run(causal(pages, text, a, b))[0] for a, b in ((0, 25), (25, 40))]
    got, expected = np.concatenate(parts), house.naive.logits(text)
    assert got.dtype == np.float32
    assert np.isfinite(got).all()
    error = np.abs(got - expected)
    assert 0 < error.mean() < bound * 0.2
    correlation = np.corrcoef(got.ravel(), expected.ravel())[0, 1]
    assert correlation > 0.99


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("dtype", "tolerance"), [("fp64", 1e-9), ("fp32", 1e-3)])
def test_cuda(dtype, tolerance):
    house = House(CONFIGS["everything"], dtype, "cuda")
    text = house.text(40)
    pages = house.pages(64)
    house.prefill(pages, text)
    span = Span(
        pages=pages, tokens=TREE.tokens, positions=39 + TREE.depths,
        slots=np.arange(40, 47, dtype=np.int32), context=40,
        logits=np.arange(len(TREE), dtype=np.int32), mask=TREE.visibility,
    )  # fmt: skip
    got = house.backend.forward([span])[0].logits.values.cpu().numpy()
    expected = [house.naive.logits([*text, *path])[-1] for path in paths_of(TREE)]
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device_is_named():
    config = CONFIGS["plain"]
    with pytest.raises(InvalidInput, match="device"):
        TorchBackend(config, random_weights(config), device="cuda")


def test_bad_models_are_refused():
    config = CONFIGS["plain"]
    weights = dict(random_weights(config))
    with pytest.raises(InvalidInput, match="dtype"):
        TorchBackend(config, weights, dtype="int4")
    short = {name: tensor for name, tensor in weights.items() if name != "layers.1.up"}
    with pytest.raises(InvalidModel, match=r"layers\.1\.up"):
        TorchBackend(config, short)
    with pytest.raises(InvalidModel, match="embed"):
        TorchBackend(config, weights | {"embed": weights["norm"]})


def test_apply_runs_the_module():
    house = House(CONFIGS["plain"])
    assert house.backend.apply(lambda x: 2 * x, np.arange(3.0)).tolist() == [0, 2, 4]


def test_closed_backends_hold_nothing():
    house = House(CONFIGS["plain"])
    house.backend.close()
    with pytest.raises(InvalidInput, match="pages"):
        house.run(causal(ints([0]), house.text(2), 0, 2))
