"""What happened at each commit of a request: enough to replay and to count."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.core.tree import TokenTree


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probability of one output token, and of the most likely ones at its position.

    The model's own distribution at temperature 1, before penalties and bias.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class CanvasStep:
    """What one forward of a canvas decided. Offsets count from the first output token.

    Attributes:
        offsets, tokens, confidences: of the positions that became permanent, ascending.
        revoked: offsets that were permanent before and are masked now.
        window: first offset that was eligible, and one past the last.
        length: of the canvas after this step.
        proposed: (offset, token, confidence) of what was looked at and stays masked; recorded for
            requests that ask for log-probabilities.
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
    """One commit: tokens appended to the output, or positions of a canvas decided.

    Attributes:
        forward: how many target forwards this request had used, this one included (from 1).
        tokens: the committed tokens, in order.
        accepted: how many of them came from the draft (they come first).
        drafted: how many tree rows the target scored since the last commit.
        tree: those rows.
        seconds: wall time since the previous commit (or since admission).
        canvas: what was decided on the canvas; ``tokens`` are those that no gap precedes any more.
    """

    forward: int
    tokens: tuple[int, ...]
    accepted: int
    drafted: int
    tree: TokenTree
    seconds: float
    canvas: CanvasStep | None = None


@dataclass(frozen=True)
class Stats:
    """Counts and times of one request. Times are wall seconds; a batch shares its forwards' time.

    Attributes:
        forwards: target forwards, the prefill's chunks counted as one.
        rows: rows that the target computed, prompt included; those of a canvas that went through
            some layers only count in part.
        generated: tokens of the output.
        drafts: forwards that scored a draft.
        drafted, accepted: draft tokens scored, and kept.
        accepted_per_position: how often the draft token at depth 1, 2, ... was kept.
        prompt_tokens, cached_tokens: prompt length, and how much of it was found in the cache.
        queue_seconds: from arrival to admission.
        prefill_seconds: from admission to the first commit.
        decode_seconds: from the first commit to the end.
        first_tokens: tokens of the first commit (they belong to the prefill's time).
        target_seconds, other_model_seconds, decoder_seconds: share of the time spent in target
            forwards, other models' forwards, and the method's own Python.
    """

    forwards: int = 0
    rows: int = 0
    generated: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_per_position: tuple[int, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    first_tokens: int = 0
    target_seconds: float = 0.0
    other_model_seconds: float = 0.0
    decoder_seconds: float = 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / drafts: tokens per drafted forward, bonus token included."""
        return 1.0 + self.accepted / self.drafts if self.drafts else 1.0

    @property
    def tokens_per_forward(self) -> float:
        return self.generated / self.forwards if self.forwards else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Decode speed: generated tokens after the first commit over ``decode_seconds``."""
        later = self.generated - self.first_tokens
        return later / self.decode_seconds if later > 0 and self.decode_seconds > 0 else 0.0
