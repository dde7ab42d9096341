"""All that a worker sends: what it is, answers to questions, and outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Union

from pydantic import Field

from paradecode.serve.wire.fields import *
from paradecode.serve.wire.outputs import *


@dataclass(frozen=True, kw_only=True)
class Ready(WireMessage):
    """The worker has loaded its model. ``decoder`` is the spec for requests without one.
    ``tools`` says whether the chat template shows tools. ``fim`` are the tokens in front of a
    prefix, a suffix and the middle, of a model that fills in. Workers with the same ``bits``
    compute the same bits."""

    model: Name
    families: Annotated[list[Name], Field(max_length=8)]
    context_length: Count
    vocab_size: Count
    decoder: Short
    draft_model: Name | None
    chat: Flag
    tools: Flag = False
    fim: Annotated[list[Name], Field(max_length=3)] = field(default_factory=list)
    bits: Name = ""


@dataclass(frozen=True, kw_only=True)
class TokenizedPrompt(OneRequest):
    """Answer to :class:`Tokenize`: token ids, and the text of each of them."""

    tokens: Tokens
    texts: Texts


@dataclass(frozen=True, kw_only=True)
class DecodedText(OneRequest):
    """Answer to :class:`Detokenize`."""

    text: Text


@dataclass(frozen=True, kw_only=True)
class WorkerStats(OneRequest):
    """What a worker is doing at present, and what it has done since it started.

    Attributes:
        running, waiting: outputs in the batch and in the queue.
        waiting_tokens: prompt tokens in the queue.
        batch: the most outputs that run at the same time.
        pages, held_pages, idle_pages: pages of K/V memory over all models: their number, those
            that live outputs hold, and those that the prefix cache keeps.
        forwards, steps: numbers of the engine since it started.
        refused: number of requests that were answered with 429 or 503.
        memory_bytes: resident memory.
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


@dataclass(frozen=True, kw_only=True)
class CachedBlocks(OneRequest):
    """Blocks of 16 tokens in the prefix cache, and what the worker is doing.

    Attributes:
        next: value to send in the next :class:`AskBlocks`.
        whole: whether ``stored`` is everything, so that earlier answers no longer count.
        stored, removed: hashes, as hexadecimal numbers.
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
