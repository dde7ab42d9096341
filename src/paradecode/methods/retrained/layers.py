"""Methods for models that were retrained together with small trained parts.

Routers choose which layers run, LoRA adapters replace skipped layers, and a small decoder writes
groups of tokens that the model then reads as one row.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import cached_property
from itertools import groupby
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
from paradecode.core.errors import InvalidInput
from paradecode.core.network import Array, Network, Op
from paradecode.core.tree import EMPTY
from paradecode.methods.draft.verifiers.coupled import coupled
from paradecode.methods.parts import local_path, method, parameter
from paradecode.methods.trained import TrainedPart, layer_shapes, layer_steps, linear, rms_norm


class DropAdapters(TrainedPart):
    """A LoRA for each layer that may be skipped; ``facts["dropped"]`` lists these layers."""

    kind, field = "dropped layers 1", "adapters"
    sizes: ClassVar = {"layers": 1 << 10, "hidden_size": 1 << 16, "rank": 1 << 10}

    def wrong(self) -> str | None:
        inner, dropped = range(1, self.facts["layers"] - 1), self.facts.get("dropped")
        known = (
            isinstance(dropped, list)
            and all(type(at) is int for at in dropped)
            and dropped == [at for at in inner if at in dropped]
        )
        return None if known and dropped else "it must drop inner layers, and name them in order"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        width, rank, dropped = self.facts["hidden_size"], self.facts["rank"], self.facts["dropped"]
        down = {f"{at}.a": (width, rank) for at in dropped}
        return down | {f"{at}.b": (rank, width) for at in dropped}

    @cached_property
    def pieces(self) -> list[tuple[tuple[int, ...], Network | None]]:
        """The model's layers as runs of adjacent layers, in order, each with a network or None.

        A run is a tuple of layer indices. A run of skippable layers has a network that replaces it;
        a run of layers that always run has None. The network's inputs are ``x``, the input of the
        run, and the last output of each layer of the run, under the layer's index.
        """
        dropped = self.facts["dropped"]
        runs = groupby(range(self.facts["layers"]), dropped.__contains__)
        return [
            (layers, self._instead(layers) if drops else None)
            for drops, layers in ((drops, tuple(run)) for drops, run in runs)
        ]

    def _instead(self, layers: tuple[int, ...]) -> Network:
        steps, x, width = list[Op](), "x", self.facts["hidden_size"]
        for at in layers:
            low, high = f"{at}.low", f"{at}.high"
            steps += [
                Op(low, "linear", (x,), (f"{at}.a",)),
                Op(high, "linear", (low,), (f"{at}.b",)),
            ]
            steps.append(Op(x := f"{at}.out", "add", (str(at), high)))
        return Network(dict.fromkeys(("x", *map(str, layers)), width), tuple(steps), self.tensors)


# Routers that read the prompt once and choose the layers that decode this sequence.

ROUTERS = "paradecode train first"


class Routers(TrainedPart):
    """A small linear router for each layer but the first decides whether a prompt needs the layer.

    A router's input is the layer's input at the prompt's last token, divided by its root mean
    square.
    """

    kind = "layer routers 1"
    field = "routers"
    sizes: ClassVar = {"layers": 1 << 10, "hidden_size": 1 << 16}

    def wrong(self) -> str | None:
        return "it is for one layer" if self.facts["layers"] < 2 else None

    def shapes(self) -> dict[str, tuple[int, ...]]:
        routed = self.facts["layers"] - 1
        return {"weight": (routed, self.facts["hidden_size"]), "bias": (routed,)}

    def layers(self, entered: NDArray[np.floating], threshold: float) -> tuple[int, ...]:
        """Return the indices of the layers that run, ascending; the first layer always runs.

        Args:
            entered: float32 [layers - 1, hidden size], the input of each layer but the first.
            threshold: least score, from 0 to 1, of a layer that runs.
        """
        entered = entered.astype(np.float64)  # Large weights do not overflow.
        rms = np.sqrt(np.square(entered).mean(1) + 1e-6)
        logits = (entered * self.tensors["weight"]).sum(1) / rms + self.tensors["bias"]
        kept = 1.0 / (1.0 + np.exp(-np.clip(logits, -60.0, 60.0))) >= threshold
        return (0, *(np.flatnonzero(kept) + 1).tolist())


@method("first", guarantee="lossy", training=ROUTERS, paper="FiRST", arxiv="2410.12513")
class FirstLayers:
    """Routers read the prompt and choose, once, the layers that decode this sequence.

    The prompt runs through all layers. Every token after the prompt runs through the chosen layers
    only, and has keys and values in the chosen layers only. Nothing verifies these tokens.

    The paper pools a layer's input over the prompt. Here a router reads the prompt's last token
    alone, so the choice does not depend on how much of the prompt was cached. The first layer
    always runs.

    When: the model was made by ``paradecode train first``, it is deep, and some loss of quality is
    acceptable.
    """

    routers: str = local_path("file of `train first`")
    threshold: float = parameter(0.5, 0.0, 1.0, "least score of a layer that runs; 0 runs all")

    def __post_init__(self) -> None:
        self.trained = Routers.needed("first", self.routers, ROUTERS)

    def decode(self, seq: TokenSequence) -> Steps:
        self.trained.check("first", facts := seq.about(), "layers", "hidden_size")
        inner = range(facts.layers - 1)
        # A resumed text already has output: only the prompt runs through all layers.
        ahead = seq.prompt_length - 1 - (len(seq.tokens) - len(seq.pending))
        if ahead > 0:
            yield Forward(seq.pending[:ahead])
        reply = yield Forward(seq.pending[:1], hidden=tuple(inner))
        entered = np.array([reply.hidden[layer][-1] for layer in inner], np.float32)
        layers = self.trained.layers(entered, self.threshold)
        if not len(seq.pending):
            seq.commit(coupled(seq, EMPTY, reply))
        while not seq.finished:
            reply = yield Forward(seq.pending, layers=layers)
            seq.commit(coupled(seq, EMPTY, reply))


# Most tokens skip some layers: a LoRA corrects the output of each skipped layer.

ADAPTERS = "paradecode train lora-drop"


@method("lora-drop", guarantee="lossy", training=ADAPTERS, paper="LoRA-Drop", arxiv="2601.02569")
class LoraDrop:
    """Skip some layers for most tokens; a LoRA corrects the output that a layer gave earlier.

    The prompt runs through all layers. After it, one token of every ``window`` + 1 runs through all
    layers as well: a *refresh*. The tokens between two refreshes skip the layers that have a LoRA.
    A skipped layer stores no keys and values for a token. In that layer, a refresh therefore
    attends only to the prompt and earlier refreshes. The skipped layer's output is its output at
    the last refresh, plus a LoRA of its present input. Nothing verifies the tokens.

    The first and the last layer always run. ``window`` has no default: no measured value keeps 95 %
    of plain decoding's answers and is faster at the same time.

    When: the LoRA was made by ``paradecode train lora-drop``, the model is large, and some loss of
    quality is acceptable.
    """

    adapters: str = local_path("file of `train lora-drop`")
    window: int = parameter(
        -1, -1, 1 << 10, "tokens between two that run all layers; 0 drops none; must be given"
    )

    def __post_init__(self) -> None:
        self.trained = DropAdapters.needed("lora-drop", self.adapters, ADAPTERS)
        if self.window < 0:
            fix = "write window=N, the number with which the LoRA was trained; 0 drops no layer"
            raise InvalidInput("lora-drop.window", "", fix)
        self.outputs: dict[int, Array] = {}  # Layer -> its output at the last refresh.

    def decode(self, seq: TokenSequence) -> Steps:
        self.trained.check("lora-drop", seq.about(), "layers", "hidden_size")
        at = seq.prompt_length - 1
        refreshed = np.arange(at, dtype=np.int32)
        ahead = at - (len(seq.tokens) - len(seq.pending))
        if ahead > 0:
            yield Forward(seq.pending[:ahead])
        while not seq.finished:
            refresh = (at - seq.prompt_length + 1) % (self.window + 1) == 0
            reply = yield from self.token(seq, at, refreshed, refresh)
            if refresh:
                refreshed = np.append(refreshed, np.int32(at))
            at += 1
            if at == len(seq.tokens):  # A resumed text already has output.
                seq.commit(coupled(seq, EMPTY, reply))

    def token(
        self, seq: TokenSequence, at: int, refreshed: NDArray[np.int32], refresh: bool
    ) -> Generator[Request, Any, Reply]:
        """Run the token at position ``at`` through all runs of layers; return the last reply.

        Args:
            refreshed: int32, positions of the prompt and of the refreshes so far.
            refresh: True if this token runs through all layers.
        """
        place = np.array([at], np.int32)
        x: Any = None
        for layers, instead in self.trained.pieces:
            if instead is not None and not refresh:
                last = {str(layer): self.outputs[layer] for layer in layers}
                x = yield Apply(instead, {"x": x, **last})
                continue
            # The first run of layers appends the row; later runs add their keys and values to it.
            appends = at == len(seq.tokens) - len(seq.pending)
            ends = layers[-1] == self.trained.facts["layers"] - 1
            reply = yield Forward(
                seq.tokens[at : at + 1],
                store=Store.COMMIT if appends else Overwrite(place),
                positions=place,
                visible=refreshed if instead else np.arange(at, dtype=np.int32),
                logits=None if ends else place[:0],
                hidden=() if ends else layers,
                layers=layers,
                resume=x,
            )
            if instead is not None:
                self.outputs |= {layer: reply.hidden[layer] for layer in layers}
            x = None if ends else reply.hidden[layers[-1]]
        return reply


# Token groups: several tokens share one row, and so one row of keys and values.


class TokenGroups(TrainedPart):
    """Three networks that merge, continue and end groups of tokens (arXiv 2505.20438).

    D is the model's hidden size. ``merge`` makes one row from a group's embeddings ``x`` [n, D]:
    their ``mean`` is the query of an attention over them.

    ``unroll`` is a small decoder. Its input ``x`` has the model's hidden states at a row, then the
    embeddings of the tokens written since; its last output row predicts the next token.

    ``ends`` takes a hidden state ``x`` and gives the probability that the token predicted from it
    is the last token of its group.
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
        """Return the layers whose states are read: the last layer of each quarter of the model."""
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
    """Return the operations of the network ``merge``.

    Its input ``outside`` is 1 for rows that pad a group, else 0. Its input ``zeros`` gives every
    row position 0, so attention does not rotate the rows.
    """
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
    """Return the operations of the network ``unroll``: Llama layers with causal attention.

    The input ``places`` has the rows' positions. Each row of ``x`` is first divided by its root
    mean square.
    """
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
class Hamburger:
    """The model reads the tokens of a group as one row, and a small decoder writes the next group.

    A group's row has the position of the group's last token, and is stored in the next free slot of
    the K/V cache: a text takes as many slots as it has rows, and no slots for the other tokens.
    Each token of the prompt has a row of its own.

    The model itself predicts the first token of the next group. The small decoder writes the other
    tokens, and stops where the group probably ends. Nothing verifies these tokens.

    When: the model was made by ``paradecode train hamburger``, its texts have runs of predictable
    tokens, and some loss of quality is acceptable.
    """

    parts: str = local_path("file of `train hamburger`")
    group: int = parameter(4, 1, 64, "most tokens of a group, and at most as many as were trained")
    confidence: float = parameter(0.9, 0.0, 1.0, "least probability with which a group goes on")

    def __post_init__(self) -> None:
        self.trained = TokenGroups.needed("hamburger", self.parts, COMMAND)
        self.most = min(self.group, self.trained.facts["most"])

    def decode(self, seq: TokenSequence) -> Steps:
        self.trained.check("hamburger", seq.about(), "layers", "hidden_size")
        begin, end = seq.prompt_length - 1, seq.prompt_length
        ahead = begin - (len(seq.tokens) - len(seq.pending))
        if ahead > 0:
            yield Forward(seq.pending[:ahead])
        slot = begin
        while not seq.finished:
            reply = yield from self.read(seq, begin, end, slot)
            begin, end, slot = end, end + (yield from self.write(seq, end, reply)), slot + 1

    def read(
        self, seq: TokenSequence, begin: int, end: int, slot: int
    ) -> Generator[Request, Any, Reply]:
        """Run the tokens from position ``begin`` to ``end`` as one row, stored in ``slot``.

        The row attends to all slots before it.
        """
        place, row = np.array([end - 1], np.int32), None
        if end - begin > 1:
            words, zeros = seq.embed(seq.tokens[begin:end]), np.zeros(end - begin, np.int64)
            x = {"x": words, "mean": np.repeat(words.mean(0, keepdims=True), end - begin, 0)}
            places = {"places": np.arange(end - begin), "zeros": zeros, "outside": zeros}
            row = (yield Apply(self.trained.merge, x | places))[:1]
        return (yield Forward(
            seq.tokens[end - 1 : end], embeddings=row, positions=place, hidden=self.trained.taps(),
            store=Overwrite(np.array([slot], np.int32)), visible=np.arange(slot, dtype=np.int32),
        ))  # fmt: skip

    def write(self, seq: TokenSequence, at: int, reply: Reply) -> Generator[Request, Any, int]:
        """Write the next group from position ``at`` on, and return its number of tokens.

        Tokens that another worker already wrote are left as they are. ``reply`` has the model's
        hidden states and logits for the row before the group.
        """
        rows, count = np.concatenate(list(reply.hidden.values())), 0
        state = rows[-1:]
        while True:
            if at + count == len(seq.tokens):  # A resumed text already has some tokens.
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
            # No layer runs, only the model's last norm and its LM head.
            reply = yield Forward(token, store=Store.NONE, layers=(), resume=state)
