"""Builds spans of plain rows, and Hypothesis strategies that damage a span."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from paradecode.backends.interface import PAGE, Span
from paradecode.core.layers import Half
from paradecode.models.config import ModelConfig

CAPACITY = 2 * PAGE
"""Number of slots in the page table of a span that is going to be damaged."""


def span(pages: Sequence[int], tokens: Sequence[int], context: int = 0, **options: object) -> Span:
    """Return causal rows after ``context``, stored in the next slots, with all their logits."""
    count = len(tokens)
    after = np.arange(context, context + count, dtype=np.int32)
    fields: dict = {
        "pages": np.asarray(pages, np.int32), "tokens": np.asarray(tokens, np.int32),
        "positions": after, "slots": after.copy(), "context": context,
        "logits": np.arange(count, dtype=np.int32),
    }  # fmt: skip
    return Span(**{**fields, **options})


numbers = st.one_of(
    st.integers(-3, 12), st.integers(CAPACITY - 2, CAPACITY + 2),
    st.sampled_from([255, 256, 1 << 31, -(1 << 31), 1 << 62]),
)  # fmt: skip
kinds = st.sampled_from([np.int32, np.int64, np.int16, np.uint32, np.float32, np.bool_])


@st.composite
def vectors(draw: st.DrawFn) -> np.ndarray:
    shape = draw(st.sampled_from([(), (0,), (1,), (2,), (3,), (4,), (1, 3), (3, 1), (0, 3)]))
    flat = [draw(numbers) for _ in range(int(np.prod(shape)))]
    return np.array(flat, np.int64).astype(draw(kinds)).reshape(shape)


@st.composite
def matrices(draw: st.DrawFn) -> np.ndarray:
    shape = draw(
        st.sampled_from([(), (3,), (3, 5), (3, 3), (2, 5), (3, 32), (2, 32), (3, 32, 1), (3, 64)])
    )
    return np.full(shape, draw(st.sampled_from([0, 1])), draw(kinds))


@st.composite
def damaged(draw: st.DrawFn, span: Span, config: ModelConfig) -> Span:
    """Return ``span`` with one to three of its fields replaced by other values."""
    numbers = st.integers(-1, config.layers)
    halves = st.builds(Half, numbers, st.sampled_from(["attention", "mlp", "both"]))
    odd = st.sampled_from([True, 0.0, "0", (0, "mlp"), Half("0", "mlp"), 1 << 70])
    fields = {
        **dict.fromkeys(["pages", "tokens", "positions", "slots", "logits", "visible", "tail",
                         "tail_positions"], vectors()),
        "context": st.integers(-2, CAPACITY + 2),
        "attention": st.one_of(st.none(), vectors()),
        "mask": st.one_of(st.none(), matrices()),
        "hidden": st.lists(numbers | odd, max_size=3).map(tuple),
        "layers": st.none() | st.lists(numbers | halves | odd, max_size=4).map(tuple) | odd,
        "embeddings": st.one_of(st.none(), matrices()),
        "resume": st.one_of(st.none(), matrices()),
    }  # fmt: skip
    names = draw(st.lists(st.sampled_from(sorted(fields)), min_size=1, max_size=3))
    return replace(span, **{name: draw(fields[name], label=name) for name in names})
