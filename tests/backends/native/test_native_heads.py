"""Heads draft whole trees in one native call: the same trees as `run_head`'s, in any batch."""

import gc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paradecode.backends.heads.run import run_head
from paradecode.backends.native import _core
from paradecode.backends.native.heads import NativeHeads, run_networks
from paradecode.core.errors import BackendError, InvalidInput
from paradecode.core.head import Head, HeadDraft, Memory
from paradecode.core.logits import Warp
from paradecode.core.network import Network, Op
from paradecode.core.tree import TokenTree
from paradecode.llm import LLM
from paradecode.models.config import Rope, uniform
from paradecode.models.heads import build_head, read_head
from paradecode.testing.clover_heads import CELLS
from paradecode.testing.draft_heads import KINDS, random_head
from paradecode.testing.network_reference import apply_network

VOCABULARY = 200
CONFIG = uniform("t", "llama", VOCABULARY, 24, 8, 2, 1, 8, 8, rope=Rope(dim=8))


APART = ("dflash", "dspark", "dflash2", "falcon", "chimera", "longspec", *CELLS)
"""Kinds of heads that the core runs network by network."""


def looks_up(head: Head) -> bool:
    """Return whether the head reads tokens; a Kangaroo adapter does not."""
    return any(step.kind == "lookup" for block in head.blocks for step in block.before.steps)


def normed(head: Head) -> Head:
    """Return the head with norms for each attention head of queries and keys.

    The copy also has another network ``back``.
    """
    gain = np.linspace(0.5, 1.5, head.blocks[0].size, dtype=np.float32) if head.blocks else None
    blocks = tuple(replace(b, q_norm=gain, k_norm=gain) for b in head.blocks)
    half = {"half": np.full(head.width, 0.5, np.float32)}
    back = Network({"state": head.width}, (Op("y", "scale", ("state",), ("half",)),), half)
    return replace(head, blocks=blocks, back=back)


@pytest.fixture(params=[kind for kind in KINDS if kind not in APART])
def rounded_head(request: pytest.FixtureRequest, tmp_path: Path) -> Head:
    def nothing(name: str) -> np.ndarray:
        raise AssertionError(f"these heads need no {name} of the target")

    return build_head(read_head(random_head(request.param, CONFIG, tmp_path)), CONFIG, nothing)


@pytest.fixture(params=["plain", "normed"])
def head(request: pytest.FixtureRequest, rounded_head: Head) -> Head:
    return (rounded_head if request.param == "plain" else normed(rounded_head)).held_in("f32")


class Request:
    """The committed rows of one request, which the head reads in several pieces."""

    def __init__(self, head: Head, seed: int) -> None:
        random = np.random.default_rng(seed)
        width = head.enter.inputs["features"]
        self.features = random.standard_normal((400, width)).astype(np.float32)
        self.tokens = random.integers(0, VOCABULARY, 400)
        self.start = int(random.integers(0, 50))
        self.memory = Memory()

    def ask(self, rows: int, **changes: object) -> HeadDraft:
        first = self.memory.length
        settings = {"count": 14, "width": 4, "depth": 5, **changes}
        return HeadDraft(
            self.memory, self.features[first : first + rows], self.tokens[first : first + rows],
            self.start + first, **settings,
        )  # fmt: skip


def same(tree: TokenTree, other: TokenTree, exactly: bool = False) -> None:
    assert tree.tokens.tolist() == other.tokens.tolist()
    assert tree.parents.tolist() == other.parents.tolist()
    if exactly:
        assert np.array_equal(tree.estimates, other.estimates)
    else:
        assert np.allclose(tree.estimates, other.estimates, rtol=2e-4, atol=1e-6)


def drafts(run, head: Head, rows: Sequence[int], seed: int = 0, **changes) -> list[TokenTree]:
    """Return the drafts of one request after each piece of its rows is committed."""
    request = Request(head, seed)
    return [run(head, [request.ask(n, **changes)])[0] for n in rows]


def oracle(head: Head, asked: Sequence[HeadDraft]) -> list[TokenTree]:
    return run_head(head, asked, apply_network)


PIECES = (37, 1, 2, 5, 1, 290, 3)


@pytest.mark.first(48)
@pytest.mark.parametrize("changes", [
    {}, {"count": 1, "width": 1, "depth": 1}, {"width": 1, "depth": 9}, {"least": 0.02},
    {"count": 60, "width": 8, "depth": 3}, {"width": 256, "depth": 2, "count": 40},
    {"warp": Warp(0.7), "keys": (5, 6, 7, 8, 9)},
    {"warp": Warp(1.3, top_k=20, top_p=0.9, min_p=0.01), "keys": (5, 6)},
], ids=str)  # fmt: skip
def test_trees_are_those_of_the_oracle(head: Head, changes: dict[str, object]) -> None:
    wanted = drafts(oracle, head, PIECES, **changes)
    made = drafts(NativeHeads(2).run_head, head, PIECES, **changes)
    for tree, other in zip(made, wanted, strict=True):
        assert len(tree)
        same(tree, other)


