"""Base class of drafters that run a model and grow a tree level by level."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Forward, Reply, TokenSequence, Verdict
from paradecode.core.logits import Logits
from paradecode.core.tree import EMPTY, ROOT, Mode, TokenTree
from paradecode.core.tree_builder import Ids, TreeBuilder, Weights, distribution, draw, draw_pooled
from paradecode.methods.draft.acceptance import Calibration
from paradecode.methods.draft.candidates import candidates, processed
from paradecode.methods.draft.contracts import Budget, Drafter, Proposal
from paradecode.methods.draft.greedy_draws import Draws
from paradecode.methods.draft.source import DraftSource, ExitRows

Law = tuple[Ids, Ids, Weights]
"""The distribution after a node: tokens in draft ids and in target ids, and their probabilities."""
NO_LAW: Law = np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0)


@dataclass(kw_only=True)
class ModelDrafter(Drafter):
    """Base class of drafters that grow a tree with a second model or some layers of the target.

    With a temperature and a verifier that allows it (``offer.noise``), candidates are ranked by the
    draft's log-probability plus the random numbers with which the target will sample. Where the two
    models agree, they then sample the same token, as greedy choices would.

    For a verifier that tests p / q, children are sampled from q instead, in the mode that the
    verifier expects (``offer.draws``), and no sampled child is dropped again.
    """

    _calibration: Calibration = field(default_factory=Calibration, init=False, repr=False)
    _tree: TokenTree = field(default=EMPTY, init=False, repr=False)
    _raw: list[float] = field(default_factory=list, init=False, repr=False)
    _own: list[int] = field(default_factory=list, init=False, repr=False)
    _known: dict[int, Law] = field(default_factory=dict, init=False, repr=False)
    _copies: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    _exit: ExitRows | None = field(default=None, init=False, repr=False)

    def grow(
        self, seq: TokenSequence, limit: int, source: DraftSource, width: int,
        calibration: Calibration | None = None, budget: Budget | None = None,
    ) -> Proposal:  # fmt: skip
        """Grow a tree of at most ``limit`` nodes with ``width`` candidates for each node.

        Args:
            source: the model or the layers that draft.
            calibration: corrects the source's probabilities; None leaves the present one in use.
            budget: decides about levels and nodes; None means the loop's budget.
        """
        self._calibration = calibration or self._calibration
        budget = budget or self.offer.budget
        rows = source.rows(seq, limit)
        if rows.depth < 1:
            return EMPTY
        leaves = budget.expand(seq, EMPTY, np.array([ROOT], np.int32), rows.seconds)
        if len(leaves) == 0:
            return EMPTY
        budget.charge(rows.reading, sunk=True)
        self._forget()
        self._exit = rows.exit
        drawn = TreeBuilder()
        drawing = budget.drawing(drawn, limit)
        draws = self.offer.draws is not None and seq.sampler.warp.temperature > 0
        for level in range(1, rows.depth + 1):
            seen = yield from rows.look(self._tree, leaves, self._own, budget.reads_draft)
            if budget.reads_draft:
                budget.see_draft(seq, self._tree, leaves, seen)
                yield from budget.prepare(seq, self._tree)
            if draws:
                laws = self._laws(seq, rows.model, leaves, seen.logits)
                if drawing is not None:
                    fresh = self._draw_with(seq, drawing, laws)
                else:
                    fresh = self._draw(seq, budget, drawn, laws, width, limit)
            else:
                fresh = self._choose(seq, rows.model, budget, leaves, seen.logits, width)
            if level == rows.depth or len(fresh) == 0:
                break
            yield from budget.prepare(seq, self._tree)
            leaves = budget.expand(seq, self._tree, fresh, rows.seconds)[: rows.room]
            if len(leaves) == 0:
                break
        return self._tree if draws else self._tree.best(limit)

    def observe(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        """Learn which guesses were right, including guesses that were never verified."""
        tree = self._tree
        path = [ROOT, *tree.follow(verdict.tokens)]
        judged = set(path[: len(verdict.tokens)])
        nodes = [n for n, parent in enumerate(tree.parents.tolist()) if parent in judged]
        if nodes:
            accepted = [index for index, node in enumerate(nodes) if node in path]
            later = [tree.children(int(tree.parents[node]))[0] != node for node in nodes]
            raw = np.array([self._raw[node] for node in nodes])
            self._calibration.update(raw, accepted, np.array(later))
        self._forget()

    def score(self, forward: Forward) -> Generator[Forward, Reply, Reply]:
        if self._exit is None:
            return (yield forward)
        return (yield from self._exit.score(forward))

    def confidence(self, node: int) -> float:
        """Return the uncorrected probability that the model gave to a node of the growing tree."""
        return self._raw[node]

    def _forget(self) -> None:
        self._tree, self._raw, self._own = EMPTY, [], []
        self._known, self._copies, self._exit = {}, {ROOT: 1}, None

    def _choose(
        self, seq: TokenSequence, model: str, budget: Budget,
        leaves: NDArray[np.int32], logits: Logits, width: int,
    ) -> NDArray[np.int32]:  # fmt: skip
        """Add the most probable children of each leaf, and return the new nodes."""
        paths = [self._tree.tokens_to(leaf) for leaf in leaves.tolist()]
        vocabulary = seq.about(model).vocabulary
        found = candidates(seq, logits, paths, width, vocabulary, self.offer.noise)
        return self._grown(seq, budget, leaves, *found)

    def _grown(
        self, seq: TokenSequence, budget: Budget, leaves: NDArray[np.int32],
        own: NDArray[np.int32], ids: NDArray[np.int32], raw: NDArray[np.floating],
    ) -> NDArray[np.int32]:  # fmt: skip
        """Add the candidates that the budget wants, and return the new nodes, most promising first.

        ``own``, ``ids`` and ``raw`` are [len(leaves), width]: draft ids, target ids and
        probabilities of each leaf's candidates.
        """
        tree = self._tree
        later = np.broadcast_to(np.arange(raw.shape[1]) > 0, raw.shape)
        estimates = self._calibration.of(raw, later).astype(np.float32)
        at = np.nonzero(budget.grow(seq, tree, leaves, estimates) & (raw > 0))
        self._own += own[at].tolist()
        self._raw += raw[at].tolist()
        self._tree = tree.extend(TokenTree.siblings(ids[at], estimates[at]), leaves[at[0]])
        return self._since(len(tree))

    def _laws(
        self, seq: TokenSequence, model: str, leaves: NDArray[np.int32], logits: Logits
    ) -> dict[int, Law]:
        """Return the distribution from which each leaf's children are sampled.

        Tokens are in the order of the target's ids. A leaf that nothing may follow has no tokens.
        """
        paths = [self._tree.tokens_to(leaf) for leaf in leaves.tolist()]
        logits, vocabulary = processed(seq, logits, paths, seq.about(model).vocabulary)
        best = logits.top_k(1)[1][:, 0].tolist()
        laws: dict[int, Law] = {}
        for row, leaf in enumerate(leaves.tolist()):
            if best[row] == -np.inf:
                laws[leaf] = NO_LAW
                continue
            ids, q = distribution(logits, row, seq.sampler.warp)
            own = ids
            if vocabulary is not None:  # Keep tokens that the target has, in the order of its ids.
                own = vocabulary.said(ids)
                both = np.flatnonzero(vocabulary.to_target[own] >= 0)
                both = both[np.argsort(vocabulary.to_target[own[both]], kind="stable")]
                own, ids, q = own[both], vocabulary.to_target[own[both]], q[both]
            laws[leaf] = own, ids, q
        return laws

    def _draw(
        self, seq: TokenSequence, budget: Budget, drawn: TreeBuilder, laws: dict[int, Law],
        width: int, limit: int,
    ) -> NDArray[np.int32]:  # fmt: skip
        """Sample as many children of each leaf as the budget wants, and return the new nodes.

        The budget reads q and earlier levels, but never the tokens that are sampled here. With
        replacement, a node that was sampled several times gets the wanted number of children each
        time. Equal children share a node.
        """
        start, leaves = len(drawn), np.array([*laws], np.int32)
        promised = np.zeros((len(leaves), width))
        for row, (_, _, q) in enumerate(laws.values()):
            best = -np.sort(-q)[:width]
            promised[row, : len(best)] = best
        later = np.broadcast_to(np.arange(width) > 0, promised.shape)
        offered = self._calibration.of(promised, later).astype(np.float32)
        wanted = budget.grow(seq, self._tree, leaves, offered).sum(axis=1).tolist()
        for (leaf, (_, ids, q)), most in zip(laws.items(), wanted):
            # Every draw counts, also equal ones: the size must not depend on the sampled tokens.
            room = limit - (sum(self._copies.values()) - 1)
            if min(most, room, len(ids)) == 0:
                continue
            if self.offer.draws is Mode.IID:
                count = min(most * self._copies[leaf], room)
                self._copies |= draw_pooled(drawn, seq.sampler, leaf, ids, q, count)
            else:
                count = min(most, room, len(ids))
                nodes = draw(drawn, seq.sampler, leaf, Mode.SWOR, ids, q, count)
                self._copies |= dict.fromkeys(nodes, 1)
        return self._drew(drawn, laws, start)

    def _draw_with(
        self, seq: TokenSequence, drawing: Draws, laws: dict[int, Law]
    ) -> NDArray[np.int32]:
        """Sample children of all nodes with known distributions.

        Return the nodes whose distributions are needed next.
        """
        start = len(drawing.tree)
        for leaf, (_, ids, q) in laws.items():
            if len(ids):
                drawing.know(seq.sampler, leaf, ids, q, len(ids))
        self._known |= laws
        wanted = drawing.draw()
        self._drew(drawing.tree, self._known, start)
        return np.array(wanted, np.int32)

    def _drew(self, drawn: TreeBuilder, laws: dict[int, Law], start: int) -> NDArray[np.int32]:
        """Adopt the sampled tree, and return its nodes from ``start`` on."""
        for token, parent in zip(drawn.tokens[start:], drawn.parents[start:]):
            own, ids, _ = laws[parent]
            self._own.append(int(own[np.searchsorted(ids, token)]))
        raw = np.array(drawn.estimates)
        later = np.array([drawn.parents.index(p) != n for n, p in enumerate(drawn.parents)], bool)
        self._raw = raw.tolist()
        estimates = self._calibration.of(raw, later).astype(np.float32)
        self._tree = replace(drawn.tree(), estimates=estimates)
        return self._since(start)

    def _since(self, start: int) -> NDArray[np.int32]:
        """Return the nodes from ``start`` on, the most promising first."""
        fresh = np.arange(start, len(self._tree), dtype=np.int32)
        if len(fresh) < 2:
            return fresh
        return fresh[np.argsort(-self._tree.reach[fresh], kind="stable")]
