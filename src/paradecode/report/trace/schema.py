"""The JSON form of a trace: what the viewer reads, and other tools may.

A reader should refuse another ``format`` or a greater ``version``. New fields may be added within a
version; a field never changes its meaning or disappears within one.
"""

from __future__ import annotations

from typing import Literal, TypedDict

FORMAT: Literal["paradecode-trace"] = "paradecode-trace"
VERSION = 1


class TokenRecord(TypedDict):
    """One output token, in the order of the text.

    Attributes:
        id: token id.
        text: what the token adds to the text; empty in mid-character and for control tokens.
        step: index of the step that committed it for good; -1 if it was there before the first.
        drafted: it came from the draft.
        probability: the model's own at temperature 1, or the confidence it was committed with;
            None where it was not recorded.
        top: likeliest tokens at this place, with their probabilities, best first; may be empty.
    """

    id: int
    text: str
    step: int
    drafted: bool
    probability: float | None
    top: list[tuple[int, float]]


class TreeRecord(TypedDict):
    """A draft as parallel lists; a parent comes before its children, -1 is the last token.

    Attributes:
        tokens: token id of each node.
        parents: index of each node's parent.
        estimates: the drafter's probability that a node is accepted given that its parent is.
        accepted: nodes of the accepted path, from the root down.
    """

    tokens: list[int]
    parents: list[int]
    estimates: list[float]
    accepted: list[int]


class DraftStepRecord(TypedDict):
    """One commit of an autoregressive method; times are seconds since the commit before it.

    Attributes:
        forward: target forwards used so far, this one included.
        seconds: wall time since the commit before (or since admission).
        tokens: committed ids.
        accepted: how many of them came from the draft; they come first.
        drafted: draft rows that the target scored since the commit before.
        tree: the draft of the last of those forwards.
    """

    forward: int
    seconds: float
    tokens: list[int]
    accepted: int
    drafted: int
    tree: TreeRecord


class Placed(TypedDict):
    """Tokens at canvas positions, as parallel lists; position 0 follows the prompt."""

    positions: list[int]
    tokens: list[int]
    confidences: list[float]


class CanvasStepRecord(TypedDict):
    """One forward of a diffusion method. A reader applies ``remasked`` first, then ``committed``.

    Attributes:
        forward: target forwards used so far, this one included.
        seconds: wall time since the step before.
        block: first position and end of those that were eligible.
        remasked: positions that lost their token.
        committed: positions that got one; a position that had one is revised.
        provisional: what the model proposed at positions that stay masked.
    """

    forward: int
    seconds: float
    block: tuple[int, int]
    remasked: list[int]
    committed: Placed
    provisional: Placed


class Trace(TypedDict):
    """A whole request.

    Attributes:
        paradecode: version of the program that wrote it.
        family: decides what ``steps`` holds: DraftStepRecord or CanvasStepRecord.
        prompt, text: what the model was given, control tokens spelled out, and the output.
        finish_reason: as in a completion.
        canvas: positions of the canvas; 0 for autoregressive methods.
        preset: what stood on the canvas before the first forward.
        stats: counts and seconds, the fields of :class:`paradecode.core.trace.Stats`.
        pieces: token id (as text) to the token's own text, for every id that occurs.
        control: ids among them that are control tokens.
    """

    format: Literal["paradecode-trace"]
    version: int
    paradecode: str
    family: Literal["autoregressive", "diffusion"]
    model: str
    decoder: str
    backend: str
    prompt: str
    text: str
    finish_reason: str
    canvas: int
    preset: Placed
    stats: dict[str, float | int | list[int]]
    pieces: dict[str, str]
    control: list[int]
    tokens: list[TokenRecord]
    steps: list[DraftStepRecord] | list[CanvasStepRecord]
