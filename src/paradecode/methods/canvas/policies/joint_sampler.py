"""Commits several tokens a forward, one by one: a small layer tells each of them the tokens
before it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from paradecode.core.decoder import Apply, Forward, Reply, Steps, Store, TokenSequence
from paradecode.methods.canvas.canvas import Decision, View
from paradecode.methods.canvas.loop import Unmask, policy
from paradecode.methods.canvas.networks import JointLayer
from paradecode.methods.canvas.policies.base import SCORES, Policy
from paradecode.methods.parts import choice, local_path, parameter

COMMAND = "paradecode train joint-sampler"


@dataclass
class OneByOne(Unmask):
    """The loop that commits tokens one by one between two forwards, and runs the layer between two
    commits.

    The layer's states go through the model's own last norm and head, in a forward that runs no
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
            # Rows see what the model's own attention would let them see.
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
    training=COMMAND,
    aliases=("adjust",),
    names={"alg": "score"},
    driver=OneByOne,
)
@dataclass
class JointSampler(Policy):
    """Commit several tokens a forward one by one; a trained layer makes each see those before it.

    After a commit the layer corrects the last forward's final states for what has become known,
    and the best position and its token are chosen anew from them. The first token of a forward is
    that of `static`. Under a cache the layer sees the rows that the forward computed.

    When: samples above temperature 0 should stay close to the model's joint distribution although
    several tokens are decided a forward.
    """

    layer: str = local_path(f"file of `{COMMAND}`")
    tokens: int = parameter(4, 1, 64, "commits a forward")
    score: str = choice("entropy", tuple(SCORES), "what ranks the positions")

    def __post_init__(self) -> None:
        self.trained = JointLayer.needed("joint-sampler", self.layer, COMMAND)

    def decide(self, view: View) -> Decision:
        return Decision(view.best(SCORES[self.score](view), 1))
