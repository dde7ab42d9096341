"""Gemma 4's layers, which DiffusionGemma shares (see :mod:`paradecode.models.parts`)."""

from __future__ import annotations

from collections.abc import Collection

from paradecode.models.mixture import Mixture
from paradecode.models.parts import Attention, Feed, Layer, Part
from paradecode.models.rope import Rope


def wide_rope(theta: float, head_dim: int, turned: int) -> Rope:
    """Return the rotary positions of layers with full attention.

    Of the ``head_dim / 2`` pairs, which lie over the whole head, only the first ``turned`` turn.
    """
    return Rope(theta=theta, dim=head_dim, still=head_dim // 2 - turned)


def gemma4_layers(
    layers: int, full: Collection[int], near: Attention, far: Attention, size: int,
    mixture: Mixture | None,
) -> tuple[Layer, ...]:  # fmt: skip
    """Return the layers of a Gemma 4 with experts beside an MLP.

    Args:
        full: layers with full attention; their keys are also their values.
        near: attention of the layers with a window; only its sizes, window and positions count.
        far: the same of the layers with full attention.
        size: inner width of the MLP.
    """

    def layer(index: int) -> Layer:
        wide = index in full
        given = far if wide else near
        attention = Attention(
            given.heads, given.kv_heads, given.head_dim, norm="both", rope=given.rope,
            window=given.window, scale=1.0, qk_norm="head", value_norm=True, keys_as_values=wide,
        )  # fmt: skip
        feed: Part = Feed(size, norm="both", activation="gelu_tanh", mixture=mixture)
        return Layer((attention, feed), scaled=True)

    return tuple(map(layer, range(layers)))
