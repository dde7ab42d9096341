"""Compares Window-Diffusion, ReCAP and DCD with references that follow their algorithms.

The references are written from the papers and the released code, over keys and values by position.
They share nothing with the engine but the arithmetic of a layer.
"""

from typing import Any

import numpy as np
import pytest
from canvases import run
from hub_folders import tiny_model

from paradecode.backends import open_backend

torch = pytest.importorskip("torch")

LENGTH = 20
PROMPTS = ([5, 17, 40, 8, 9, 33, 2], [70] * 9)


class Book:
    """A canvas of LLaDA, and for every layer the keys and values of each position.

    Attributes:
        masked: positions without a token, ascending.
        rows: number of rows that were computed.
    """

    def __init__(self, prompt: list[int]) -> None:
        from paradecode.backends.torch.model import Transformer

        config, weights = tiny_model("llada")
        self.model = Transformer(config, weights, torch.float64, torch.device("cpu"))
        self.mask = config.mask_token
        self.tokens = [*prompt, *[self.mask] * LENGTH]
        self.masked = list(range(len(prompt), len(prompt) + LENGTH))
        self.keys: list[dict[int, Any]] = [{} for _ in range(config.layers)]
        self.steps: list[list[list[int]]] = []
        self.start, self.rows = len(prompt), 0

    def forward(self, rows, seen, store=True):
        """Return position -> proposal and confidence of the masked rows.

        The rows see one another and ``seen``.
        """
        fed = sorted(rows)
        others = sorted(set(seen) - set(fed))
        self.rows += len(fed)

        def attend(layer: int, q: Any, k: Any, v: Any) -> Any:
            kept = [self.keys[layer][at] for at in others]
            every_k = torch.stack([*(pair[0] for pair in kept), *k])
            every_v = torch.stack([*(pair[1] for pair in kept), *v])
            if store:
                self.keys[layer].update({at: (k[i], v[i]) for i, at in enumerate(fed)})
            group = q.shape[1] // k.shape[1]
            wide_k = every_k.repeat_interleave(group, 1)
            wide_v = every_v.repeat_interleave(group, 1)
            scores = torch.einsum("qhd,khd->hqk", q, wide_k) / q.shape[-1] ** 0.5
            return torch.einsum("hqk,khd->qhd", scores.softmax(-1), wide_v)

        with torch.no_grad():
            x = self.model.embed(torch.tensor([self.tokens[at] for at in fed]))
            cos, sin = self.model.angles(torch.tensor(fed))
            for layer in range(self.model.config.layers):
                x = self.model.layer(layer, x, cos, sin, attend)
            logits = self.model.logits(x)
        logits[:, self.mask] = -torch.inf
        chance, best = logits.softmax(-1).max(-1)
        return {
            at: (int(best[i]), float(chance[i])) for i, at in enumerate(fed) if at in self.masked
        }

    def commit(self, found: dict[int, tuple[int, float]], count: int) -> list[int]:
        """Decide the ``count`` proposals of highest confidence, and return their positions."""
        order = sorted(found, key=lambda at: (-found[at][1], at))[:count]
        for at in order:
            self.tokens[at] = found[at][0]
            self.masked.remove(at)
        self.steps.append([[at - self.start, self.tokens[at]] for at in order])
        return order


def window_by_the_book(prompt: list[int], active: int, buffer: int, refresh: int) -> Book:
    """Decode in phases: a forward over the context, then forwards of the next masks against it."""
    book = Book(prompt)
    while book.masked:
        context = set(range(len(book.tokens))) - set(book.masked[buffer:])
        first = book.commit(book.forward(context, ()), 1)
        recent: list[int] = []  # Decided in this phase by normal forwards.
        for _ in range(refresh - 1):
            now = book.masked[:active]
            if not now or not context.issuperset(now):
                break
            recent += book.commit(book.forward({*now, *recent, *first}, context), 1)
            first = []
    return book


def recap_by_the_book(prompt: list[int], local: int, group: int, count: int) -> Book:
    """Decode with full forwards that choose a group, and local forwards that fill it alone."""
    book = Book(prompt)
    everywhere = range(len(book.tokens))
    while book.masked:
        found = book.forward(everywhere, ())
        decided = book.commit(found, count)
        rest = sorted(book.masked, key=lambda at: (-found[at][1], at))
        left = set(rest[: group or local * count])
        for _ in range(local):
            if not left:
                break
            new = book.forward({*left, *decided}, everywhere, store=False)
            done = book.commit({at: new[at] for at in left}, count)
            left -= set(done)
            decided += done
    return book


def delayed_by_the_book(prompt: list[int], masks: int, delay: int, refresh: int) -> Book:
    """Decode with DCD's dual cache.

    Each forward computes from where the last window began to where this one ends, and a margin.
    """
    book = Book(prompt)
    total, before, since = len(book.tokens), len(prompt), refresh
    right = 0
    while book.masked:  # The window's end never moves back.
        left, right = book.masked[0], max(right, book.masked[:masks][-1] + 1)
        rows = range(total)
        if since < refresh:
            rows = range(max(before - delay, len(prompt)), min(right + delay, total))
        else:
            since = 0
        found = book.forward(rows, range(total))
        book.commit({at: found[at] for at in found if at < right}, 1)
        before, since = left, since + 1
    return book


def compared(prompt: list[int], spec: str, book: Book) -> None:
    backend = open_backend("torch", *tiny_model("llada"), dtype="fp64", threads=1)
    made = run(backend, spec, prompt, LENGTH)
    steps = [step.canvas for step in made.trace]
    ours = [[list(pair) for pair in zip(s.offsets, s.tokens, strict=True)] for s in steps]
    assert [sorted(step) for step in ours] == [sorted(step) for step in book.steps]
    assert made.rows == book.rows


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize(
    ("active", "buffer", "refresh"), [(3, 8, 5), (4, 4, 3), (1, 20, 20), (6, 12, 2), (2, 5, 9)]
)
def test_window(prompt: list[int], active: int, buffer: int, refresh: int) -> None:
    settings = f"active={active},buffer={buffer},refresh={refresh}"
    book = window_by_the_book(prompt, active, buffer, refresh)
    compared(prompt, f"static(blocks=full,cache=window({settings}))", book)


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize(("local", "group", "steps"), [(1, 0, 20), (3, 0, 10), (2, 7, 20)])
def test_recap(prompt: list[int], local: int, group: int, steps: int) -> None:
    book = recap_by_the_book(prompt, local, group, LENGTH // steps)
    spec = f"static(steps={steps},blocks=full,cache=recap(local={local},group={group}))"
    compared(prompt, spec, book)


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize(("masks", "delay", "refresh"), [(4, 2, 8), (3, 0, 32), (6, 5, 3)])
def test_delayed(prompt: list[int], masks: int, delay: int, refresh: int) -> None:
    book = delayed_by_the_book(prompt, masks, delay, refresh)
    cache = f"delayed(delay={delay},refresh={refresh})"
    compared(prompt, f"static(blocks=sliding(masks={masks},width=4096),cache={cache})", book)


def test_the_caches_change_what_is_decided() -> None:
    plain = Book(PROMPTS[0])
    while plain.masked:
        plain.commit(plain.forward(range(len(plain.tokens)), ()), 1)
    assert window_by_the_book(PROMPTS[0], 3, 8, 5).steps != plain.steps
    assert recap_by_the_book(PROMPTS[0], 3, 0, 1).steps != plain.steps
    assert delayed_by_the_book(PROMPTS[0], 20, 2, 32).steps != plain.steps
    assert np.all([len(step) == 1 for step in plain.steps])
