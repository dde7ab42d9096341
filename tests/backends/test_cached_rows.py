"""Stored and copied rows give the results of one naive sequence, in each backend."""

from dataclasses import replace

import numpy as np
import pytest
from house import CONFIGS, TREE, House, causal, ints, physical

from paradecode.backends.interface import PAGE, Span


def test_rows_without_slots_leave_no_trace(house):
    text = house.text(30)
    pages = house.pages(30)
    house.prefill(pages, text[:25])
    span = replace(causal(pages, text, 25, 30), slots=np.full(5, -1, np.int32))
    house.close(house.run(span)[0], house.naive.logits(text)[25:])
    house.close(house.run(causal(pages, text, 25, 30))[0], house.naive.logits(text)[25:])


def test_some_rows_without_slots(house):
    """Only rows that have a slot are stored, each in its own slot."""
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
    house.close(house.run(after)[0][0], house.naive.logits([*text, 5], seen=seen)[20])


def test_overwriting_slots(house):
    """A block that is written again sees the rest of the cache, but not its own old rows."""
    old, new = house.text(24), house.text(24)
    new[8:16] = house.text(8, 5)
    pages = house.pages(24)
    house.prefill(pages, old)
    block = np.arange(8, 16, dtype=np.int32)
    span = Span(
        pages=pages, tokens=new[8:16], positions=block, slots=block[::-1], context=0,
        logits=np.arange(8, dtype=np.int32), visible=np.arange(8, dtype=np.int32),
    )  # fmt: skip
    house.close(house.run(span)[0], house.naive.logits(new[:16])[8:])
    # The slots are reversed; the next row sees them as a list.
    after = Span(
        pages=pages, tokens=ints([3]), positions=ints([16]), slots=ints([16]), context=8,
        logits=ints([0]), tail=block[::-1], tail_positions=block,
    )  # fmt: skip
    house.close(house.run(after)[0][0], house.naive.logits([*new[:16], 3])[-1])


def test_copy_keeps_an_accepted_path(house):
    """The path of node 6 moves after the committed slots, although moves overlap."""
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
    house.close(house.run(causal(pages, kept, 20, 21))[0], house.naive.logits(kept)[20:])


@pytest.mark.parametrize("moves", [[1, 2, 3, 0], [0, 0, 1, 2], [3, 2, 1, 0]])
def test_copy_reads_all_before_it_writes(moves):
    """Rotations, shifts and swaps work as if every source were read before any write."""
    house = House(CONFIGS["plain"])
    torch = pytest.importorskip("torch")
    pages = house.pages(20)
    house.prefill(pages, house.text(20))
    spots = physical(pages, [2, 3, 17, 5])
    caches = (*house.backend.keys, *house.backend.values)
    before = [cache.clone() for cache in caches]
    house.backend.copy(spots[moves], spots)
    for old, new in zip(before, caches, strict=True):
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
        house.close(got, house.naive.logits(t)[30:])
    again = [np.append(t, 1).astype(np.int32) for t in longer]
    for table, t in zip((pages, twin), again):
        house.close(house.run(causal(table, t, 31, 32))[0], house.naive.logits(t)[31:])
