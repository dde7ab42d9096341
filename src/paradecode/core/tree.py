"""The draft of every autoregressive method: a tree of candidate tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import DecoderError

ROOT = -1
"""Parent of the nodes at depth 1: the last committed token."""


_NO_OPINION = np.empty(0, np.float32)


@dataclass(frozen=True, eq=False)
class TokenTree:
    """Candidate continuations of a sequence; a chain is a tree of width one.

    Nodes are ordered so that a parent comes before its children. The root is the last committed
    token; it is not a node.

    Attributes:
        tokens: int32 [M], the token of each node.
        parents: int32 [M], index of each node's parent, or ``ROOT``.
        estimates: float32 [M], the drafter's probability that a node is accepted *given that its
            parent is*; ones when the drafter has no opinion.

    Raises:
        DecoderError: if shapes differ, or a parent does not come before its child (which also
            excludes cycles).
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    estimates: NDArray[np.float32] = field(default_factory=lambda: _NO_OPINION)

    def __post_init__(self) -> None:
        tokens = np.ascontiguousarray(self.tokens, dtype=np.int32)
        parents = np.ascontiguousarray(self.parents, dtype=np.int32)
        estimates = (
            np.ones(len(tokens), np.float32)
            if self.estimates is _NO_OPINION
            else np.ascontiguousarray(self.estimates, dtype=np.float32)
        )
        if not (tokens.ndim == 1 and tokens.shape == parents.shape == estimates.shape):
            raise DecoderError(
                f"token tree: shapes {tokens.shape}, {parents.shape}, {estimates.shape} differ; "
                "tokens, parents and estimates are vectors of one length"
            )
        if len(parents) and (parents.min() < ROOT or (parents >= np.arange(len(parents))).any()):
            raise DecoderError(
                f"token tree: parents {parents.tolist()} are not in order; "
                "every parent must be -1 (root) or come before its child"
            )
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "parents", parents)
        object.__setattr__(self, "estimates", estimates)

    @classmethod
    def chain(
        cls, tokens: Sequence[int] | NDArray[np.int32], estimates: Iterable[float] | None = None
    ) -> TokenTree:
        """A tree of width one: each token follows the one before it."""
        count = len(tokens)
        return cls(
            np.asarray(tokens, np.int32),
            np.arange(-1, count - 1, dtype=np.int32),
            _NO_OPINION if estimates is None else np.asarray(list(estimates), np.float32),
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depths(self) -> NDArray[np.int32]:
        """int32 [M]: 1 for children of the root."""
        depths = np.zeros(len(self), np.int32)
        for node, parent in enumerate(self.parents):
            depths[node] = 1 if parent == ROOT else depths[parent] + 1
        return depths

    @cached_property
    def is_chain(self) -> bool:
        return bool((self.parents == np.arange(-1, len(self) - 1)).all())

    @cached_property
    def visibility(self) -> NDArray[np.bool_]:
        """bool [M, M]: entry (i, j) says that node i sees node j (an ancestor or itself)."""
        if self.is_chain:
            return np.tri(len(self), dtype=bool)
        seen = np.eye(len(self), dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent != ROOT:
                seen[node] |= seen[parent]
        return seen

    @cached_property
    def reach(self) -> NDArray[np.float32]:
        """float32 [M]: probability that a node is accepted: the product over its path."""
        reach = self.estimates.copy()
        for node, parent in enumerate(self.parents):
            if parent != ROOT:
                reach[node] *= reach[parent]
        return reach

    @cached_property
    def _children(self) -> dict[tuple[int, int], int]:
        children: dict[tuple[int, int], int] = {}
        for node, (parent, token) in enumerate(
            zip(self.parents.tolist(), self.tokens.tolist(), strict=True)
        ):
            children.setdefault((parent, token), node)
        return children

    def child(self, node: int, token: int) -> int | None:
        """The first child of ``node`` (or of ``ROOT``) that carries ``token``, if there is one."""
        return self._children.get((node, token))

    def select(self, nodes: NDArray[np.bool_]) -> TokenTree:
        """The subtree of the marked nodes (bool [M]); a node survives only with its ancestors."""
        keep = nodes.copy()
        for node, parent in enumerate(self.parents):
            if parent != ROOT and not keep[parent]:
                keep[node] = False
        renumber = np.full(len(self) + 1, ROOT, np.int32)
        renumber[:-1][keep] = np.arange(int(keep.sum()))
        return TokenTree(self.tokens[keep], renumber[self.parents[keep]], self.estimates[keep])

    def clip(self, depth: int) -> TokenTree:
        """The nodes that are at most ``depth`` tokens below the root."""
        if len(self) == 0 or int(self.depths.max()) <= depth:
            return self
        return self.select(self.depths <= depth)

    def best(self, count: int) -> TokenTree:
        """The ``count`` nodes most likely to be accepted, ancestors included; ties by order."""
        if len(self) <= count:
            return self
        keep = np.zeros(len(self), bool)
        keep[np.argsort(-self.reach, kind="stable")[: max(count, 0)]] = True
        return self.select(keep)


EMPTY = TokenTree.chain([])
"""No draft: verification degenerates to a plain step."""
