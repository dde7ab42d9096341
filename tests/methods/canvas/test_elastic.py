"""Elastic-Cache follows the paper step by step, also in which layers rows are computed again."""

import numpy as np
import pytest
from canvases import ATTENTION, MASK, PROMPT, run, steps, toy
from elastic_reference import Elastic

from paradecode.backends import open_backend
from paradecode.backends.native.backend import NativeBackend
from paradecode.core.decoder import Store
from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.block_rules import Full
from paradecode.methods.canvas.caches import elastic
from paradecode.methods.canvas.caches.elastic import ElasticCache, Tracked
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.loop import Unmask
from paradecode.methods.canvas.policies.llada import Static
from paradecode.models.tiny import tiny_checkpoint
from paradecode.testing.toy import ToyBackend

FULL = ("full", "shift")
WHOLE = len(PROMPT) + 24


class Watched(ElasticCache):
    """A backend that records for each forward how many rows went through which layers.

    Rows that went only through the attention of one layer, for their weights, are counted apart.
    """

    def start(self, canvas):
        super().start(canvas)
        self.ran: list[list[tuple[int, tuple[int, ...] | None]]] = []
        self.planned: list[int] = []
        self.recalled: list[int] = []
        self.tracked: list[list[int]] = []

    def plan(self, canvas, window):
        made = super().plan(canvas, window)
        fresh = canvas.stored != canvas.tokens
        if not made.refresh:
            assert (made.rows & fresh == fresh).all()
            masks = int((made.rows & canvas.masked).sum())
            assert masks == min(self.window, int(canvas.masked.sum()))
            watched = self.track * canvas.layers + (fresh & ~canvas.masked).sum()
            assert made.rows.sum() <= masks * (1 + canvas.shift) + watched
        self.planned.append(int(made.rows.sum()))
        return made

    def _watch(self, forwards):
        self.ran.append([])
        self.recalled.append(0)
        reply = None
        while True:
            try:
                forward = forwards.send(reply)
            except StopIteration as end:
                self.tracked.append(self._tracked.tokens[:, 0].tolist())
                return end.value
            if isinstance(forward, list):
                assert all(part.store is Store.NONE for part in forward)
                self.recalled[-1] += sum(len(part.tokens) for part in forward)
            else:
                self.ran[-1].append((len(forward.tokens), forward.layers))
            reply = yield forward

    def _fill(self, forward):
        return self._watch(super()._fill(forward))

    def _check(self, forward):
        return self._watch(super()._check(forward))


def watched(backend, **settings):
    caches = []

    def build():
        caches.append(Watched(**settings))
        return Unmask(Static(), Full(), caches[0])

    return run(backend, build), caches[0]


@pytest.mark.parametrize("window", [1, 4, 99])
def test_never_refreshing_computes_the_window(window: int) -> None:
    made, cache = watched(toy("full"), window=window, threshold=-1.0)
    # The masks of the window, the token that was just decided, and the tracked ones of two layers.
    most = [WHOLE, *(min(window, 24 - step) + 3 for step in range(1, 24))]
    assert all(rows <= limit for rows, limit in zip(cache.planned, most, strict=True))
    assert made.rows == pytest.approx(sum(cache.planned) + sum(cache.recalled) / 6)
    assert [len(forwards) for forwards in cache.ran] == [1] * 24


def test_drift_runs_the_upper_layers() -> None:
    made, cache = watched(toy("full"), window=4, threshold=1.0)
    assert made.forwards == 24
    again = [forwards[1] for forwards in cache.ran if len(forwards) == 2]
    assert len(again) > 12  # A toy drifts at once, wherever a token was decided.
    assert set(again) == {(WHOLE, (1,))}
    looks = sum(cache.recalled) / 6
    assert made.rows == pytest.approx(sum(cache.planned) + len(again) * WHOLE / 2 + looks)


