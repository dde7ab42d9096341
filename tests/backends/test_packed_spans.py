"""Packed, paged, cached forwards equal one naive sequence at a time, in each backend."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from house import CONFIGS, TREE, House, causal, ints, paths_of, physical
from naive import tiny_config

from paradecode.backends.interface import PAGE, Span, WindowPages
from paradecode.core.errors import InvalidInput
from paradecode.core.tree import TokenTree


def test_chunked_prefill(house):
    text = house.text(53)
    pages = house.pages(53)
    cuts = [0, 1, 18, 19, 40, 53]
    parts = [house.run(causal(pages, text, a, b))[0] for a, b in pairwise(cuts)]
    house.close(np.concatenate(parts), house.naive.logits(text))


def test_sequences_of_many_lengths_share_a_forward(house):
    texts = [house.text(length, seed) for seed, length in enumerate((5, 40, 17, 1))]
    tables = [house.pages(len(text)) for text in texts]
    done = [2, 0, 16, 0]
    for text, pages, count in zip(texts, tables, done):
        if count:
            house.prefill(pages, text[:count])
    spans = [causal(p, t, d, len(t)) for p, t, d in zip(tables, texts, done)]
    for got, text, count in zip(house.run(*spans), texts, done, strict=True):
        house.close(got, house.naive.logits(text)[count:])


def test_neighbours_change_nothing(house):
    text, other = house.text(20), house.text(33, 1)
    alone = house.run(causal(house.pages(20), text, 0, 20))[0]
    together = house.run(
        causal(house.pages(33), other, 0, 33), causal(house.pages(20), text, 0, 20)
    )[1]
    house.close(together, alone)


def test_rows_of_logits_in_any_order(house):
    text = house.text(9)
    span = replace(causal(house.pages(9), text, 0, 9), logits=ints([8, 0, 8, 3]))
    house.close(house.run(span)[0], house.naive.logits(text)[[8, 0, 8, 3]])
    none = replace(causal(house.pages(9), text, 0, 9), logits=ints([]))
    assert house.run(none)[0].shape == (0, house.config.vocab_size)


def test_tree(house):
    """Each node equals a text that ends with its path; slots and order do not matter."""
    text = house.text(21)
    pages = house.pages(40)
    house.prefill(pages, text)
    span = Span(
        pages=pages, tokens=TREE.tokens, positions=20 + TREE.depths,
        slots=ints([39, 21, 30, 22, 38, 24, 23]), context=21,
        logits=np.arange(len(TREE), dtype=np.int32), mask=TREE.visibility,
    )  # fmt: skip
    got = house.run(span)[0]
    for row, path in zip(got, paths_of(TREE), strict=True):
        house.close(row, house.naive.logits([*text, *path])[-1])


def test_tail_slots_grow_a_tree_level_by_level(house):
    """Rows of earlier forwards are tail slots, each seen only by its descendants."""
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
            house.close(row, house.naive.logits([*text, *paths_of(TREE)[node]])[-1])


def test_tail_without_a_mask_is_seen_by_all(house):
    text = house.text(24)
    pages = house.pages(24)
    house.prefill(pages, text[:20])
    span = replace(causal(pages, text, 20, 24), context=17, tail=ints([17, 18, 19]),
                   tail_positions=ints([17, 18, 19]))  # fmt: skip
    house.close(house.run(span)[0], house.naive.logits(text)[20:])


def test_visible_slots(house):
    """Rows see a chosen list of slots as if the other slots were masked."""
    text = house.text(26)
    pages = house.pages(26)
    house.prefill(pages, text[:22])
    visible = [0, 1, 2, 7, 15, 16, 17, 21]
    span = replace(causal(pages, text, 22, 26), visible=ints(visible))
    # The cached rows saw everything; the new ones see ``visible`` and one another.
    seen = np.tri(26, dtype=bool)
    seen[22:, :22] = False
    seen[np.ix_(range(22, 26), visible)] = True
    house.close(house.run(span)[0], house.naive.logits(text, seen=seen)[22:])
    nothing = replace(causal(pages, text, 22, 26), visible=ints([]))
    alone = np.tri(26, dtype=bool)
    alone[22:, :22] = False
    house.close(house.run(nothing)[0], house.naive.logits(text, seen=alone)[22:])
    order = np.random.default_rng(5).permutation(22)
    shuffled = replace(causal(pages, text, 22, 26), visible=order.astype(np.int32))
    house.close(house.run(shuffled)[0], house.naive.logits(text)[22:])


def test_full_attention(house):
    """All rows can see one another, as in masked diffusion models."""
    text = house.text(12)
    span = replace(causal(house.pages(12), text, 0, 12), mask=np.ones((12, 12), bool))
    house.close(house.run(span)[0], house.naive.logits(text, seen=np.ones((12, 12), bool)))


@pytest.mark.parametrize("name", ["torch", "native"])
def test_a_sliding_window_forgets(name):
    """A sliding window changes the logits of this text."""
    windowed, plain = House(CONFIGS["window"], name), House(CONFIGS["plain"], name)
    text = plain.text(20)
    a = windowed.run(causal(windowed.pages(20), text, 0, 20))[0]
    b = plain.run(causal(plain.pages(20), text, 0, 20))[0]
    plain.close(a[:3], b[:3])
    assert (np.abs(a[3:] - b[3:]).max(axis=1) > 1e-3).all()


def test_a_wrong_mask_is_noticed(house):
    """One wrong bit of the tree's mask shows far above the tolerance (negative control)."""
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


