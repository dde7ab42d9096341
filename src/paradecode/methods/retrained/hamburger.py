"""Token groups: one row for several tokens, and one row's keys and values for all of them."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

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
from paradecode.core.network import Network, Op
from paradecode.core.tree import EMPTY
from paradecode.methods.draft.verifiers.coupled import coupled
from paradecode.methods.parts import local_path, method, parameter
from paradecode.methods.trained import TrainedPart, layer_shapes, layer_steps, linear, rms_norm


class TokenGroups(TrainedPart):
    """Three networks of width D (arXiv 2505.20438).

    ``merge`` makes a row of a group's embeddings ``x`` [n, D]: their ``mean``, which asks each of
    them by attention. ``unroll`` is a small decoder over the model's states at a row and the
    embeddings of what this row has written so far, ``x``; its last row says the next token.
    ``ends`` is the chance that what a state ``x`` says ends its group.
    """

    kind, field = "token groups 1", "parts"
    sizes: ClassVar = {
        "layers": 1 << 10, "hidden_size": 1 << 16, "heads": 1 << 10, "inner": 1 << 18,
        "blocks": 64, "most": 64,
    }  # fmt: skip

    def wrong(self) -> str | None:
        odd = self.facts["hidden_size"] % (2 * self.facts["heads"])
        return "its hidden_size is no multiple of 2 * heads" if odd else None

    def shapes(self) -> dict[str, tuple[int, ...]]:
        d, f, half = self.facts["hidden_size"], self.facts["inner"], self.facts["hidden_size"] // 2
        made: dict[str, tuple[int, ...]] = {
            "merge.places": (self.facts["most"], half), "merge.q": (d, d), "merge.k": (d + half, d),
            "merge.v": (d + half, d), "merge.o": (d, d), "ends.w1": (d, d), "ends.w2": (d, d),
            "ends.w3": (d, 1), **dict.fromkeys(("ends.b1", "ends.b2"), (d,)), "ends.b3": (1,),
        }  # fmt: skip
        for block in range(self.facts["blocks"]):
            made |= layer_shapes(f"{block}.", d, f)
        return made

    def taps(self) -> tuple[int, ...]:
        """The layers whose states are read: the last of each quarter of the model."""
        count = self.facts["layers"]
        return tuple(sorted({max(count * part // 4 - 1, 0) for part in (1, 2, 3, 4)}))

    @cached_property
    def merge(self) -> Network:
        width = self.facts["hidden_size"]
        places = dict.fromkeys(("places", "zeros", "outside"), 0)
        return self._network({"x": width, "mean": width} | places, merge_steps(self.facts))

    @cached_property
    def unroll(self) -> Network:
        width = self.facts["hidden_size"]
        return self._network({"x": width, "places": 0}, unroll_steps(self.facts))

    @cached_property
    def ends(self) -> Network:
        return self._network({"x": self.facts["hidden_size"]}, END_STEPS)

    def _network(self, inputs: Mapping[str, int], steps: tuple[Op, ...]) -> Network:
        read = {name: self.tensors[name] for step in steps for name in step.tensors}
        return Network(inputs, steps, read)


def merge_steps(facts: Mapping[str, Any]) -> tuple[Op, ...]:
    """Steps of ``merge``. ``outside`` is 1 for rows that pad a group, else 0. ``zeros`` keeps rows
    unrotated."""
    return (
        Op("place", "lookup", ("places",), ("merge.places",)),
        Op("word", "join", ("x", "place")),
        *linear("q", "mean", "merge.q"),
        *(step for name in "kv" for step in linear(name, "word", f"merge.{name}")),
        Op("mixed", "attention", ("q", "k", "v", "zeros", "outside"), (), facts["heads"], 1.0),
        *linear("added", "mixed", "merge.o"),
        Op("row", "add", ("mean", "added")),
    )


def unroll_steps(facts: Mapping[str, Any]) -> tuple[Op, ...]:
    """Steps of ``unroll``: Llama layers, causal over ``places``; each row of ``x`` is first
    scaled to size 1."""
    steps, how = rms_norm("0", "x"), (("places", "places"), facts["heads"])
    for block in range(facts["blocks"]):
        steps += layer_steps(f"{block + 1}", f"{block}", f"{block}.", *how)
    return steps


END_STEPS = (
    *rms_norm("unit", "x"),
    *linear("one", "unit", "ends.w1", "ends.b1"),
    Op("open", "silu", ("one",)),
    *linear("two", "open", "ends.w2", "ends.b2"),
    Op("opener", "silu", ("two",)),
    *linear("logit", "opener", "ends.w3", "ends.b3"),
    Op("chance", "sigmoid", ("logit",)),
)


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
            visible=slots, hidden=self.trained.taps(),
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