@pytest.mark.first(3)
@pytest.mark.parametrize("dtype", ["q8", "q4"])
def test_rounded_matrices_are_those_that_networks_use(rounded_head: Head, dtype: str) -> None:
    """The core rounds a head's matrices like the matrices of single networks.

    Whole paths are compared, because nodes may change places where an 8-bit input rounds
    differently.
    """

    def paths(tree: TokenTree) -> set[tuple[int, ...]]:
        return {tuple(tree.tokens_to(node)) for node in range(len(tree))}

    def with_networks(head: Head, asked: Sequence[HeadDraft]) -> list[TokenTree]:
        return run_head(head, asked, run_networks)

    rounded, shared, total = rounded_head.held_in(dtype), 0, 0
    for seed in range(6):
        made = drafts(NativeHeads(2).run_head, rounded, PIECES, seed)
        for tree, other in zip(made, drafts(with_networks, rounded, PIECES, seed)):
            shared, total = shared + len(paths(tree) & paths(other)), total + len(other)
    assert shared > 0.97 * total


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_company_and_threads_change_no_bit(rounded_head: Head, threads: int) -> None:
    heads = NativeHeads(threads)
    settings = [{}, {"count": 3, "width": 2, "depth": 2}, {"warp": Warp(0.8), "keys": (1, 2, 3)}]
    pieces = [(11, 1, 3), (1, 2, 300), (5, 5, 1)]
    alone = [
        drafts(NativeHeads(1).run_head, rounded_head, rows, seed, **each)
        for seed, (rows, each) in enumerate(zip(pieces, settings))
    ]
    together = [Request(rounded_head, seed) for seed in range(3)]
    for step in range(3):
        asked = [
            request.ask(rows[step], **each)
            for request, rows, each in zip(together, pieces, settings)
        ]
        for tree, trees in zip(heads.run_head(rounded_head, asked), alone, strict=True):
            same(tree, trees[step], exactly=True)


def test_pieces_change_no_bit(rounded_head: Head) -> None:
    run = NativeHeads(2).run_head
    whole = drafts(run, rounded_head, (305,))[-1]
    same(drafts(run, rounded_head, (1, 2, 250, 20, 32))[-1], whole, exactly=True)


@pytest.mark.parametrize("isa", _core.available_isas())
def test_instruction_sets_change_no_bit(rounded_head, isa, monkeypatch):
    wanted = drafts(NativeHeads(1).run_head, rounded_head, PIECES)
    monkeypatch.setenv("PARADECODE_ISA", isa)
    again = [
        replace(b, before=replace(b.before), after=replace(b.after)) for b in rounded_head.blocks
    ]
    fresh = replace(
        rounded_head, enter=replace(rounded_head.enter), blocks=tuple(again),
        outs=tuple(map(replace, rounded_head.outs)),
    )  # fmt: skip
    for tree, other in zip(drafts(NativeHeads(1).run_head, fresh, PIECES), wanted, strict=True):
        same(tree, other, exactly=True)


def test_a_memory_ends_with_its_request(rounded_head: Head) -> None:
    """A memory grows with the request's rows, not with its drafts, and ends with the request."""
    if not rounded_head.blocks:
        pytest.skip("it has no keys and values")
    heads = NativeHeads(1)
    request = Request(rounded_head, 0)
    for _ in range(20):
        heads.run_head(rounded_head, [request.ask(10)])
    (memory,) = heads._memories.values()
    assert 0 < memory.bytes < 1e6
    assert request.memory.length == 200
    del request, memory
    gc.collect()
    assert not heads._memories
    assert len(heads._heads) == 1


def test_the_head_of_a_loaded_model_is_packed_before_its_first_draft(tmp_path: Path) -> None:
    with LLM("paradecode/tiny-autoregressive") as plain:
        folder = random_head("eagle3", plain.config, tmp_path)
    for spec in (f"eagle(head='{folder}',dtype=q4)", f"prompt-lookup+eagle(head='{folder}')"):
        with LLM("paradecode/tiny-autoregressive", decoder=spec) as llm:
            assert len(llm.backend._heads._heads) == 1
            llm.complete("aba", max_tokens=8, budget="fixed")
            assert len(llm.backend._heads._heads) == 1


