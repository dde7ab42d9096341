"""The JSON form of a trace, for the viewer and other tools, and how a completion becomes one.

A reader should refuse another ``format`` or a greater ``version``. Within a version, fields may be
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
    """One output token. Tokens are in the order of the text.

    Attributes:
        id: token id.
        text: the text that the token adds; empty for a control token, or if a character is
            incomplete.
        step: index of the last step that committed the token; -1 if it was placed before the first
            step.
        forward: number of that step's forward, from 1; 0 if there is no such step.
        drafted: whether the token came from the draft.
        probability: the model's probability at temperature 1, or the confidence at the commit; None
            if neither was recorded.
        top: the most likely tokens at this place with their probabilities, best first; may be
            empty.
    """

    id: int
    text: str
    step: int
    forward: int
    drafted: bool
    probability: float | None
    top: list[tuple[int, float]]


class TreeRecord(TypedDict):
    """A draft tree as parallel lists. A parent comes before its children.

    Attributes:
        tokens: token id of each node.
        parents: index of each node's parent; -1 means the last committed token.
        estimates: the drafter's probability that a node is accepted if its parent is.
        accepted: indices of the nodes of the accepted path, from the root down.
    """

    tokens: list[int]
    parents: list[int]
    estimates: list[float]
    accepted: list[int]


class DraftStepRecord(TypedDict):
    """One commit of an autoregressive method. Times are seconds since the commit before it.

    Attributes:
        forward: number of target forwards so far, including this one.
        seconds: wall time since the commit before, or since admission, in seconds.
        tokens: ids of the committed tokens.
        accepted: how many of ``tokens``, counted from the first, came from the draft.
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
    """Tokens at canvas positions, as parallel lists. Position 0 follows the prompt."""

    positions: list[int]
    tokens: list[int]
    confidences: list[float]


class CanvasStepRecord(TypedDict):
    """One forward of a diffusion method. A reader applies ``remasked`` first, then ``committed``.

    Attributes:
        forward: number of target forwards so far, including this one.
        seconds: wall time since the step before, in seconds.
        block: the first position that could be committed, and the one after the last such position.
        remasked: positions that lost their token.
        committed: positions that got a token, with the tokens. A position may get a new token
            later.
        provisional: proposed tokens at positions that stay masked.
    """

    forward: int
    seconds: float
    block: tuple[int, int]
    remasked: list[int]
    committed: Placed
    provisional: Placed


class Trace(TypedDict):
    """The trace of a whole request.

    Attributes:
        paradecode: version of the program that wrote the trace.
        family: family of the method; it says whether ``steps`` has DraftStepRecords or
            CanvasStepRecords.
        prompt, text: the prompt with its control tokens, and the output.
        finish_reason: as in a completion.
        canvas: number of positions of the canvas; 0 for autoregressive methods.
        preset: tokens that were on the canvas before the first forward.
        stats: counts and times in seconds, as in :class:`paradecode.core.trace.Stats`.
        pieces: token id (as text) -> the token's own text, for every id that occurs.
        control: the ids in ``pieces`` that are control tokens.
        branches: branches of the search that found the output, in the order in which they began;
            empty without a search. Each has the attributes of
            :class:`paradecode.completion.SearchedBranch`.
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


# Convert the steps of a completion's trace to their JSON form.

DIGITS = 4
"""Number of decimals of probabilities."""


def draft_step(step: Step) -> DraftStepRecord:
    """Return the record of one commit, with the accepted nodes of its draft tree."""
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
    """Return the record of one forward of a canvas.

    Raises:
        ValueError: if the step belongs to an autoregressive method.
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
    """Return tuples of (position, token, confidence) as parallel lists."""
    rows = list(entries)
    return {
        "positions": [position for position, _, _ in rows],
        "tokens": [token for _, token, _ in rows],
        "confidences": shares(confidence for _, _, confidence in rows),
    }


def shares(values: Iterable[float]) -> list[float]:
    """Return probabilities rounded for JSON. Undefined ones become 0."""
    return [round(value, DIGITS) if isfinite(value) else 0.0 for value in values]


def trace_of(completion: Completion, llm: LLM) -> Trace:
    """Return the trace of an output of ``llm``."""
    return trace_record(completion, llm.tokenizer, llm.model, str(llm.decoder), llm.backend.name)


def trace_record(
    completion: Completion, tokenizer: Tokenizer, model: str, decoder: str, backend: str
) -> Trace:
    """Return the trace of one output.

    Args:
        completion: the output. Its ``logprobs``, if there are any, give the probabilities.
        tokenizer: tokenizer of the model that wrote the output.
        model, decoder, backend: names that viewers show.
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
        # A token that no step committed was placed by the method before the first forward.
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
    """Return the text of a single token. A control token is shown by its name."""
    if tokenizer.byte_level or tokenizer.is_control(token):
        stream = tokenizer.stream(skip_special=False)
        return stream.push(token) + stream.flush()
    # A SentencePiece stream would remove the space before a first token.
    return tokenizer.token(token).replace("▁", " ")
