"""The JSON form of a trace, for the viewer and for other tools.

A reader should refuse another ``format`` or a greater ``version``. Within a version fields may be
added, but no field changes its meaning or disappears.
"""

from __future__ import annotations

from typing import Literal, TypedDict

FORMAT: Literal["paradecode-trace"] = "paradecode-trace"
VERSION = 1


class TokenRecord(TypedDict):
    """One output token, in the order of the text.

    Attributes:
        id: token id.
        text: the text that the token adds; empty inside of a character and for control tokens.
        step: index of the last step that committed it; -1 if it was placed before the first step.
        forward: number of that step's forward, from 1; 0 if there is no such step.
        drafted: whether it came from the draft.
        probability: the model's own at temperature 1, or the confidence at its commit; None if it
            was not recorded.
        top: most likely tokens at this place with their probabilities, best first; may be empty.
    """

    id: int
    text: str
    step: int
    forward: int
    drafted: bool
    probability: float | None
    top: list[tuple[int, float]]


class TreeRecord(TypedDict):
    """A draft tree as parallel lists; a parent comes before its children.

    Attributes:
        tokens: token id of each node.
        parents: index of each node's parent; -1 is the last committed token.
        estimates: the drafter's probability that a node is accepted if its parent is.
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
        accepted: how many of them, counted from the first, came from the draft.
        drafted: number of draft rows that the target scored since the commit before.
        tree: the draft of the last forward.
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
        block: first position that could be committed, and one past the last.
        remasked: positions that lost their token.
        committed: positions that got a token; a position may get a new token.
        provisional: proposals at positions that stay masked.
    """

    forward: int
    seconds: float
    block: tuple[int, int]
    remasked: list[int]
    committed: Placed
    provisional: Placed


class BranchRecord(TypedDict):
    """A branch of a search.

    Attributes:
        after: index of the branch that it goes on from; None is the prompt.
        text: what it wrote itself, ``tokens`` tokens.
        reason: why it ended.
        score: what the scorer gave it; None if it was not asked.
        chosen: whether it is a part of the answer.
    """

    after: int | None
    text: str
    tokens: int
    reason: str
    score: float | None
    chosen: bool


class Trace(TypedDict):
    """A whole request.

    Attributes:
        paradecode: version of the program that wrote it.
        family: says whether ``steps`` has DraftStepRecords or CanvasStepRecords.
        prompt, text: the prompt with its control tokens, and the output.
        finish_reason: as in a completion.
        canvas: number of positions of the canvas; 0 for autoregressive methods.
        preset: tokens on the canvas before the first forward.
        stats: counts and seconds, the fields of :class:`paradecode.core.trace.Stats`.
        pieces: token id (as text) -> the token's own text, for every id that occurs.
        control: those of the ids that are control tokens.
        branches: of the search that found the output, in the order in which they began; or empty.
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
    branches: list[BranchRecord]
