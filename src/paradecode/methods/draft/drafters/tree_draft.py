"""Grows a draft tree level by level with a model: a second one, or some layers of the target."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from paradecode.core.drawing import distribution, draw
from paradecode.core.layers import Layers, halves, work
from paradecode.core.logits import Logits, kept
from paradecode.core.noise import gumbel
from paradecode.core.request import TARGET, Forward, Reply
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import EMPTY, ROOT, Mode, TokenTree, TreeBuilder
from paradecode.core.vocabulary import Vocabulary
from paradecode.methods.draft.budgets.base import Seconds
from paradecode.methods.draft.budgets.calibration import Calibration
from paradecode.methods.draft.budgets.states import LAST, DraftRows
from paradecode.methods.draft.loop import Offer, Proposal

POOL = 64
"""Best tokens of a draft distribution that are looked at when noise or a translation reorders."""
NO_TOKENS = np.empty(0, np.int32)


@dataclass(frozen=True)
class Source:
    """Who drafts: ``layers`` of ``model``, or all of it."""

    model: str = TARGET
    layers: Layers | None = None

    def seconds(self, seq: Sequence) -> Seconds:
        share = 1.0
        if self.layers is not None:
            facts = seq.about(self.model)
            # A layer has about 12 hidden_size^2 weights, the head vocab_size * hidden_size.
            head = facts.vocab_size / (12 * facts.hidden_size)
            share = (work(self.layers) + head) / (facts.layers + head)
        if self.model == TARGET:
            return lambda rows: share * (seq.step_seconds(rows) or 0.0)
        return lambda rows: share * (seq.step_seconds(rows, self.model) or 0.0)

    @property
    def last(self) -> int:
        """The last layer that runs."""
        return LAST if self.layers is None else halves(self.layers[-1])[0]

    def room(self, seq: Sequence) -> int:
        """How deep a tree can become."""
        return seq.room if self.model == TARGET else seq.room_for(self.model)


@dataclass
class TreeDraft:
    """One request's drafts: the tree in the making, and how sure the model's guesses are.

    With a temperature and a verifier that lets drafts look (``offer.noise``), candidates are
    ranked by the draft's log-probability plus the very noise that the target's own draw will see.
    Where the two models agree the draws then coincide, as greedy choices do. For a verifier that
    tests p / q (``offer.draws``) children are drawn from q instead, without replacement, and none
    of them is dropped again.
    """

    calibration: Calibration = field(default_factory=Calibration)
    _tree: TokenTree = EMPTY
    _raw: list[float] = field(default_factory=list)
    _own: list[int] = field(default_factory=list)

    def propose(
        self, seq: Sequence, limit: int, source: Source, offer: Offer, width: int
    ) -> Proposal:
        """Grow a tree of at most ``limit`` nodes with ``width`` candidates a node."""
        budget = offer.budget
        seconds, depth = source.seconds(seq), min(limit, source.room(seq))
        pending = seq.pending_for(source.model)
        leaves = budget.expand(seq, EMPTY, np.array([ROOT], np.int32), seconds)
        prompt = source.layers is not None and len(pending) > limit
        if depth < 1 or prompt or len(leaves) == 0:
            return EMPTY
        self._forget()
        drawn = TreeBuilder()
        draws = offer.draws and seq.sampler.warp.temperature > 0
        hidden = (source.last,) if budget.reads_draft else ()
        reply, taken = yield from self._root(source, pending, hidden)
        slots = {ROOT: taken - 1}
        for level in range(1, depth + 1):
            logits = reply.logits
            if hidden:  # Of a root's forward, the last row is the root's.
                states = reply.hidden[source.last][-len(leaves) :]
                rows = DraftRows(source.model, logits, states)
                budget.see_draft(seq, self._tree, leaves, rows)
                yield from budget.prepare(seq, self._tree)
            if draws:
                fresh = self._draw(seq, source, drawn, leaves, logits, width, limit)
            else:
                fresh = self._grow(seq, source, offer, leaves, logits, width)
            if level == depth or len(fresh) == 0:
                break
            # Draft rows live in memory that is set aside for ``limit`` of them.
            room = limit - (taken + len(slots) - 1)
            yield from budget.prepare(seq, self._tree)
            leaves = budget.expand(seq, self._tree, fresh, seconds)[: max(room, 0)]
            if len(leaves) == 0:
                break
            reply = yield Forward(
                NO_TOKENS,
                tree=siblings(np.array([self._own[leaf] for leaf in leaves], np.int32)),
                under=np.array([slots[int(p)] for p in self._tree.parents[leaves]], np.int32),
                layers=source.layers,
                model=source.model,
                hidden=hidden,
            )
            for leaf in leaves.tolist():
                slots[leaf] = taken - 1 + len(slots)
        return self._tree if draws else self._tree.best(limit)

    def observe(self, verdict: Verdict) -> None:
        """Learn which of the guesses were right, those that were never verified included."""
        tree = self._tree
        path = [ROOT, *tree.follow(verdict.tokens)]
        judged = set(path[: len(verdict.tokens)])
        nodes = [n for n, parent in enumerate(tree.parents.tolist()) if parent in judged]
        if nodes:
            accepted = [index for index, node in enumerate(nodes) if node in path]
            later = [tree.children(int(tree.parents[node]))[0] != node for node in nodes]
            raw = np.array([self._raw[node] for node in nodes])
            self.calibration.update(raw, accepted, np.array(later))
        self._forget()

    def confidence(self, node: int) -> float:
        """How probable the model found a node of the tree in the making, uncorrected."""
        return self._raw[node]

    def _forget(self) -> None:
        self._tree, self._raw, self._own = EMPTY, [], []

    def _root(
        self, source: Source, pending: NDArray[np.int32], hidden: tuple[int, ...]
    ) -> Generator[Forward, Reply, tuple[Reply, int]]:
        """What follows the last committed token, and how many tentative rows that took."""
        if source.layers is not None:
            last = np.array([len(pending) - 1], np.int32)
            chain = TokenTree.chain(pending)
            reply = yield Forward(
                NO_TOKENS, tree=chain, layers=source.layers, model=source.model, logits=last,
                hidden=hidden,
            )  # fmt: skip
            return reply, len(pending)
        reply = yield Forward(pending, model=source.model, hidden=hidden)
        return reply, 0

    def _grow(
        self, seq: Sequence, source: Source, offer: Offer,
        leaves: NDArray[np.int32], logits: Logits, width: int,
    ) -> NDArray[np.int32]:  # fmt: skip
        """Add the children that the budget wants; returns the new nodes, most promising first."""
        tree = self._tree
        paths = [tree.tokens_to(leaf) for leaf in leaves.tolist()]
        vocabulary = seq.about(source.model).vocabulary
        own, ids, raw = candidates(seq, logits, paths, width, vocabulary, offer.noise)
        later = np.broadcast_to(np.arange(raw.shape[1]) > 0, raw.shape)
        estimates = self.calibration.of(raw, later).astype(np.float32)
        at = np.nonzero(offer.budget.grow(seq, tree, leaves, estimates) & (raw > 0))
        self._own += own[at].tolist()
        self._raw += raw[at].tolist()
        self._tree = tree.extend(siblings(ids[at], estimates[at]), leaves[at[0]])
        return self._since(len(tree))

    def _draw(
        self, seq: Sequence, source: Source, drawn: TreeBuilder,
        leaves: NDArray[np.int32], logits: Logits, width: int, limit: int,
    ) -> NDArray[np.int32]:  # fmt: skip
        """Draw ``width`` children of each leaf while there is room; returns the new nodes."""
        sampler, vocabulary = seq.sampler, seq.about(source.model).vocabulary
        start = len(drawn)
        for row, leaf in enumerate(leaves.tolist()):
            one = logits.select([row])
            if vocabulary is None:
                one = sampler.processed(logits, row, self._tree.tokens_to(leaf))
            ids, q = distribution(one, 0, sampler.warp)
            own = ids
            if vocabulary is not None:  # Only what the target can give, in the target's order.
                both = np.flatnonzero(vocabulary.to_target[ids] >= 0)
                both = both[np.argsort(vocabulary.to_target[ids[both]], kind="stable")]
                own, ids, q = ids[both], vocabulary.to_target[ids[both]], q[both]
            count = min(width, limit - len(drawn), len(ids))
            nodes = draw(drawn, sampler, leaf, Mode.SWOR, ids, q, count) if count > 0 else ()
            for node in nodes:
                self._own.append(int(own[np.searchsorted(ids, drawn.tokens[node])]))
        raw = np.array(drawn.estimates)
        later = np.array([drawn.parents.index(p) != n for n, p in enumerate(drawn.parents)], bool)
        self._raw = raw.tolist()
        estimates = self.calibration.of(raw, later).astype(np.float32)
        self._tree = replace(drawn.tree(), estimates=estimates)
        return self._since(start)

    def _since(self, start: int) -> NDArray[np.int32]:
        """The nodes from ``start`` on, most promising first."""
        fresh = np.arange(start, len(self._tree), dtype=np.int32)
        return fresh[np.argsort(-self._tree.reach[fresh], kind="stable")]


def siblings(tokens: NDArray[np.int32], estimates: NDArray[np.float32] | None = None) -> TokenTree:
    """Rows that hang where ``Forward.under`` says."""
    if estimates is None:
        estimates = np.ones(len(tokens), np.float32)
    return TokenTree(tokens, np.full(len(tokens), ROOT, np.int32), estimates)


def candidates(
    seq: Sequence,
    logits: Logits,
    paths: list[list[int]],
    width: int,
    vocabulary: Vocabulary | None,
    shares_noise: bool = True,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """What a draft model expects after each path.

    Args:
        logits: one row for each path.
        paths: the draft tokens (in target ids) between the last committed token and the row.
        vocabulary: how the draft model's tokens correspond to the target's.
        shares_noise: add the noise of the target's own draw.

    Returns:
        int32 [F, W] its own ids, int32 [F, W] the target's ids, float64 [F, W] how likely each is
        to be the target's token, best first; 0 marks tokens that the target does not have.
    """
    sampler, noisy = seq.sampler, shares_noise and seq.sampler.warp.temperature > 0
    if vocabulary is None:
        biases = [sampler.bias(logits.select([row]), path) for row, path in enumerate(paths)]
        if any(bias is not None for bias in biases):
            logits = logits.with_bias(biases)
    own, values = logits.top_k(POOL if noisy or vocabulary is not None else width)
    ids = own if vocabulary is None else vocabulary.to_target[own]
    scores = logits.log_probability(own)
    scores[(ids < 0) | ~np.isfinite(values)] = -np.inf
    if noisy:
        for row, path in enumerate(paths):
            scores[row] = _perturbed(seq, scores[row], ids[row], len(path))
        scores -= np.log(np.exp(scores - scores.max()).sum(axis=1, keepdims=True)) + scores.max()
    order = np.argsort(-scores, axis=1, kind="stable")[:, :width]
    best = np.exp(np.take_along_axis(scores, order, axis=1))
    return np.take_along_axis(own, order, axis=1), np.take_along_axis(ids, order, axis=1), best


def _perturbed(
    seq: Sequence, scores: NDArray[np.float64], ids: NDArray[np.int32], offset: int
) -> NDArray[np.float64]:
    """Scaled log-probabilities plus the target's noise; -inf for what the warp filters out."""
    perturbed = np.full(len(scores), -np.inf)
    if np.isfinite(scores).any():
        places, scaled = kept(scores, seq.sampler.warp)
        perturbed[places] = scaled + gumbel(seq.sampler.noise_key(offset), ids[places])
    return perturbed
