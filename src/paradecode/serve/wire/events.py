"""All messages that a worker sends: its properties, answers to questions, and outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Union

from pydantic import Field

from paradecode.serve.wire.fields import *
from paradecode.serve.wire.outputs import *


@dataclass(frozen=True, kw_only=True)
class Ready(WireMessage):
    """The worker has loaded its model.

    Attributes:
        decoder: spec of the method for requests without one.
        tools: whether the chat template shows tools.
        thoughts: whether the template has marks for reasoning, so that a budget can bound it.
        fim: tokens before a prefix, a suffix and the middle, of a model that fills gaps.
        bits: name of the worker's arithmetic. Workers with the same name compute the same bits.
        costs: measured cost curves of the worker's models, for the next worker of this model.
    """

    model: Name
    families: Annotated[list[Name], Field(max_length=8)]
    context_length: Count
    vocab_size: Count
    decoder: Short
    draft_model: Name | None
    chat: Flag
    tools: Flag = False
    thoughts: Flag = False
    fim: Annotated[list[Name], Field(max_length=3)] = field(default_factory=list)
    bits: Name = ""
    costs: dict[Name, dict[Name, list[Any]]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TokenizedPrompt(OneRequest):
    """Answer to :class:`Tokenize`: the token ids, and the text of each token."""

    tokens: Tokens
    texts: Texts


@dataclass(frozen=True, kw_only=True)
class DecodedText(OneRequest):
    """Answer to :class:`Detokenize`: the text of the tokens."""

    text: Text


@dataclass(frozen=True, kw_only=True)
class WorkerStats(OneRequest):
    """The present load of a worker, and its counts since it started.

    Attributes:
        running, waiting: numbers of outputs in the batch, and in the queue.
        waiting_tokens: number of prompt tokens in the queue.
        batch: the most outputs that run at the same time.
        pages, held_pages, idle_pages: numbers of pages of K/V memory over all models: all pages,
            those that live outputs hold, and those that only the prefix cache keeps.
        forwards, steps: numbers of the engine's forwards and steps since it started.
        refused: number of requests that were answered with 429 or 503.
        memory_bytes: resident memory in bytes.
        state_bytes: bytes of states that outputs and the prefix cache hold.
    """

    running: Count
    waiting: Count
    waiting_tokens: Count
    batch: Count
    pages: Count
    held_pages: Count
    idle_pages: Count
    forwards: Count
    steps: Count
    refused: Count
    memory_bytes: Count
    state_bytes: Count = 0


@dataclass(frozen=True, kw_only=True)
class CachedBlocks(OneRequest):
    """Blocks of 16 tokens in the prefix cache, and what the worker does at present.

    Attributes:
        next: value to send in the next :class:`AskBlocks`.
        whole: whether ``stored`` lists all blocks, so that earlier answers no longer count.
        stored, removed: hashes of the blocks that were added, and removed, as hexadecimal numbers.
    """

    next: Count
    whole: Flag
    stored: Hashes
    removed: Hashes
    stats: WorkerStats


EVENTS: dict[str, type[WireMessage]] = {
    "ready": Ready, "accepted": Accepted, "chunk": OutputChunk, "branch": BranchNews, "done": Done,
    "tokens": TokenizedPrompt, "text": DecodedText, "stats": WorkerStats, "blocks": CachedBlocks,
    "error": Failure,
}  # fmt: skip

Event = Union[Ready, OutputEvent, TokenizedPrompt, DecodedText, WorkerStats, CachedBlocks]
