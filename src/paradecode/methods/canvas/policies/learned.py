"""Policies with a trained network: Learn2PD's filter with its end of text, and ADJUST's layer."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from paradecode.core.decoder import Apply, Forward, Reply, Steps, Store, TokenSequence
from paradecode.core.errors import InvalidInput
from paradecode.core.network import Op
from paradecode.methods.canvas.canvas import Decision, View
from paradecode.methods.canvas.loop import Unmask, policy
from paradecode.methods.canvas.policies.base import SCORES, Policy, Wrapper
from paradecode.methods.parts import choice, local_path, parameter
from paradecode.methods.trained import TrainedPart, layer_shapes, layer_steps, linear, rms_norm


class UnmaskFilter(TrainedPart):
    """Computes from a block's confidences the probability that each proposal is final.

    The network has two linear layers with a ReLU between them (arXiv 2509.25188; the paper does not
    publish its own function between the layers). Input ``confidence`` [N, block], output [N,
    block].
    """

    kind = "unmask filter 1"
    field = "filter"
    sizes: ClassVar = {"block": 1 << 10, "width": 1 << 10}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        block, width = self.facts["block"], self.facts["width"]
        return {"w1": (block, width), "b1": (width,), "w2": (width, block), "b2": (block,)}

    def inputs(self) -> dict[str, int]:
        return {"confidence": self.facts["block"]}

    def steps(self) -> tuple[Op, ...]:
        return (
            *linear("hidden", "confidence", "w1", "b1"),
            Op("active", "relu", ("hidden",)),
            *linear("logit", "active", "w2", "b2"),
            Op("chance", "sigmoid", ("logit",)),
        )


class JointLayer(TrainedPart):
    """ADJUST (arXiv 2509.22738): how final hidden states change when a masked token becomes known.

    A Llama layer reads projected embeddings of the tokens, plus the projected hidden states. In the
    paper the layer is as wide as the model, and its output is added to the states directly. Here
    the width is free, and a matrix leads back to the D numbers of a hidden state. The states are
    taken before the model's last norm; they are divided by their scale on the way in, and the
    result is multiplied by it on the way out. The projected embeddings are stored as a table.

    Inputs: the present tokens of the canvas (``tokens`` [n]), the ``states`` [n, D], their
    ``positions`` [n], and ``groups`` [n]: a row attends to rows of its own group and of lower ones.

    Output: the hidden states [n, D] that the model would have if it had read the tokens.
    """

    kind = "joint sampler 1"
    field = "layer"
    sizes: ClassVar = {
        "vocab_size": 1 << 21, "hidden_size": 1 << 14, "width": 1 << 13, "heads": 256,
        "inner": 1 << 15,
    }  # fmt: skip

    def wrong(self) -> str | None:
        fits = self.facts["width"] % (2 * self.facts["heads"]) == 0
        return None if fits else "its width is no multiple of 2 * heads"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        d, w, f = self.facts["hidden_size"], self.facts["width"], self.facts["inner"]
        return {
            "table": (self.facts["vocab_size"], w), "state": (d, w),
            **layer_shapes("", w, f),
            "out_norm": (w,), "out": (w, d),
        }  # fmt: skip

    def inputs(self) -> dict[str, int]:
        return {"tokens": 0, "states": self.facts["hidden_size"], "positions": 0, "groups": 0}

    def steps(self) -> tuple[Op, ...]:
        return (
            *rms_norm("unit", "states"),
            *linear("known", "unit", "state"),
            Op("word", "lookup", ("tokens",), ("table",)),
            Op("x", "add", ("word", "known")),
            *layer_steps("x3", "x", "", ("positions", "groups"), self.facts["heads"]),
            *rms_norm("h3", "x3", "out_norm"),
            *linear("change", "h3", "out"),
            Op("scaled", "multiply", ("change", "unit.rms")),
            Op("result", "add", ("states", "scaled")),
        )


# A policy that commits the tokens that a trained filter considers final.

DECIDED, GUESSED = "decided", "guessed"
ENDS = (DECIDED, GUESSED)


def cut(view: View, decision: Decision, when: str) -> Decision:
    """Return ``decision`` with the canvas cut after an end of text.

    The end is the first end of text that the decision commits. If it commits none and ``when`` is
    ``guessed``, the end is the most probable end of text that is proposed for any masked position.
    """
    if decision.truncate is not None:
        return decision
    stops = np.array(view.canvas.stops, np.int32)
    ends = decision.commit[np.isin(view.tokens(decision), stops)]
    if len(ends):
        return replace(decision, truncate=int(ends.min()) + 1)
    proposed = view.canvas.masked[view.positions] & np.isin(view.proposals, stops)
    if when != GUESSED or not proposed.any():
        return decision
    best = np.where(proposed, view.confidence, -1.0).argmax()
    return replace(decision, truncate=int(view.positions[best]) + 1)


def refuse_revising(method: str, inner: Policy, base: str) -> None:
    """Raise InvalidInput if policy ``inner`` might mask a committed end of text again."""
    if inner.revises:
        fix = "use one that keeps what it commits: an end that is revoked does not end the text"
        raise InvalidInput(f"{method}.base", base, fix)


@policy(
    "eotp",
    paper="Learning to Parallel: Accelerating Diffusion Large Language Models via Learnable "
    "Parallel Decoding",
    arxiv="2509.25188",
    aliases=("end-of-text-prediction",),
)
class EoTP(Wrapper):
    """Drop the canvas behind an end of text that the policy underneath commits.

    The tokens before the end stay as they are. The following forward passes have fewer rows, and in
    a model with full attention their predictions change. ``when=guessed`` is the released code: in
    every forward it also cuts behind the most probable end that is merely proposed, anywhere on the
    canvas. This shortens answers where the model is not sure of their length.

    When: the canvas is much longer than the answer. It can stand on any policy.
    """

    when: str = choice(DECIDED, ENDS, "what counts as an end: committed tokens, or proposals")

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_revising("eotp", self.inner, self.base)
        if self.when == GUESSED:
            self.observes = "canvas"

    def decide(self, view: View) -> Decision:
        return cut(view, self.inner.decide(view), self.when)


TRAIN_FILTER = "paradecode train unmask-filter"
OFF = "off"
DECIDED_INPUT = 1.0
"""The filter's input for positions without a confidence, or beyond the end of the block."""


