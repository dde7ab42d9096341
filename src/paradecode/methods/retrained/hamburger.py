"""Token groups: one row for several tokens, and one row's keys and values for all of them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import (
    Apply,
    Forward,
    Overwrite,
    Reply,
    Request,
    Steps,
    Store,
    TokenSequence,
)
from paradecode.core.tree import EMPTY
from paradecode.methods.draft.verifiers.coupled import coupled
from paradecode.methods.parts import local_path, method, parameter
from paradecode.methods.retrained.token_groups import TokenGroups

COMMAND = "paradecode train hamburger"


@method("hamburger", guarantee="lossy", training=COMMAND, paper="HAMburger", arxiv="2505.20438")
@dataclass
class Hamburger:
    """The model reads the tokens of a group as one row, and a small decoder writes the next group.

    A group's row is at the place of its last token, and is in that token's slot of the cache; the
    slots of the others are never written and never seen. Each token of the prompt has a row of its
    own. The first token of the next group is the model's own; the others come from the small
    decoder, which stops where a group probably ends. Nothing verifies them.

    The paper saves memory for keys and values as well; here the slots that stay empty are not given
    back.

    When: the model was made by ``paradecode train hamburger``, its texts have runs of tokens that
    follow from one another, and a loss may be borne.
    """

    parts: str = local_path("file of `train hamburger`")
    group: int = parameter(4, 1, 64, "most tokens of a group, and at most as many as were trained")
    confidence: float = parameter(0.9, 0.0, 1.0, "least chance that a group goes on")

    def __post_init__(self) -> None:
        self.trained = TokenGroups.needed("hamburger", self.parts, COMMAND)
        self.most = min(self.group, self.trained.facts["most"])

    def decode(self, seq: TokenSequence) -> Steps:
        self.trained.check("hamburger", seq.about(), "layers", "hidden_size")
        begin, end = seq.prompt_length - 1, seq.prompt_length
        slots = np.arange(begin, dtype=np.int32)
        ahead = begin - (len(seq.tokens) - len(seq.pending))
        if ahead > 0:
            yield Forward(seq.pending[:ahead])
        while not seq.finished:
            reply = yield from self.read(seq, begin, end, slots)
            slots = np.append(slots, np.int32(end - 1))
            begin, end = end, end + (yield from self.write(seq, end, reply))

    def read(
        self, seq: TokenSequence, begin: int, end: int, slots: NDArray[np.int32]
    ) -> Generator[Request, Any, Reply]:
        """Run the tokens from ``begin`` to ``end`` as one row, which sees ``slots``."""
        place, row = np.array([end - 1], np.int32), None
        if end - begin > 1:
            words, zeros = seq.embed(seq.tokens[begin:end]), np.zeros(end - begin, np.int64)
            x = {"x": words, "mean": np.repeat(words.mean(0, keepdims=True), end - begin, 0)}
            places = {"places": np.arange(end - begin), "zeros": zeros, "outside": zeros}
            row = (yield Apply(self.trained.merge, x | places))[:1]
        return (yield Forward(
            seq.tokens[end - 1 : end], embeddings=row, store=Overwrite(place), positions=place,
            visible=slots, hidden=self.trained.taps(self.trained.facts),
        ))  # fmt: skip

    def write(self, seq: TokenSequence, at: int, reply: Reply) -> Generator[Request, Any, int]:
        """Write the next group from position ``at`` on; returns its length."""
        rows, count = np.concatenate(list(reply.hidden.values())), 0
        state = rows[-1:]
        while True:
            if at + count == len(seq.tokens):  # What another worker wrote is there already.
                seq.commit(coupled(seq, EMPTY, reply))
            count += 1
            if seq.finished or count == self.most:
                return count
            ends = yield Apply(self.trained.ends, {"x": state})
            if 1.0 - ends[0, 0] < self.confidence:
                return count
            token = seq.tokens[at + count - 1 : at + count]
            rows = np.concatenate([rows, seq.embed(token)])
            state = (yield Apply(self.trained.unroll, {"x": rows, "places": np.arange(len(rows))}))[
                -1:
            ]
            # The model's last norm and its head alone.
            reply = yield Forward(token, store=Store.NONE, layers=(), resume=state)
