"""Methods that are wrong on purpose, one for each class of bug that the suite must find."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paradecode.core.decoder import Decoder, Forward, Reply, Steps, Store, TokenSequence, Verdict
from paradecode.core.tree import EMPTY, ROOT, TokenTree
from paradecode.methods.draft.verifiers import coupled

Verify = Callable[[TokenSequence, TokenTree, Reply], Verdict]


def repeat(seq: TokenSequence, count: int) -> TokenTree:
    """Return a good draft: the tokens after the last occurrence of the last token, repeated."""
    tokens = seq.tokens
    found = np.flatnonzero(tokens[:-1] == tokens[-1])
    if len(found) == 0 or count < 1:
        return EMPTY
    return TokenTree.chain(np.resize(tokens[found[-1] + 1 :], count))


def fork_of(chain: TokenTree) -> TokenTree:
    """Return the chain with a wrong sibling before each of its nodes."""
    tokens, parents, at = [], [], ROOT
    for token in chain.tokens.tolist():
        tokens += [4 + (token + 1) % 20, token]
        parents += [at, at]
        at = len(tokens) - 1
    return TokenTree(np.array(tokens, np.int32), np.array(parents, np.int32))


@dataclass
class Drafted:
    """A correct method. The broken methods are made from it.

    Attributes:
        verify: accepts or rejects the draft.
        tree: makes the draft tree from a chain.
        change: changes each forward before it runs.
        clipped: whether drafts end where the output must end.
    """

    verify: Verify = coupled
    tree: Callable[[TokenTree], TokenTree] = lambda chain: chain
    change: Callable[[TokenSequence, Forward], Forward] = lambda seq, forward: forward
    clipped: bool = True

    def decode(self, seq: TokenSequence) -> Steps:
        while not seq.finished:
            room = seq.room - 1 if self.clipped else 6
            tree = self.tree(repeat(seq, min(room, 5)))
            reply = yield self.change(seq, Forward(seq.pending, tree=tree))
            seq.commit(self.verify(seq, tree, reply))


def walk(token_at: Callable[[TokenSequence, Reply, int, list[int]], int]) -> Verify:
    """Return the coupled rule with another function for the token after a row."""

    def verify(seq: TokenSequence, tree: TokenTree, reply: Reply) -> Verdict:
        node: int | None = ROOT
        tokens: list[int] = []
        rows: list[int] = []
        while node is not None:
            token = token_at(seq, reply, node + 1, tokens)
            tokens.append(token)
            rows.append(node + 1)
            node = tree.child(node, token)
        return Verdict(tokens, rows, reply.logits)

    return verify


def bonus_of_the_parent(seq: TokenSequence, tree: TokenTree, reply: Reply) -> Verdict:
    right = coupled(seq, tree, reply)
    if len(right.tokens) < 2:
        return right
    token = seq.sampler.token(reply.logits, right.rows[-2], right.tokens[:-1])
    return Verdict([*right.tokens[:-1], token], right.rows, right.logits)


def one_more_draft_token(seq: TokenSequence, tree: TokenTree, reply: Reply) -> Verdict:
    right = coupled(seq, tree, reply)
    accepted = len(right.tokens) - 1
    if accepted >= len(tree):
        return right
    tokens = [*right.tokens[:-1], int(tree.tokens[accepted])]
    bonus = seq.sampler.token(reply.logits, accepted + 1, tokens)
    if accepted + 1 < len(tree) and bonus == tree.tokens[accepted + 1]:
        bonus = 4 + (bonus + 1) % 20
    return Verdict([*tokens, bonus], [*right.rows, accepted + 1], reply.logits)


def stale_processors(seq: TokenSequence, reply: Reply, row: int, path: list[int]) -> int:
    logits = seq.sampler.processed(reply.logits, row, ())
    return int(logits.sample(seq.sampler.warp, [seq.sampler.noise_key(len(path))])[0])


def stuck_noise(seq: TokenSequence, reply: Reply, row: int, path: list[int]) -> int:
    logits = seq.sampler.processed(reply.logits, row, path)
    return int(logits.sample(seq.sampler.warp, [seq.sampler.noise_key(0)])[0])


def no_warp(seq: TokenSequence, reply: Reply, row: int, path: list[int]) -> int:
    logits = seq.sampler.processed(reply.logits, row, path)
    warp = replace(seq.sampler.warp, top_k=0, top_p=1.0, min_p=0.0)
    return int(logits.sample(warp, [seq.sampler.noise_key(len(path))])[0])


def wrong_report(seq: TokenSequence, tree: TokenTree, reply: Reply) -> Verdict:
    right = coupled(seq, tree, reply)
    return Verdict(right.tokens, [0] * len(right.rows), right.logits)


def lead(seq: TokenSequence, forward: Forward) -> Forward:
    """Shift the positions of a forward by one, except in the prompt's forward."""
    first = len(seq.tokens) - len(forward.tokens)
    if first == 0:
        return forward
    return replace(forward, positions=np.arange(first, len(seq.tokens), dtype=np.int32) + 1)


