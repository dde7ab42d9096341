"""A completion as a trace in its JSON form."""

from __future__ import annotations

from dataclasses import asdict
from math import exp

from paradecode import __version__
from paradecode.completion import Completion, SearchedBranch
from paradecode.llm import LLM
from paradecode.models.tokenizer import Tokenizer
from paradecode.trace.schema import (
    FORMAT,
    VERSION,
    BranchRecord,
    CanvasStepRecord,
    DraftStepRecord,
    TokenRecord,
    Trace,
)
from paradecode.trace.steps import canvas_step, draft_step, placed, shares


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
        "branches": [_branch(each) for each in searched.tree] if searched else [],
    }


def _branch(branch: SearchedBranch) -> BranchRecord:
    return {
        "after": branch.after, "text": branch.text, "tokens": branch.tokens,
        "reason": branch.reason, "score": branch.score, "chosen": branch.chosen,
    }  # fmt: skip


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
