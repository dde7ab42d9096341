"""Decoders that break their promise on purpose, and the toy engine they are tried on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paradecode.core.decoder import TARGET, Forward, Reply, Steps, TokenSequence, Verdict
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.engine.engine import Engine, Limits
from paradecode.methods.draft.verifiers import coupled
from paradecode.testing.toy import LetterText, ToyBackend, toy_config
from paradecode_lab.measure.certificate.plan import Claim
from paradecode_lab.measure.prompts import Item

LOOP = (5, 6, 7, 8, 9) * 4


def text(name: str, tokens: tuple[int, ...]) -> Item:
    return Item(name, name, "", tokens, 64)


TEXTS = [
    text("loop", LOOP),
    text("pair", (11, 12) * 9 + (11,)),
    text("mixed", (*(4 + (3 * i * i + i) % 24 for i in range(9)), *LOOP, 5, 6)),
    text("long", tuple(4 + (3 * i * i + i) % 24 for i in range(37))),
]


def toy_engine() -> Engine:
    return Engine({TARGET: ToyBackend(toy_config())}, Limits(16, 512, 4096), LetterText)


@dataclass
class Repeats:
    """Right: what followed the last occurrence of the last token is drafted, and coupled."""

    def verify(self, seq: TokenSequence, tree: TokenTree, reply: Reply) -> Verdict:
        return coupled(seq, tree, reply)

    def decode(self, seq: TokenSequence) -> Steps:
        while not seq.finished:
            tokens = seq.tokens
            found = np.flatnonzero(tokens[:-1] == tokens[-1])
            count = min(seq.room - 1, 5)
            tree = EMPTY
            if len(found) and count > 0:
                tree = TokenTree.chain(np.resize(tokens[found[-1] + 1 :], count))
            reply = yield Forward(seq.pending, tree=tree)
            seq.commit(self.verify(seq, tree, reply))


class BonusOfTheParent(Repeats):
    """The token behind an accepted draft is read from the row before."""

    def verify(self, seq: TokenSequence, tree: TokenTree, reply: Reply) -> Verdict:
        right = coupled(seq, tree, reply)
        if len(right.tokens) < 2:
            return right
        token = seq.sampler.token(reply.logits, right.rows[-2], right.tokens[:-1])
        return Verdict([*right.tokens[:-1], token], right.rows, right.logits)


class SlipsInCompany(Repeats):
    """Right when alone; beside neighbours it accepts one draft token unseen."""

    def verify(self, seq: TokenSequence, tree: TokenTree, reply: Reply) -> Verdict:
        right = coupled(seq, tree, reply)
        accepted = len(right.tokens) - 1
        if seq.neighbours == 0 or accepted >= len(tree):
            return right
        tokens = [*right.tokens[:-1], int(tree.tokens[accepted])]
        last = (seq.sampler.token(reply.logits, accepted + 1, tokens) + 1) % 29
        return Verdict([*tokens, last], [*right.rows, accepted + 1], reply.logits)


class Breaks(Repeats):
    """Yields junk."""

    def decode(self, seq: TokenSequence) -> Steps:
        yield Forward(seq.pending, tree=TokenTree.chain([1000]))


class NeverDrafts(Repeats):
    """Plain decoding under another name."""

    def decode(self, seq: TokenSequence) -> Steps:
        while not seq.finished:
            reply = yield Forward(seq.pending)
            seq.commit(coupled(seq, EMPTY, reply))


def exact(make: type[Repeats]) -> Claim:
    return Claim(make.__name__, make, "exact")