def blind(seq: TokenSequence, forward: Forward) -> Forward:
    """Hide the newest cached slot from the forward."""
    cached = len(seq.tokens) - len(forward.tokens)
    return replace(forward, visible=np.arange(max(cached - 1, 0), dtype=np.int32))


def siblings_seen(seq: TokenSequence, forward: Forward) -> Forward:
    return replace(forward, tree=TokenTree.chain(forward.tree.tokens))


def half_the_layers(seq: TokenSequence, forward: Forward) -> Forward:
    if len(seq.tokens) == len(forward.tokens):
        return forward
    return replace(forward, layers=(1,))


class SkipsAToken:
    """Feeds only the newest token, as if the other ones were cached."""

    def decode(self, seq: TokenSequence) -> Steps:
        while not seq.finished:
            reply = yield Forward(seq.pending[-1:])
            seq.commit(coupled(seq, EMPTY, reply))


class ForgetsToStore:
    """Stores the prompt, and computes later tokens without storing the tokens between."""

    def decode(self, seq: TokenSequence) -> Steps:
        reply = yield Forward(seq.pending)
        while True:
            seq.commit(coupled(seq, EMPTY, reply))
            if seq.finished:
                return
            reply = yield Forward(seq.pending[-1:], store=Store.NONE)


class NeverCommits:
    def decode(self, seq: TokenSequence) -> Steps:
        while True:
            yield Forward(seq.tokens[-1:], store=Store.NONE)


class Junk:
    def decode(self, seq: TokenSequence) -> Steps:
        yield Forward(seq.pending)
        junk: Any = 42
        yield junk


class TokensOutOfRange:
    def decode(self, seq: TokenSequence) -> Steps:
        reply = yield Forward(seq.pending)
        seq.commit(coupled(seq, EMPTY, reply))
        yield Forward(seq.pending, tree=TokenTree.chain([1 << 20]))


class CommitsAfterTheEnd:
    def decode(self, seq: TokenSequence) -> Steps:
        while True:
            reply = yield Forward(seq.pending)
            verdict = coupled(seq, EMPTY, reply)
            seq.commit(verdict)
            if seq.finished:
                seq.commit(verdict)


class StopsEarly:
    def decode(self, seq: TokenSequence) -> Steps:
        for _ in range(3):
            if not seq.finished:
                reply = yield Forward(seq.pending)
                seq.commit(coupled(seq, EMPTY, reply))


class IgnoresTheSeed:
    def decode(self, seq: TokenSequence) -> Steps:
        while not seq.finished:
            reply = yield Forward(seq.pending)
            token = seq.sampler.processed(reply.logits, 0, ()).argmax()
            seq.commit(Verdict([int(token[0])], [0], reply.logits))


class NeverDrafts:
    """A correct method that never drafts, and so gains nothing."""

    def decode(self, seq: TokenSequence) -> Steps:
        while not seq.finished:
            reply = yield Forward(seq.pending)
            seq.commit(coupled(seq, EMPTY, reply))


class DraftModel:
    """A second model drafts a chain, token by token."""

    def decode(self, seq: TokenSequence) -> Steps:
        while not seq.finished:
            tokens: list[int] = []
            if seq.room > 1:
                reply = yield Forward(seq.pending_for("draft"), model="draft")
                tokens.append(int(reply.logits.argmax()[0]))
            for last in range(min(3, seq.room - 2)):
                reply = yield Forward(
                    np.empty(0, np.int32), tree=TokenTree.chain(tokens[-1:]),
                    under=np.array([last - 1], np.int32), model="draft",
                )  # fmt: skip
                tokens.append(int(reply.logits.argmax()[0]))
            tree = TokenTree.chain(tokens)
            check = yield Forward(seq.pending, tree=tree)
            seq.commit(coupled(seq, tree, check))


WRONG: dict[str, Callable[[], Decoder]] = {
    "bonus of the parent's row": lambda: Drafted(bonus_of_the_parent),
    "accepts a wrong draft token": lambda: Drafted(one_more_draft_token),
    "penalties without the path": lambda: Drafted(walk(stale_processors)),
    "noise of one position along the path": lambda: Drafted(walk(stuck_noise)),
    "top-k, top-p and min-p left out": lambda: Drafted(walk(no_warp)),
    "log-probabilities of the wrong rows": lambda: Drafted(wrong_report),
    "positions off by one": lambda: Drafted(change=lead),
    "does not see the newest slot": lambda: Drafted(change=blind),
    "siblings see one another": lambda: Drafted(tree=fork_of, change=siblings_seen),
    "skips a layer": lambda: Drafted(change=half_the_layers),
    "drafts beyond the end": lambda: Drafted(clipped=False), "skips a token": SkipsAToken,
    "does not store": ForgetsToStore, "never commits": NeverCommits, "yields junk": Junk,
    "token ids out of range": TokensOutOfRange, "commits after the end": CommitsAfterTheEnd,
    "stops early": StopsEarly, "ignores the seed": IgnoresTheSeed,
}  # fmt: skip

RIGHT: dict[str, Callable[[], Decoder]] = {
    "chain": Drafted, "tree": lambda: Drafted(tree=fork_of), "plain": NeverDrafts,
    "draft model": DraftModel,
}  # fmt: skip