@pytest.mark.first(4)
def test_many_requests_leave_no_memory(rounded_head: Head) -> None:
    from paradecode.serve.worker.memory import resident

    if resident() == 0:
        pytest.skip("says no current memory")
    heads = NativeHeads(1)

    def serve(count: int) -> None:
        for seed in range(count):
            heads.run_head(rounded_head, [Request(rounded_head, seed % 7).ask(300)])

    serve(20)
    before = resident()
    serve(150)
    assert resident() < before + 6e6


def test_keys_that_no_half_can_hold_end_no_draft(rounded_head: Head) -> None:
    """A head's states may grow with every level of its own draft; the draft must still succeed."""
    if not rounded_head.blocks:
        pytest.skip("it has no keys")
    blocks = tuple(
        replace(block, k_norm=np.full(block.size, 1e7, np.float32)) for block in rounded_head.blocks
    )
    huge = replace(rounded_head, blocks=blocks)
    tree = NativeHeads(1).run_head(huge, [Request(huge, 0).ask(6)])[0]
    assert len(tree) > 0
    assert np.isfinite(tree.estimates).all()


def test_bad_drafts_are_refused_and_disturb_nobody(rounded_head: Head) -> None:
    heads, request = NativeHeads(2), Request(rounded_head, 0)
    heads.run_head(rounded_head, [request.ask(6)])
    good = request.ask(3)
    wanted = heads.run_head(rounded_head, [replace(good, memory=request.memory)])[0]
    request.memory.length -= 3
    broken = good.features.copy()
    broken[-1] = np.nan
    bad: list[tuple[dict[str, object], type[Exception], str]] = [
        ({"features": good.features[:, 1:]}, InvalidInput, "features"),
        ({"features": good.features[:2]}, InvalidInput, "features"),
        ({"features": good.features[:0], "tokens": good.tokens[:0]}, InvalidInput, "rows"),
        ({"start": -1}, InvalidInput, "start"), ({"start": 1 << 40}, InvalidInput, "start"),
        ({"count": 0}, InvalidInput, "count"), ({"width": 0}, InvalidInput, "width"),
        ({"depth": 0}, InvalidInput, "depth"), ({"depth": 65}, InvalidInput, "depth"),
        ({"warp": Warp(-1.0)}, InvalidInput, "temperature"),
        ({"features": broken}, BackendError, "NaN"),
    ]  # fmt: skip
    if looks_up(rounded_head):
        bad += [
            ({"tokens": good.tokens + VOCABULARY}, InvalidInput, "below"),
            ({"tokens": good.tokens - VOCABULARY}, InvalidInput, "below"),
        ]
    for changes, error, text in bad:
        with pytest.raises(error, match=text):
            heads.run_head(rounded_head, [replace(good, **changes)])
        assert request.memory.length == 6
    with pytest.raises(InvalidInput, match="each request its own"):
        heads.run_head(rounded_head, [good, good])
    with pytest.raises(InvalidInput, match="this head made"):
        heads.run_head(replace(rounded_head), [good])
    ahead = Memory()
    ahead.length = 5
    if rounded_head.blocks:
        with pytest.raises(InvalidInput, match="length of a memory"):
            heads.run_head(rounded_head, [replace(good, memory=ahead)])
    same(heads.run_head(rounded_head, [good])[0], wanted, exactly=True)


def test_heads_whose_sizes_do_not_fit_are_refused(rounded_head: Head) -> None:
    heads, good = NativeHeads(1), rounded_head
    asked = Request(good, 0).ask(4)
    changes: list[dict[str, object]] = [{"width": good.width + 1}, {"outs": (good.enter,)}]
    if good.blocks:
        block = good.blocks[0]
        changes += [
            {"blocks": (replace(block, **change), *good.blocks[1:])}
            for change in (
                {"size": block.size + 2}, {"heads": block.heads + 1}, {"heads": 0},
                {"kv_heads": 0}, {"frequencies": block.frequencies[:1]},
                {"frequencies": block.frequencies * np.nan}, {"before": block.after},
                {"q_norm": np.ones(40, np.float32)},
            )
        ]  # fmt: skip
        changes += [{"to_target": np.arange(3, dtype=np.int32)}]
        if not looks_up(good):
            pass  # What it may guess is bounded when a head is built.
        elif good.mask is None:
            wide = [*good.outs[0].widths.values()][-1]
            changes += [{"to_target": np.arange(wide, dtype=np.int32) + VOCABULARY}]
        else:
            changes += [{"mask": (good.mask[0], VOCABULARY)}, {"mask": (good.mask[0][:, 1:], 1)}]
    for change in changes:
        with pytest.raises(InvalidInput):
            heads.run_head(replace(good, **change), [asked])


def test_the_pace_is_booked(rounded_head: Head) -> None:
    head = replace(rounded_head, pace=type(rounded_head.pace)())
    NativeHeads(1).run_head(head, [Request(head, 0).ask(4)])
    assert 0 < head.pace.level <= head.pace.draft < 1
