"""PEARL and Mirror-SD: the draft model goes on drafting while the target verifies."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import DRAFT, Forward, Overlap, Reply, Steps, TokenSequence, Verdict
from paradecode.core.logits import Logits
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.candidates import candidates
from paradecode.methods.draft.contracts import MAX_DRAFT
from paradecode.methods.draft.source import NO_STATES, Path, PathRows, streams_of
from paradecode.methods.draft.verifiers import coupled
from paradecode.methods.parts import choice, local_path, method, parameter

Correction = tuple[int, int]
"""A possible outcome (r, c): the target accepts r tokens of the chain and then emits token c."""


@dataclass
class ChainDraft:
    """The chain of tokens that is drafted after the last committed token.

    Tokens of the chain that the draft model's cache lacks run in its next forward pass, like
    pending committed tokens. These tokens are the last one and, after a commit, all that is left of
    the chain.

    Attributes:
        tokens, own: the chain's tokens in the target's ids and in the draft model's ids.
        said: for each token of the chain, the logits from which it was chosen.
        ended: True if the draft model cannot continue the chain.
        streams: float32 [S, hidden size], prompt tokens of the draft model. With them each forward
            drafts up to S + 1 tokens.
    """

    seq: TokenSequence
    streams: NDArray[np.float32] = field(default_factory=NO_STATES.copy)
    tokens: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    said: list[Logits] = field(default_factory=list)
    ended: bool = False

    def __post_init__(self) -> None:
        self._rows = PathRows(self.seq, DRAFT)

    def commit(self, verdict: Verdict) -> None:
        """Commit a verdict. If the chain begins with its tokens, the rest of the chain stays."""
        count = len(verdict.tokens)
        same = self.tokens[:count] == verdict.tokens
        behind = slice(count, None) if same else slice(0)
        self.tokens, self.own, self.said = self.tokens[behind], self.own[behind], self.said[behind]
        self._rows, self.ended = PathRows(self.seq, DRAFT), False
        self.seq.commit(verdict)

    @property
    def fits(self) -> bool:
        """True if the draft model has room for the chain."""
        return self.seq.room_for(DRAFT) > len(self.tokens)

    def add(self, logits: Logits, before: Sequence[int] = ()) -> None:
        """Append the most probable next token to the chain; end the chain if the target lacks it.

        ``before`` has the tokens (target ids) between the last committed token and the chain.
        """
        if self.ended:
            return
        vocabulary = self.seq.about(DRAFT).vocabulary
        path = [*before, *self.tokens]
        own, ids, chance = candidates(self.seq, logits, [path], 1, vocabulary)
        self.ended = bool(chance[0, 0] <= 0)
        if not self.ended:
            self.said.append(logits)
            self.own.append(int(own[0, 0]))
            self.tokens.append(int(ids[0, 0]))

    def extend(self, count: int) -> Generator[Forward, Reply, None]:
        """Draft until the chain has ``count`` tokens, or until there is no more room."""
        count = min(count, self.seq.scratch)
        spare = self.seq.scratch - count  # Prompt rows leave the chain its slots.
        while not self.ended and len(self.tokens) < count and self.fits:
            streams = self.streams[: count - len(self.tokens) - 1][:spare]
            reply = yield self._rows.forward([tuple(self.own)], streams=streams)
            spare -= reply.logits.shape[0] - 1
            for row in range(reply.logits.shape[0]):
                self.add(reply.logits.select([row]))

    def guesses(self, width: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the draft model's candidates at each position of the chain.

        The target ids and their probabilities are [len(tokens), width], as in :func:`candidates`.
        """
        vocabulary = self.seq.about(DRAFT).vocabulary
        found = [
            candidates(self.seq, row, [self.tokens[:place]], width, vocabulary)
            for place, row in enumerate(self.said)
        ]
        ids, chances = ([each[part] for each in found] for part in (1, 2))
        return np.concatenate(ids), np.concatenate(chances)

    def behind(
        self, corrections: list[Correction], count: int
    ) -> Generator[Forward, Reply, list[ChainDraft]]:
        """Draft a chain of ``count`` tokens, or fewer if there is no room, after each correction.

        All chains grow together, by the same number of tokens in each forward pass.
        """
        found = [(ChainDraft(self.seq, self.streams), *each) for each in corrections]
        live, room = found, min(self.seq.scratch, self.seq.room_for(DRAFT))
        while live and len(live[0][0].tokens) < count:
            paths: list[Path] = []
            for chain, place, token in live:
                own = own_id(self.seq, token)
                assert own is not None
                paths.append((*self.own[:place], own, *chain.own))
            streams = self.streams[: count - len(live[0][0].tokens) - 1]
            reply = yield self._rows.forward(paths, beside=tuple(self.own), streams=streams)
            each = reply.logits.shape[0] // len(live)
            for row in range(reply.logits.shape[0]):
                chain, place, token = live[row // each]
                chain.add(reply.logits.select([row]), [*self.tokens[:place], token])
            live = [one for one in live if not one[0].ended]
            if self._rows.taken + each * len(live) > room:
                break
        return [chain for chain, _, _ in found]

    def tree(self, depth: int) -> TokenTree:
        """Return the chain as a tree, cut to ``depth`` tokens."""
        return TokenTree.chain(self.tokens[: max(depth, 0)])


def own_id(seq: TokenSequence, token: int) -> int | None:
    """Return the draft model's id of a target token; None if there is no single such token."""
    vocabulary = seq.about(DRAFT).vocabulary
    if vocabulary is None:
        return token
    pieces = vocabulary.translate(np.array([token]))
    return int(pieces[0]) if len(pieces) == 1 else None


@method(
    "pearl",
    schedule=True,
    paper="PEARL",
    arxiv="2408.11850",
    url="https://github.com/smart-lty/ParallelSpeculativeDecoding",
    names={"gamma": "num_speculative_tokens"},
    models=(DRAFT,),
)
class Pearl:
    """Draft and target run at the same time, in two modes (Liu et al. 2024, arXiv 2408.11850).

    *Pre-verify*: nothing is drafted yet. The target's forward pass judges the first token that the
    draft model drafts meanwhile.

    *Post-verify*: the target judges a drafted block while the draft model drafts the tokens after
    it. If the whole block and the token after it were right, the tokens drafted meanwhile are the
    next block. Otherwise they are dropped, and the mode is pre-verify again.

    When: the draft model has a device or threads of its own (``draft_device``, ``draft_threads``)
    that the target does not need. Without them the models run in turn, and ``draft-model`` is
    faster.
    """

    num_speculative_tokens: int = parameter(4, 1, MAX_DRAFT, "tokens that each forward drafts")

    def decode(self, seq: TokenSequence) -> Steps:
        draft = ChainDraft(seq)
        while not seq.finished:
            tree = draft.tree(seq.room - 1)
            # Tokens beyond the room are never verified.
            count = min(len(tree) + self.num_speculative_tokens, seq.room)
            verify = Forward(seq.pending, tree=tree)
            reply, _ = yield Overlap(verify, draft.extend(count))
            draft.commit(coupled(seq, tree, reply))


# Mirror-SD: while the target verifies, draft after every correction that it is likely to make.


@method(
    "mirror-sd",
    schedule=True,
    paper="Mirror Speculative Decoding",
    arxiv="2510.13161",
    aliases=("mirror",),
    names={"gamma": "num_speculative_tokens", "kappa": "candidates"},
    models=(DRAFT,),
)
class Mirror:
    """The draft model drafts ahead for every likely outcome (Bhendawade et al. 2025).

    An early exit of the target predicts, for each position of the block, the tokens that the target
    will probably put there. While the target runs its remaining layers, the draft model drafts a
    block after each of these corrections. If the outcome is one of them, the next block is already
    drafted.

    With ``streams`` the draft model drafts several tokens in each forward pass (speculative
    streaming): rows of trained embeddings after a token guess the tokens further on. In the paper
    the streams enter before the last layers, and are trained together with the draft model. Here
    they are PPD's prompt tokens, which enter before the first layer, and
    ``paradecode train head ppd --model DRAFT`` trains them alone.

    When: as ``pearl``, and the draft model runs many rows in little more time than one.
    """

    num_speculative_tokens: int = parameter(4, 1, MAX_DRAFT, "number of tokens of a drafted block")
    candidates: int = parameter(2, 0, 16, "corrections that are prepared for each position")
    announce: str = choice("target", ("target", "draft"), "which model proposes the corrections")
    depth: float = parameter(0.5, 0.0, 1.0, "share of the layers before the early exit")
    streams: str = local_path("folder of the draft model's prompt tokens (`train head ppd`)")

    def decode(self, seq: TokenSequence) -> Steps:
        draft = ChainDraft(seq, streams_of(seq, self.streams))
        while not seq.finished:
            tree = draft.tree(seq.room - 1)
            verify, likely = yield from self._announced(seq, draft, tree)
            count = min(self.num_speculative_tokens, seq.room - 1)
            extend = draft.extend(len(tree) + count)
            ahead = draft.behind(likely, count) if likely else extend
            reply, chains = yield Overlap(verify, ahead)
            verdict = coupled(seq, tree, reply)
            outcome = len(verdict.tokens) - 1, verdict.tokens[-1]
            draft.commit(verdict)
            if outcome in likely:
                draft = chains[likely.index(outcome)]
            if not seq.finished:
                yield from draft.extend(min(count, seq.room - 1))

    def _announced(
        self, seq: TokenSequence, draft: ChainDraft, tree: TokenTree
    ) -> Generator[Forward, Reply, tuple[Forward, list[Correction]]]:
        """Return the verification, without layers that have run, and the likely outcomes."""
        whole, block = Forward(seq.pending, tree=tree), tree.tokens.tolist()
        if not block or self.candidates == 0 or not draft.fits:
            return whole, []
        if self.announce == "target" and len(seq.pending) + len(block) <= seq.scratch:
            total = seq.about().layers
            exit = 1 + int(self.depth * (total - 1))
            chain = TokenTree.chain([*seq.pending.tolist(), *block])
            rows = np.arange(len(seq.pending) - 1, len(chain), dtype=np.int32)
            first = Forward(seq.pending[:0], tree=chain, layers=tuple(range(exit)), logits=rows,
                            hidden=(exit - 1,))  # fmt: skip
            reply = yield first
            if exit < total:
                whole = replace(whole, layers=tuple(range(exit, total)))
            paths = [block[:place] for place in range(len(block) + 1)]
            _, ids, chance = candidates(seq, reply.logits, paths, 1 + self.candidates, None)
        else:
            ids, chance = draft.guesses(1 + self.candidates)
            ids, chance = ids[: len(block)], chance[: len(block)]
        likely = [
            (place, int(token))
            for place in range(len(ids))
            for token in ids[place][chance[place] > 0][: 1 + self.candidates]
            if place == len(block) or token != block[place]
        ]
        free = seq.scratch - len(draft.own)
        return whole, [one for one in likely if own_id(seq, one[1]) is not None][: max(free, 0)]
