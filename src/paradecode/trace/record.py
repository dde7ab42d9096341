"""The JSON form of a trace, for the viewer and for other tools, and how a completion becomes one.

A reader should refuse another ``format`` or a greater ``version``. Within a version fields may be
added, but no field changes its meaning or disappears.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from math import exp, isfinite
from typing import Any, Literal, TypedDict

from paradecode import __version__
from paradecode.completion import Completion
from paradecode.core.trace import Step
from paradecode.core.tree import ROOT, TokenTree
from paradecode.llm import LLM
from paradecode.models.tokenizer import Tokenizer

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
        branches: of the search that found the output, in the order in which they began, or empty;
            each has the attributes of :class:`paradecode.completion.SearchedBranch`.
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
    branches: list[dict[str, Any]]


# Steps of a completion's trace in their JSON form.

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


def trace_of(completion: Completion, llm: LLM) -> Trace:
    """The trace of an output of ``llm``."""
    return trace_record(completion, llm.tokenizer, llm.model, str(llm.decoder), llm.backend.name)


def trace_record(
    completion: Completion, tokenizer: Tokenizer, model: str, decoder: str, backend: str
) -> Trace:
    """The trace of one output.

    Args:
        completion: its ``logprobs``, if there are any, give the probabilities.
        tokenizer: of the model that wrote the output.
        model, decoder, backend: names to show.
    """
    searched = completion.search
    diffusion = any(step.canvas is not None for step in completion.trace)
    steps: list[DraftStepRecord] | list[CanvasStepRecord]
    if diffusion:
        steps = [canvas_step(step) for step in completion.trace]
        parts = [part for step in steps for part in (step["committed"], step["provisional"])]
        ids = {token for part in parts for token in part["tokens"]}
        tokens = _canvas_tokens(completion, steps)
    else:
        steps = [draft_step(step) for step in completion.trace]
        ids = {token for step in steps for token in step["tree"]["tokens"]}
        tokens = _draft_tokens(completion)
    _add_texts(tokens, tokenizer)
    _add_probabilities(tokens, completion)
    for token in tokens:
        ids |= {token["id"], *(other for other, _ in token["top"])}
    return {
        "format": FORMAT,
        "version": VERSION,
        "paradecode": __version__,
        "family": "diffusion" if diffusion else "autoregressive",
        "model": model,
        "decoder": decoder,
        "backend": backend,
        "prompt": tokenizer.decode(completion.prompt_token_ids, skip_special=False),
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "canvas": max((step.canvas.length for step in completion.trace if step.canvas), default=0),
        "preset": placed(
            (position, token["id"], 1.0)
            for position, token in enumerate(tokens)
            if token["step"] < 0
        ),
        "stats": asdict(completion.stats),
        "pieces": {str(token): piece(tokenizer, token) for token in sorted(ids)},
        "control": [token for token in sorted(ids) if tokenizer.is_control(token)],
        "tokens": tokens,
        "steps": steps,
        "branches": list(map(asdict, searched.tree)) if searched else [],
    }


def _draft_tokens(completion: Completion) -> list[TokenRecord]:
    return [
        _token(token, index, step.forward, place < step.accepted)
        for index, step in enumerate(completion.trace)
        for place, token in enumerate(step.tokens)
    ]


def _canvas_tokens(completion: Completion, steps: list[CanvasStepRecord]) -> list[TokenRecord]:
    last = {
        position: (index, confidence)
        for index, step in enumerate(steps)
        for position, confidence in zip(
            step["committed"]["positions"], step["committed"]["confidences"], strict=True
        )
    }
    records: list[TokenRecord] = []
    for position, token in enumerate(completion.token_ids):
        # The method placed tokens that no step committed before the first forward.
        index, confidence = last.get(position, (-1, None))
        forward = steps[index]["forward"] if index >= 0 else 0
        records.append({**_token(token, index, forward, False), "probability": confidence})
    return records


def _token(token: int, step: int, forward: int, drafted: bool) -> TokenRecord:
    return {
        "id": token,
        "text": "",
        "step": step,
        "forward": forward,
        "drafted": drafted,
        "probability": None,
        "top": [],
    }


def _add_texts(tokens: list[TokenRecord], tokenizer: Tokenizer) -> None:
    stream = tokenizer.stream()
    for token in tokens:
        token["text"] = stream.push(token["id"])
    if tokens:
        tokens[-1]["text"] += stream.flush()


def _add_probabilities(tokens: list[TokenRecord], completion: Completion) -> None:
    for token, entry in zip(tokens, completion.logprobs or [], strict=False):
        logs = [entry.logprob, *(log for _, log in entry.top)]
        own, *others = shares(exp(min(log, 0.0)) for log in logs)
        if token["probability"] is None and token["step"] >= 0:
            token["probability"] = own
        token["top"] = list(zip((other for other, _ in entry.top), others, strict=True))


def piece(tokenizer: Tokenizer, token: int) -> str:
    """The text of a token alone; control tokens are shown by their names."""
    if tokenizer.byte_level or tokenizer.is_control(token):
        stream = tokenizer.stream(skip_special=False)
        return stream.push(token) + stream.flush()
    # A SentencePiece stream would strip the space of a first token.
    return tokenizer.token(token).replace("▁", " ")