def played(config, weights, window: int, threshold: float):
    """Return the positions and tokens that the reference decides one by one, and the reference."""
    slow = Elastic(config, weights, threshold)
    tokens = np.array([*PROMPT, *[config.mask_token] * 24])
    masked = np.arange(WHOLE) >= len(PROMPT)
    order, fresh = [], np.array([], int)
    for number in range(24):
        masks = np.flatnonzero(masked)
        rows = slow.step(tokens, masked, fresh, masks[:window])
        seen = masks if number == 0 else masks[:window]
        logits = np.stack([rows[at] for at in seen])
        logits[:, config.mask_token] = -np.inf
        shares = np.exp(logits - logits.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        row = int(shares.max(1).argmax())
        fresh = seen[row : row + 1]
        tokens[fresh], masked[fresh] = shares[row].argmax(), False
        order.append(int(fresh[0]))
    return order, tokens[len(PROMPT) :].tolist(), slow


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("window", [2, 6, 24])
@pytest.mark.parametrize("threshold", [-1.0, 0.9, 0.98, 0.999])
def test_equals_the_paper_step_by_step(backend, window, threshold, monkeypatch):
    """Decisions, tracked tokens, cosines and the refreshed layers must equal the reference's."""
    if backend == "torch":
        pytest.importorskip("torch")
    config, weights = tiny_checkpoint("llada")
    looked: list[list[float]] = []
    real = Tracked.likeness

    def likeness(self, now):
        looked.append(real(self, now).tolist())
        return np.array(looked[-1])

    monkeypatch.setattr(Tracked, "likeness", likeness)
    if backend == "torch":
        opened = open_backend(backend, config, weights, dtype="fp64", threads=1)
    else:
        opened = NativeBackend(config, weights, dtype="f32", kv_dtype="f32", threads=1)
    made, cache = watched(opened, window=window, threshold=threshold)
    order, tokens, slow = played(config, weights, window, threshold)
    decided = [at + len(PROMPT) for step in steps(made) for at in step.offsets]
    assert decided == order
    assert made.output == tokens
    assert cache.tracked == slow.tracked
    again = [0, *(ran[1][1][0] if len(ran) > 1 else None for ran in cache.ran[1:])]
    assert again == slow.refreshed
    for found, wanted in zip(looked, slow.likeness[1:], strict=True):
        assert np.allclose(found[: len(wanted)], wanted, atol=1e-4)


def test_the_reference_meets_both_drift_and_none() -> None:
    """The reference refreshes in some forwards and not in others.

    Without both, the test before this one would compare nothing.
    """
    config, weights = tiny_checkpoint("llada")
    books = [played(config, weights, 6, threshold)[2] for threshold in (0.9, 0.98, 0.999)]
    refreshed = [{None, 1} <= set(book.refreshed) for book in books]
    assert any(refreshed)
    assert any(len({*map(tuple, book.tracked)}) > 2 for book in books)


def test_a_token_that_was_not_computed_is_recalled() -> None:
    """A tracked token that was not computed costs one row through the attention of one layer.

    With two layers this is a third of half of a row's work.
    """
    made, cache = watched(toy("full"), window=4, threshold=-1.0)
    assert cache.recalled[0] == 2  # The first forward was not asked about any decided token.
    assert 0 < sum(cache.recalled[1:]) < 2 * 23
    assert made.rows == pytest.approx(sum(cache.planned) + sum(cache.recalled) / 6)
    assert made.timer.other == 0.0  # It is the target that looks.


def test_backends_without_attention_weights_are_refused_where_they_are_needed() -> None:
    for kind in ATTENTION:
        backend = toy(kind)
        backend.gives_attention = False
        if kind in FULL:
            with pytest.raises(InvalidInput, match="attention weights"):
                run(backend, "static(cache=elastic)")
        else:
            assert len(run(backend, "static(cache=elastic)").output) == 24


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the bytes of the attention weights of each forward of a toy model."""
    found: list[int] = []
    real = ToyBackend.forward

    def forward(self, spans):
        results = real(self, spans)
        found.append(sum(w.nbytes for result in results for w in result.attention.values()))
        return results

    monkeypatch.setattr(ToyBackend, "forward", forward)
    return found


@pytest.mark.parametrize("rows", [3, 8, 11])
def test_the_bytes_of_attention_weights_are_bounded(rows, monkeypatch):
    """Attention weights stay within the budget however large a request sets window and track.

    The memory between two forwards stays within it, too.
    """
    budget = rows * 2 * WHOLE * 4  # Two layers of one head.
    monkeypatch.setattr(elastic, "BUDGET", budget + 5)
    found = counted(monkeypatch)
    made, cache = watched(toy("full"), window=1 << 20, track=1 << 20)
    assert len(made.output) == 24
    assert budget / 2 < max(found) <= budget
    assert 0 < cache._tracked.shares.nbytes <= budget / 2


def test_what_would_need_more_than_the_budget_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache is refused where one mask and one token of each layer exceed the budget.

    With two layers these are three rows.
    """
    monkeypatch.setattr(elastic, "BUDGET", 3 * 2 * WHOLE * 4 - 1)
    with pytest.raises(InvalidInput, match=f"elastic.*at most {WHOLE - 1} positions"):
        run(toy("full"), "static(cache=elastic)")
    assert len(run(toy("full"), "static(cache=elastic)", max_tokens=23).output) == 23
    assert len(run(toy("block"), "static(cache=elastic)").output) == 24


def test_the_budget_of_a_large_model() -> None:
    """The budget admits LLaDA-8B, with 32 layers of 32 heads, up to the documented length."""
    for positions in (1985, 1986, 1 << 20):
        canvas = Canvas(np.zeros(8, np.int32), positions - 8, MASK)
        canvas.layers = canvas.heads = 32
        cache = ElasticCache()
        if positions == 1985:
            cache.start(canvas)
        else:
            with pytest.raises(InvalidInput, match="at most 1985 positions"):
                cache.start(canvas)


def test_above_one_no_weights_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic, "BUDGET", 0)
    found = counted(monkeypatch)
    backend = toy("full")
    backend.gives_attention = False
    assert len(run(backend, "static(cache=elastic(threshold=1.01))").output) == 24
    assert set(found) == {0}