def test_random_histories(house):
    """Random chunks, trees and commits of several sequences at once stay right at every step."""
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
            house.close(got[:count], house.naive.logits(text)[start:])
            for row, path in zip(got[count:], paths_of(tree), strict=True):
                house.close(row, house.naive.logits([*text, *path])[-1])
            path = np.flatnonzero(tree.visibility[-1]) if len(tree) else np.empty(0, np.int64)
            source = physical(tables[index], len(text) + path)
            target = physical(tables[index], range(len(text), len(text) + len(path)))
            house.backend.copy(source, target)
            lengths[index] = len(text) + len(path)
            extra = house.text(int(rng.integers(1, 4)), 9)
            texts[index] = np.concatenate([text, tree.tokens[path], extra])


@pytest.mark.parametrize("window", [3, 16, 17])
@pytest.mark.parametrize("name", ["torch", "native"])
def test_a_window_needs_no_page_that_it_has_passed(name: str, window: int) -> None:
    """Chains and trees at every offset see what they saw, and an earlier page is refused."""
    house = House(tiny_config(sliding_window=window), name)
    text, other = house.text(56), house.pages(64)
    cached = causal(house.pages(64), text, 0, 36)
    house.run(cached, replace(cached, windows={window: WindowPages(0, other)}))
    for length in range(20, 36):
        first = max(0, length - window + 1) // PAGE
        tree = Span(
            pages=cached.pages, tokens=TREE.tokens, positions=length - 1 + TREE.depths,
            slots=np.full(7, -1, np.int32), context=length, logits=np.arange(7, dtype=np.int32),
            mask=TREE.visibility,
        )  # fmt: skip
        chain = causal(cached.pages, text, length, 52)
        chain = replace(chain, slots=np.full(52 - length, -1, np.int32))
        ways = [
            {}, {"visible": np.arange(length, dtype=np.int32)},
            {"visible": np.arange(length, dtype=np.int32)[::-1].copy()},
        ]  # fmt: skip
        for span, way in product((tree, chain), ways):
            span = replace(span, **way)
            whole = house.run(span)[0]
            cut = replace(span, windows={window: WindowPages(first, other[first:])})
            got = house.run(replace(cut, pages=ints([])))[0]
            (np.testing.assert_array_equal if name == "native" else house.close)(got, whole)
            late = WindowPages(first + 1, other[first + 1 :])
            with pytest.raises(InvalidInput, match=f"the window of {window} has passed"):
                house.run(replace(span, windows={window: late}))
