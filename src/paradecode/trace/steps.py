"""Steps of a completion's trace in their JSON form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite

from paradecode.core.trace import Step
from paradecode.core.tree import ROOT, TokenTree
from paradecode.trace.schema import CanvasStepRecord, DraftStepRecord, Placed, TreeRecord

DIGITS = 4
"""Decimals of probabilities."""


def draft_step(step: Step) -> DraftStepRecord:
    """One commit, with the nodes of its tree that were accepted."""
    return {
        "forward": step.forward,
        "seconds": step.seconds,
        "tokens": list(step.tokens),
        "accepted": step.accepted,
        "drafted": step.drafted,
        "tree": _tree(step.tree, step.tokens[: step.accepted]),
    }


def _tree(tree: TokenTree, accepted: Sequence[int]) -> TreeRecord:
    path: list[int] = []
    for token in accepted:
        node = tree.child(path[-1] if path else ROOT, token)
        if node is None:  # The token came from the draft of an earlier forward.
            break
        path.append(node)
    return {
        "tokens": tree.tokens.tolist(),
        "parents": tree.parents.tolist(),
        "estimates": shares(tree.estimates.tolist()),
        "accepted": path,
    }


def canvas_step(step: Step) -> CanvasStepRecord:
    """One forward of a canvas.

    Raises:
        ValueError: if the step is one of an autoregressive method.
    """
    canvas = step.canvas
    if canvas is None:
        raise ValueError("a trace mixes steps with and without a canvas")
    return {
        "forward": step.forward,
        "seconds": step.seconds,
        "block": canvas.window,
        "remasked": list(canvas.revoked),
        "committed": placed(zip(canvas.offsets, canvas.tokens, canvas.confidences, strict=True)),
        "provisional": placed(canvas.proposed),
    }


def placed(entries: Iterable[tuple[int, int, float]]) -> Placed:
    """(position, token, confidence) as parallel lists."""
    rows = list(entries)
    return {
        "positions": [position for position, _, _ in rows],
        "tokens": [token for _, token, _ in rows],
        "confidences": shares(confidence for _, _, confidence in rows),
    }


def shares(values: Iterable[float]) -> list[float]:
    """Probabilities for JSON; undefined ones become 0."""
    return [round(value, DIGITS) if isfinite(value) else 0.0 for value in values]