@policy(
    "learn2pd",
    paper="Learning to Parallel: Accelerating Diffusion Large Language Models via Learnable "
    "Parallel Decoding",
    arxiv="2509.25188",
    training=TRAIN_FILTER,
    aliases=("learning-to-parallel", "l2p"),
)
class Learn2PD(Wrapper):
    """Commit tokens that a trained filter considers final, and tokens of the policy underneath.

    The filter reads the probabilities of the best tokens at all positions of the block, decided
    ones included. A block that is shorter than the blocks in training is filled up, and a longer
    one is judged in pieces. ``end`` is the setting ``when`` of ``eotp``: it says where the canvas
    is cut behind an end of text, or ``off``.

    When: there are prompts to train the filter with, in place of a threshold that is set by hand.
    """

    observes: Literal["masked", "window", "canvas"] = "window"

    filter: str = local_path(f"file of `{TRAIN_FILTER}`")
    sure: float = parameter(0.96, 0.0, 1.0, "probability that a final proposal must exceed")
    end: str = choice(DECIDED, (*ENDS, OFF), "behind which end of text the canvas is cut")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.trained = UnmaskFilter.needed("learn2pd", self.filter, TRAIN_FILTER)
        if self.end != OFF:
            refuse_revising("learn2pd", self.inner, self.base)
        if self.end == GUESSED:
            self.observes = "canvas"

    def prepare(self, view: View) -> Generator[Apply, Any, None]:
        yield from super().prepare(view)
        block = self.trained.facts["block"]
        offsets = view.positions[view.inside] - view.window.start
        pieces = np.full((int(offsets.max()) // block + 1, block), DECIDED_INPUT)
        pieces.ravel()[offsets] = view.confidence[view.inside]
        confidence = {"confidence": pieces.astype(np.float32)}
        self.chances = (yield Apply(self.trained.network, confidence)).ravel()[offsets]

    def decide(self, view: View) -> Decision:
        first = self.inner.decide(view)
        final = np.zeros(len(view.positions), bool)
        final[view.inside] = self.chances > self.sure
        final &= view.eligible & ~np.isin(view.positions, first.commit)
        decision = view.and_also(first, final) if final.any() else first
        return decision if self.end == OFF else cut(view, decision, self.end)


# Several tokens per forward, one by one: a small layer conditions each on the tokens before it.

TRAIN_LAYER = "paradecode train joint-sampler"


@dataclass
class OneByOne(Unmask):
    """The loop that commits the tokens of a forward pass one by one, and runs the layer in between.

    The layer's output goes through the model's own last norm and LM head, in a forward that runs no
    layer of the model.
    """

    policy: JointSampler

    def decode(self, seq: TokenSequence) -> Steps:
        last, layer = seq.about().layers - 1, self.policy.trained
        layer.check("joint-sampler", seq.about(), "vocab_size", "hidden_size")
        canvas = self.begin(seq)
        while not seq.finished:
            window, plan = self.plan()
            forward, positions = self.ask(window, plan)
            reply: Reply = yield replace(forward, hidden=(last,))
            self.store(plan)
            assert forward.positions is not None
            about = forward.positions + int(canvas.shift)
            states = reply.hidden[last][about < canvas.end]
            about = about[about < canvas.end]
            # Rows attend to the rows that the model's own attention allows.
            places = {"positions": about, "groups": about // (canvas.block or canvas.end)}
            for turn in range(self.policy.tokens):
                view = self.read(window, plan.refresh, positions, reply.logits)
                view = self.narrow(view, window if turn else None)
                window = view.window
                self.commit(view, self.policy.decide(view))
                positions = positions[canvas.masked[positions]]
                inside = (positions >= window.start) & (positions < window.end)
                if seq.finished or not inside.any() or turn + 1 == self.policy.tokens:
                    break
                known = {"tokens": canvas.tokens[about], "states": states, **places}
                states = yield Apply(layer.network, known)
                reply = yield Forward(
                    canvas.tokens[positions],
                    store=Store.NONE,
                    positions=positions.astype(np.int32),
                    logits=np.arange(len(positions), dtype=np.int32),
                    layers=(),
                    resume=states[np.searchsorted(about, positions)],
                )


@policy(
    "joint-sampler",
    paper="Enabling Approximate Joint Sampling in Diffusion LMs",
    arxiv="2509.22738",
    training=TRAIN_LAYER,
    aliases=("adjust",),
    names={"alg": "score"},
    driver=OneByOne,
)
class JointSampler(Policy):
    """Commit several tokens per forward, each conditioned on the ones before by a trained layer.

    After a commit the layer corrects the last forward pass's final hidden states for the new token.
    The next position and its token are then chosen from the corrected states. The first token of a
    forward is the same as with `static`. Under a cache the layer reads only the rows that the
    forward computed.

    When: samples above temperature 0 should stay close to the model's joint distribution although
    several tokens are decided per forward.
    """

    layer: str = local_path(f"file of `{TRAIN_LAYER}`")
    tokens: int = parameter(4, 1, 64, "number of tokens that a forward commits")
    score: str = choice("entropy", tuple(SCORES), "score that ranks the positions")

    def __post_init__(self) -> None:
        self.trained = JointLayer.needed("joint-sampler", self.layer, TRAIN_LAYER)

    def decide(self, view: View) -> Decision:
        return Decision(view.best(SCORES[self.score](view), 1))
