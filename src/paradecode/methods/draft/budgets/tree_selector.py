"""The selector network of delayed trees: which action pays, from hidden states and entropies."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.methods.draft.budgets.actions import Action, actions
from paradecode.methods.draft.budgets.states import unit
from paradecode.methods.read_once import read_once
from paradecode.methods.tensor_file import (
    Tensors,
    checked,
    load_tensors,
    save_tensors,
    size_in,
)

KIND = "tree selector 1"
FIELD = "tree_selector"
MOST_WIDTH = 1 << 14
PROJECTED, INNER, LATER = 128, 512, 32
"""Sizes of the paper's network: each state's projection, then two layers."""

SCALARS = (
    "entropy of p before", "entropy of q before", "entropy of q now",
    "KL(p || q) before", "KL(q || p) before", "log context length",
    "temperature", "top_p", "log seconds of a draft forward", "log seconds of a target forward",
)  # fmt: skip
STATES = ("p_before", "q_before", "q_now")

Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Situation:
    """What is known when the shape of the next draft is chosen, of N steps.

    ``before``: of the last step: the target's row that its last token was drawn from, and the
    draft's newest row on the accepted path; divergences are of the two models at the latter.
    ``now``: the draft's row of the newest token, which its first forward computes in any case.

    Attributes:
        p_before: float32 [N, Hp], last layer of the target.
        q_before, q_now: float32 [N, Hq], last layer of the draft.
        scalars: float32 [N, len(SCALARS)].
    """

    p_before: Array
    q_before: Array
    q_now: Array
    scalars: Array

    def __len__(self) -> int:
        return len(self.scalars)


@dataclass(frozen=True, eq=False)
class TreeSelector:
    """Thomas et al. 2026 (arXiv 2602.16994): an MLP that scores every action; arg-max is taken.

    Each state goes through a linear layer to 128 and a LayerNorm; these and the scalars through 512
    and 32 GELU units (tanh form) to one score for each action. States are brought to unit scale
    first. Divergences are summed over 64 tokens (see ``states.divergence``), and are 0 when the
    draft model has a vocabulary of its own; the paper's "positional information" is the context
    length. Scalars that did not vary in training are ignored.

    Attributes:
        count: most nodes of its actions, which are ``choices(count)``.
        tensors: the weights, by name; see :func:`shapes`.
    """

    count: int
    tensors: Tensors

    def scores(self, situation: Situation) -> NDArray[np.float64]:
        """float64 [N, A].

        Raises:
            InvalidInput: if it was trained for models of other sizes.
        """
        t = self.tensors
        parts: list[Array] = [(situation.scalars - t["mean"]) * t["scale"]]
        for name in STATES:
            states = getattr(situation, name)
            if states.shape[1] != len(t[f"{name}.weight"]):
                raise InvalidInput(
                    FIELD, f"a selector for {name} of {len(t[f'{name}.weight'])} numbers",
                    f"these models have {states.shape[1]}: train one with them",
                )  # fmt: skip
            seen = unit(states) @ t[f"{name}.weight"] + t[f"{name}.bias"]
            seen = seen - seen.mean(axis=1, keepdims=True)
            seen = seen / np.sqrt((seen * seen).mean(axis=1, keepdims=True) + np.float32(1e-5))
            parts.append(seen * t[f"{name}.gain"] + t[f"{name}.shift"])
        x: Array = np.concatenate(parts, axis=1)
        x = _gelu(x @ t["inner.weight"] + t["inner.bias"])
        x = _gelu(x @ t["later.weight"] + t["later.bias"])
        return (x @ t["out.weight"] + t["out.bias"]).astype(np.float64)

    def choose(self, situation: Situation, count: int) -> Action:
        """The best action of at most ``count`` nodes for the one step of ``situation``."""
        options = choices(self.count)
        scores = self.scores(situation)[0]
        scores[[action.nodes > count for action in options]] = -np.inf
        return options[int(np.argmax(scores))]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file that :func:`open_selector` reads."""
        sizes = {name: len(self.tensors[f"{name}.weight"]) for name in ("p_before", "q_now")}
        facts = {"count": self.count, "scalars": list(SCALARS), **sizes}
        save_tensors(path, KIND, facts, self.tensors)


def choices(count: int) -> list[Action]:
    """The actions a selector scores: no draft, and all of at most ``count`` nodes."""
    return [Action(1, 0, 0), *actions(count)]


def shapes(p: int, q: int, count: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights for states of ``p`` and ``q`` numbers."""
    widths = {"p_before": p, "q_before": q, "q_now": q}
    found: dict[str, tuple[int, ...]] = {"mean": (len(SCALARS),), "scale": (len(SCALARS),)}
    for name in STATES:
        found[f"{name}.weight"] = (widths[name], PROJECTED)
        found |= {f"{name}.{vector}": (PROJECTED,) for vector in ("bias", "gain", "shift")}
    width = len(SCALARS) + len(STATES) * PROJECTED
    for name, size in (("inner", INNER), ("later", LATER), ("out", len(choices(count)))):
        found |= {f"{name}.weight": (width, size), f"{name}.bias": (size,)}
        width = size
    return found


@read_once(FIELD)
def open_selector(path: str, most_nodes: int) -> TreeSelector:
    """The selector of a file, read and checked once for all requests.

    Raises:
        InvalidInput: for a file that is missing, damaged or not a tree selector.
    """
    facts, tensors = load_tensors(path, KIND, FIELD)
    count = size_in(FIELD, path, facts, "count", most_nodes)
    p, q = (size_in(FIELD, path, facts, name, MOST_WIDTH) for name in ("p_before", "q_now"))
    if facts.get("scalars") != list(SCALARS):
        raise InvalidInput(FIELD, path, "it reads other scalars than this version: train it again")
    checked(FIELD, path, tensors, shapes(p, q, count))
    return TreeSelector(count, tensors)


def _gelu(x: Array) -> Array:
    inner = (x + np.float32(0.044715) * x**3) * np.float32(np.sqrt(2.0 / np.pi))
    return (0.5 * x * (1.0 + np.tanh(inner))).astype(np.float32)
