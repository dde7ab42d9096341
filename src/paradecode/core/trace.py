"""The trace of a request: a record of each commit, which statistics and replay read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from paradecode.core.logits import Logits
from paradecode.core.tree import TokenTree


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probabilities of one output token and of the most probable tokens at its position.

    They are from the model's own distribution, at temperature 1, before penalties and bias.

    Attributes:
        token: id of the output token.
        logprob: its log-probability.
        top: (token id, log-probability) of the most probable tokens, best first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class CanvasStep:
    """The decisions of one forward pass on a canvas. Offsets count from the first output token.

    Attributes:
        offsets, tokens, confidences: one entry for each decided position, ascending by offset.
        revoked: offsets that were decided earlier and are masked again.
        window: first offset that could be decided, and one past the last.
        length: length of the canvas after this step.
        proposed: (offset, token, confidence) of proposals that were not committed; recorded only if
            the request asks for log-probabilities.
    """

    offsets: tuple[int, ...]
    tokens: tuple[int, ...]
    confidences: tuple[float, ...]
    revoked: tuple[int, ...]
    window: tuple[int, int]
    length: int
    proposed: tuple[tuple[int, int, float], ...] = ()


@dataclass(frozen=True)
class Step:
    """One commit: tokens that were appended to the output, or canvas positions that were decided.

    Attributes:
        forward: number of target forwards of this request so far, including this one.
        tokens: the committed tokens, in order; on a canvas, the new tokens before the first masked
            position.
        accepted: how many of the first ``tokens`` came from the draft.
        drafted: number of tree nodes that the target scored since the last commit.
        tree: the tree of these nodes.
        seconds: wall time since the previous commit (or since admission).
        canvas: the decisions on the canvas.
    """

    forward: int
    tokens: tuple[int, ...]
    accepted: int
    drafted: int
    tree: TokenTree
    seconds: float
    canvas: CanvasStep | None = None


class Commit(NamedTuple):
    """A piece of an output, with the forward pass that decided it.

    Attributes:
        forward: number of the target forward, from 1; 0 if the tokens existed before the first.
        tokens: new token ids. Empty if only text is new that was held back until now.
        text: the text of these tokens, without characters that later tokens can still change.
    """

    forward: int
    tokens: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class DraftCounts:
    """Counts of target forward passes and of draft tokens.

    Attributes:
        forwards: target forwards; all chunks of a prefill count as one.
        rows: positions that the target computed, including the prompt. A row that ran through some
            of the layers counts as that share. A row that continues after layers that drafted
            counts as a whole row, and the drafting layers count nothing.
        drafts: forwards that scored a draft.
        drafted, accepted: draft tokens that were scored, and draft tokens that were accepted.
        accepted_per_position: how often the draft token at depth 1, 2, ... was accepted.
    """

    forwards: int = 0
    rows: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_per_position: tuple[int, ...] = ()

    @property
    def rejected(self) -> int:
        return self.drafted - self.accepted

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / drafts: tokens per forward with a draft, the target's own included."""
        return 1.0 + self.accepted / self.drafts if self.drafts else 1.0

    def counts(self) -> dict[str, Any]:
        """Return the fields of this class by name, for JSON."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(DraftCounts)}
        return {**values, "accepted_per_position": list(self.accepted_per_position)}


@dataclass(frozen=True)
class Stats(DraftCounts):
    """Counts and wall-clock times of one request; a forward pass's time is shared by its batch.

    Attributes:
        generated: tokens of the output.
        prompt_tokens: tokens of the prompt.
        cached_tokens: tokens of the prompt that were found in the prefix cache.
        queue_seconds: seconds from arrival to admission.
        prefill_seconds: seconds from admission to the first commit.
        decode_seconds: seconds from the first commit to the end.
        first_tokens: tokens of the first commit; their time is part of the prefill.
        target_seconds: seconds in forwards of the target.
        other_model_seconds: seconds in forwards of other models and of small networks.
        decoder_seconds: seconds in the method's own Python code.
    """

    generated: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    first_tokens: int = 0
    target_seconds: float = 0.0
    other_model_seconds: float = 0.0
    decoder_seconds: float = 0.0

    @classmethod
    def of(cls, trace: Sequence[Step], **others: Any) -> Stats:
        """Compute the statistics of a request's commits; ``others`` gives all other fields."""
        drafts = [step for step in trace if step.drafted]
        deepest = max((step.accepted for step in drafts), default=0)
        return cls(
            drafts=len(drafts),
            drafted=sum(step.drafted for step in drafts),
            accepted=sum(step.accepted for step in drafts),
            accepted_per_position=tuple(
                sum(step.accepted > depth for step in drafts) for depth in range(deepest)
            ),
            prefill_seconds=trace[0].seconds if trace else 0.0,
            first_tokens=len(trace[0].tokens) if trace else 0,
            **others,
        )

    @property
    def tokens_per_forward(self) -> float:
        return self.generated / self.forwards if self.forwards else 0.0

    @property
    def tokens_per_second(self) -> float:
        """The decoding speed: tokens generated after the first commit, per second of decoding."""
        later = self.generated - self.first_tokens
        return later / self.decode_seconds if later > 0 and self.decode_seconds > 0 else 0.0

    def record(self) -> dict[str, Any]:
        """Return every field by name, with mean acceptance length and speed, for JSON."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        derived = {
            "mean_acceptance_length": self.mean_acceptance_length,
            "tokens_per_second": self.tokens_per_second,
        }
        return {**values, **self.counts(), **derived}

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase, and of each kind of work."""
        spent = self.target_seconds + self.other_model_seconds + self.decoder_seconds
        return {
            "queue": self.queue_seconds,
            "prompt": self.prefill_seconds,
            "decode": self.decode_seconds,
            "target": self.target_seconds,
            "draft": self.other_model_seconds,
            "method": self.decoder_seconds,
            "other": max(0.0, self.prefill_seconds + self.decode_seconds - spent),
        }


# Log-probabilities of output tokens and of the best tokens at their positions.


def token_logprobs(
    logits: Logits, rows: Sequence[int], tokens: Sequence[int], count: int
) -> list[TokenLogprob]:
    """Return a :class:`TokenLogprob` for each token.

    Args:
        logits: [R, V], before any penalty, ban or bias.
        rows: the row of ``logits`` from which each token was chosen.
        tokens: the chosen token ids.
        count: number of best tokens to report for each row; may be 0.
    """
    chosen = logits.select(rows)
    own = chosen.log_probability(np.array(tokens, np.int32)[:, None])[:, 0]
    best: list[tuple[tuple[int, float], ...]] = [()] * len(own)
    if count:
        ids, _ = chosen.top_k(count)
        values = chosen.log_probability(ids)
        best = [
            tuple(zip(some, of, strict=True))
            for some, of in zip(ids.tolist(), values.tolist(), strict=True)
        ]
    return [TokenLogprob(*each) for each in zip(tokens, own.tolist(), best, strict=True)]
