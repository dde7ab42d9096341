"""A new drafter, in one file: registered, batched, streamed, and held to every promise."""

from dataclasses import dataclass

import numpy as np

from paradecode.core.tree import EMPTY, TokenTree
from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest
from paradecode.methods.draft.loop import Drafter, drafter
from paradecode.methods.specs import parse
from paradecode.testing.conformance import check
from paradecode.testing.toy import LetterText, ToyBackend


@drafter("last-bigram", paper="an example")
@dataclass
class LastBigram(Drafter):
    """Copy what followed the last two tokens the last time they occurred."""

    def draft(self, seq, limit):
        old, now = seq.tokens[:-1], seq.tokens[1:]
        found = np.flatnonzero((old[:-1] == old[-1:]) & (now[:-1] == now[-1:]))
        return TokenTree.chain(now[found[-1] + 1 :][:limit]) if len(found) else EMPTY


def test_it_conforms():
    check("last-bigram", kinds=["toy"])
    check("last-bigram", kinds=["llama"], only=["mixed-methods", "prefix-cache"])


def test_it_streams():
    engine = Engine({"target": ToyBackend()}, new_text=LetterText)
    seq = engine.add(GenerationRequest(np.array([5, 6, 7] * 5), parse("last-bigram")))
    pieces = [
        "".join(new.text for new in seq.take())
        for _ in range(300)
        if engine.busy
        for seq in engine.step()
    ]
    assert "".join(pieces) == seq.text.value
    assert 1 < len(pieces) < seq.stats.generated
