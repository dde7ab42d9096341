"""Token trees: the draft of every autoregressive method is a tree of candidate tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import DecoderError


class Mode(Enum):
    """The way in which the children of a node were chosen."""

    DET = "det"
    """Chosen without chance; a verifier treats each child as certain (q is one-hot)."""
    IID = "iid"
    """Drawn one after another from q with replacement; children may be equal."""
    SWOR = "swor"
    """Drawn one after another from q without replacement; children are distinct."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """The distribution q from which a node's children were sampled.

    Attributes:
        mode: IID or SWOR.
        ids: int32 [n], the tokens of q, ascending.
        probabilities: float64 [n], the probabilities of ``ids``: the same numbers that the draw
            used.
        order: all drawn tokens in order, if equal draws share one node; None if every draw has its
            own node.
    """

    mode: Mode
    ids: NDArray[np.int32]
    probabilities: NDArray[np.float64]
    order: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        ids = np.asarray(self.ids, np.int32)
        q = np.asarray(self.probabilities, np.float64)
        if ids.shape != q.shape or ids.ndim != 1 or not (q >= 0).all() or not 0 < q.sum() < np.inf:
            raise DecoderError("drawn children: q needs one finite weight >= 0 for each token id")
        if len(ids) > 1 and not (ids[1:] > ids[:-1]).all():
            raise DecoderError("drawn children: the token ids of q must be distinct and ascending")
        if self.mode is Mode.DET:
            raise DecoderError("drawn children: leave nodes that were not drawn out of ``drawn``")
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "probabilities", q / q.sum())

    def goes_on_as(self, other: Drawn) -> bool:
        """Return whether ``other`` may continue these draws.

        Nodes that equal draws share must be drawn in one call.
        """
        return self is other or (
            self.mode is other.mode
            and self.order is other.order is None
            and np.array_equal(self.ids, other.ids)
            and np.array_equal(self.probabilities, other.probabilities)
        )

    def row(self, vocabulary: int) -> NDArray[np.float64]:
        """Return q over the whole vocabulary, float64 [vocabulary], zeros included."""
        row = np.zeros(vocabulary)
        row[self.ids] = self.probabilities
        return row

    def of(self, token: int) -> float:
        """Return the probability q of one token."""
        place = int(np.searchsorted(self.ids, token))
        known = place < len(self.ids) and self.ids[place] == token
        return float(self.probabilities[place]) if known else 0.0


ROOT = -1
"""The parent of nodes at depth 1, which stands for the last committed token."""


_NO_OPINION = np.empty(0, np.float32)


@dataclass(frozen=True, eq=False)
class TokenTree:
    """Candidate continuations of a sequence; a chain is a tree of width one.

    Nodes are ordered so that a parent comes before its children. The root is the last committed
    token; it is not a node.

    Attributes:
        tokens: int32 [M], the token of each node.
        parents: int32 [M], index of each node's parent, or ``ROOT``.
        estimates: float32 [M], the drafter's probability that a node is accepted *if its parent
            is*; ones if the drafter has no estimate. This probability differs from q.
        drawn: for nodes (or ``ROOT``) whose children were sampled, the distribution q. The children
            of all other nodes are DET. A verifier that tests p / q needs three conditions: nodes
            are in drawing order; no drawn node was left out; and no decision (where to draw next,
            whether a node is drawn or DET, when to stop) depended on a later draw. A tree that
            violates one of them must not have ``drawn``. Without ``drawn`` verification is exact
            for every tree.

    :meth:`clip` and :meth:`first` preserve these conditions, because they cut by depth and in
    drawing order. :meth:`select` and :meth:`best` may depend on drawn tokens, so they return a tree
    without ``drawn``, even if they drop no node.

    Raises:
        DecoderError: if shapes differ, or a parent does not come before its child (a cycle is such
            a case).
    """

    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    estimates: NDArray[np.float32] = field(default_factory=lambda: _NO_OPINION)
    drawn: Mapping[int, Drawn] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tokens, parents = _int32("tokens", self.tokens), _int32("parents", self.parents)
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
        for node in self.drawn:
            if not ROOT <= node < len(tokens):
                raise DecoderError(f"token tree: children were drawn for node {node}, not in it")
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "parents", parents)
        object.__setattr__(self, "estimates", estimates)

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int] | NDArray[np.int32],
        estimates: Iterable[float] | float | None = None,
    ) -> TokenTree:
        """Make a tree of width one: each token follows the one before it.

        Args:
            estimates: one for each token, or one for all; None means 1.
        """
        count = len(tokens)
        if estimates is None or isinstance(estimates, (int, float)):
            values = np.full(count, 1.0 if estimates is None else estimates, np.float32)
        elif isinstance(estimates, np.ndarray):
            values = estimates.astype(np.float32, copy=False)
        else:
            values = np.asarray(list(estimates), np.float32)
        ids = _int32("tokens", tokens)
        if ids.ndim != 1 or values.shape != ids.shape:
            return cls(ids, _chain_parents(count), values)  # Raises.
        return cls._of_chain(ids, values)

    @classmethod
    def _of_chain(cls, tokens: NDArray[np.int32], estimates: NDArray[np.float32]) -> TokenTree:
        """Make a chain without checks, for speed: most drafts are chains."""
        tree = object.__new__(cls)
        tree.__dict__.update(
            tokens=tokens, parents=_chain_parents(len(tokens)), estimates=estimates,
            drawn={}, is_chain=True,
        )  # fmt: skip
        return tree

    @classmethod
    def siblings(
        cls, tokens: NDArray[np.int32], estimates: NDArray[np.float32] = _NO_OPINION
    ) -> TokenTree:
        """Make a tree of depth one: all tokens are children of the root."""
        return cls(tokens, np.full(len(tokens), ROOT, np.int32), estimates)

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depths(self) -> NDArray[np.int32]:
        """Int32 [M]: depth of each node; children of the root have depth 1."""
        if self.is_chain:
            return np.arange(1, len(self) + 1, dtype=np.int32)
        depths: list[int] = []
        for parent in self.parents.tolist():
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return np.array(depths, np.int32)

    @cached_property
    def is_chain(self) -> bool:
        return bool((self.parents == _chain_parents(len(self))).all())

    @cached_property
    def visibility(self) -> NDArray[np.bool_]:
        """Bool [M, M]: entry (i, j) is True if node j is node i or one of its ancestors."""
        if self.is_chain:
            return np.tri(len(self), dtype=bool)
        seen = np.eye(len(self), dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent != ROOT:
                seen[node] |= seen[parent]
        return seen

    @cached_property
    def reach(self) -> NDArray[np.float32]:
        """Float32 [M]: the probability that a node and all its ancestors are accepted."""
        if self.is_chain:
            return np.multiply.accumulate(self.estimates)
        return self.along_paths(self.estimates)

    def along_paths(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return each node's value times all its ancestors' values; ``values`` is [M]."""
        product = values.copy()
        for node, parent in enumerate(self.parents.tolist()):
            if parent != ROOT:
                product[node] *= product[parent]
        return product

    @cached_property
    def _children(self) -> dict[tuple[int, int], int]:
        children: dict[tuple[int, int], int] = {}
        for node, (parent, token) in enumerate(
            zip(self.parents.tolist(), self.tokens.tolist(), strict=True)
        ):
            children.setdefault((parent, token), node)
        return children

    def child(self, node: int, token: int) -> int | None:
        """Return the first child of ``node`` (or of ``ROOT``) with the token ``token``, if any."""
        return self._children.get((node, token))

    def path(self, node: int) -> list[int]:
        """Return the nodes from depth 1 down to ``node``; an empty list for ``ROOT``."""
        if self.is_chain:
            return list(range(node + 1))
        path = []
        while node != ROOT:
            path.append(node)
            node = int(self.parents[node])
        return path[::-1]

    def tokens_to(self, node: int) -> list[int]:
        """Return the tokens from depth 1 down to ``node``; an empty list for ``ROOT``."""
        return self.tokens[self.path(node)].tolist()

    def follow(self, tokens: Iterable[int]) -> list[int]:
        """Follow ``tokens`` from the root, and return the nodes up to the first missing child."""
        path: list[int] = []
        node = ROOT
        for token in tokens:
            child = self._children.get((node, token))
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def locate(self, child: Callable[[int, int], int | None]) -> dict[int, int]:
        """Map each node to the other tree's node with the same path, and ``ROOT`` to ``ROOT``.

        The result has no entry for a path that the other tree lacks.

        Args:
            child: :meth:`child` of the other tree or of a builder.
        """
        found = {ROOT: ROOT}
        for node, (parent, token) in enumerate(
            zip(self.parents.tolist(), self.tokens.tolist(), strict=True)
        ):
            if parent in found:
                theirs = child(found[parent], token)
                if theirs is not None:
                    found[node] = theirs
        return found

    @cached_property
    def _offspring(self) -> dict[int, list[int]]:
        offspring: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents.tolist()):
            offspring.setdefault(parent, []).append(node)
        return offspring

    def children(self, node: int) -> list[int]:
        """Return the children of ``node`` (or of ``ROOT``) in drawing order.

        A node that equal draws share is listed once for each draw.
        """
        drawn = self.drawn.get(node)
        if drawn is not None and drawn.order is not None:
            return [self._children[node, token] for token in drawn.order]
        return self._offspring.get(node, [])

    def mode(self, node: int) -> Mode:
        """Return how the children of ``node`` were chosen."""
        drawn = self.drawn.get(node)
        return Mode.DET if drawn is None else drawn.mode

    @property
    def sampled(self) -> bool:
        """True if any node's children were sampled from a distribution."""
        return bool(self.drawn)

    def determined(self) -> TokenTree:
        """Return the same nodes, all DET; verification is then exact for any tree."""
        return replace(self, drawn={}) if self.drawn else self

    def select(self, nodes: NDArray[np.bool_]) -> TokenTree:
        """Return the tree of the selected nodes whose ancestors are all selected.

        ``nodes`` is bool [M], True for selected nodes. It may depend on drawn tokens, so the result
        is :meth:`determined`.
        """
        return self.determined()._take(nodes)

    def first(self, count: int) -> TokenTree:
        """Return the tree of the first ``count`` nodes; ``count`` must not depend on drawn tokens.

        If equal draws share a node, and there were more draws than ``count``, the order of some
        draws is unknown, and the result is :meth:`determined`.
        """
        orders = [drawn.order for drawn in self.drawn.values() if drawn.order is not None]
        shared = sum(len(order) - len(set(order)) for order in orders)
        tree = self.determined() if orders and len(self) + shared > count else self
        return tree if len(tree) <= count else tree._take(np.arange(len(tree)) < count)

    def clip(self, depth: int) -> TokenTree:
        """Return the tree of the nodes that are at most ``depth`` tokens below the root."""
        if len(self) <= depth or int(self.depths.max()) <= depth:
            return self
        return self._take(self.depths <= depth)

    def capped(self, count: int) -> TokenTree:
        """Return the ``count`` best nodes, or the first ones of a sampled tree.

        A sampled tree is not cut by rank, because its nodes would no longer have their
        distribution.
        """
        return self.first(count) if self.sampled else self.best(count)

    def best(self, count: int) -> TokenTree:
        """Return the ``count`` nodes most likely to be accepted; ties go to the earlier node.

        Ranking depends on drawn tokens, so the result is :meth:`determined`.
        """
        tree = self.determined()
        if len(tree) <= count:
            return tree
        if tree.is_chain and (tree.estimates <= 1.0).all():  # Later nodes never rank higher.
            count = max(count, 0)
            return self._of_chain(tree.tokens[:count], tree.estimates[:count])
        keep = np.zeros(len(tree), bool)
        keep[np.argsort(-tree.reach, kind="stable")[: max(count, 0)]] = True
        return tree._take(keep)

    def extend(self, tree: TokenTree, under: NDArray[np.int32] | None = None) -> TokenTree:
        """Return a tree of this tree's nodes and then the nodes of ``tree``; all nodes are DET.

        Args:
            under: int32 [len(tree)], the new parent of each root of ``tree``; entries of other
                nodes are not read. None means ``ROOT``.

        Raises:
            DecoderError: if a node's parent would be the node itself or a later one.
        """
        if len(self) == 0 and under is None:
            return tree.determined()
        roots = np.full(len(tree), ROOT, np.int32) if under is None else under
        if len(tree) == 1 and roots[0] == len(self) - 1 and self.is_chain:
            estimates = np.concatenate([self.estimates, tree.estimates])
            return self._of_chain(np.concatenate([self.tokens, tree.tokens]), estimates)
        parents = np.where(tree.parents == ROOT, roots, tree.parents + len(self))
        return TokenTree(
            np.concatenate([self.tokens, tree.tokens]),
            np.concatenate([self.parents, parents]),
            np.concatenate([self.estimates, tree.estimates]),
        )

    def _take(self, nodes: NDArray[np.bool_]) -> TokenTree:
        keep = nodes.copy()
        for node, parent in enumerate(self.parents.tolist()):
            if parent != ROOT and not keep[parent]:
                keep[node] = False
        renumber = np.full(len(self) + 1, ROOT, np.int32)
        renumber[:-1][keep] = np.arange(int(keep.sum()))
        parents = renumber[self.parents[keep]]
        internal = set(parents.tolist())
        kept = {ROOT, *np.flatnonzero(keep).tolist()}
        places = ((node, int(renumber[node]), drawn) for node, drawn in self.drawn.items())
        drawn = {new: drawn for node, new, drawn in places if node in kept and new in internal}
        return TokenTree(self.tokens[keep], parents, self.estimates[keep], drawn)


_CHAIN = np.arange(-1, 255, dtype=np.int32)
_CHAIN.flags.writeable = False


def _chain_parents(count: int) -> NDArray[np.int32]:
    return _CHAIN[:count] if count <= len(_CHAIN) else np.arange(-1, count - 1, dtype=np.int32)


def _int32(name: str, values: object) -> NDArray[np.int32]:
    array = np.asarray(values)
    if array.dtype == np.int32 or array.size == 0:
        return np.ascontiguousarray(array, np.int32)
    if array.dtype.kind not in "iu" or array.min() < -(1 << 31) or array.max() >= 1 << 31:
        raise DecoderError(f"token tree: {name} must be whole numbers of 32 bits")
    return np.ascontiguousarray(array, np.int32)


EMPTY = TokenTree.chain([])
"""The empty draft, with which a verification is a plain decoding step."""
