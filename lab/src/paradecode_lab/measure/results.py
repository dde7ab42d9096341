"""The schema of a result: the engines, the inputs, and every single measurement.

All suites and the measurements of other engines share this schema; ``result_files`` writes it as
JSON. Figures that can be computed from the records (see ``figures`` and the suites' ``summary``)
are not stored here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paradecode.core.trace import DraftCounts
from paradecode_lab.measure.machine import Machine

OutputKey = tuple[str, tuple[int, ...]]
"""Identifies an output: (item id, token ids).

Each output is stored once, because nearly all engines repeat it in every round.
"""


@dataclass(frozen=True)
class EngineInfo:
    """One engine with one set of weights in one mode, or one method of this package's engine.

    Attributes:
        name: unique, e.g. ``llama-cpp/q4_1+lookup`` or ``prompt-lookup``.
        peer: the project that the engine belongs to.
        weights: storage format of the weights that it ran.
        mode: ``plain``, or the name of its kind of speculation.
        reference: name of the plain mode that it is compared with; None for a plain mode.
        versions: package -> version.
        settings: settings with which the engine was opened.
        status: ``ok``, ``skipped`` (not installed or not loaded) or ``failed`` (while running).
        reason: why the status is not ``ok``.
        load_seconds, peak_bytes: loading time in seconds, and peak memory of its process in bytes.
        guarantee: ``exact``, ``distribution`` or ``lossy`` for a method of this package; empty if
            nothing is promised.
    """

    name: str
    peer: str
    weights: str
    mode: str
    reference: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    status: str = "ok"
    reason: str = ""
    load_seconds: float | None = None
    peak_bytes: int | None = None
    guarantee: str = ""


@dataclass(frozen=True)
class Counts(DraftCounts):
    """The cost of one generation, as this package's engine counts it.

    Attributes:
        draft_forwards: number of forwards that only drafted: those of draft models, and those of
            some layers of the target.
        draft_rows: number of token rows that these forwards computed.
        deciding: number of forwards that decided a token of the output. The other forwards of a
            canvas decided only positions after the end of the text, which is easy.
        target: decode seconds in target forwards. Requests of a batch share them.
        draft: decode seconds in draft models and in the drafter's own code.
        verify: decode seconds in the rule that accepts draft tokens.
        sample: decode seconds in argmax, top-k and sampling over the vocabulary.
        other: decode seconds in everything else.
    """

    draft_forwards: int = 0
    draft_rows: int = 0
    deciding: int = 0
    target: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    sample: float = 0.0
    other: float = 0.0


@dataclass
class StreamedAnswer:
    """A server's streamed answer, as the client sees it. All times are seconds.

    Attributes:
        load: the load during the request: ``c=4`` (clients) or ``2/s`` (requests a second).
        start: when the request was sent (closed loop) or due (open loop), from the start of the
            round. The following times count from then.
        late: delay between when the request was due and when it was sent, which the client causes.
        first, last: time until the first and until the last chunk of text; None without text.
        end: time until the end of the answer.
        longest_gap: the longest time between two chunks in a row.
        tokens: number of tokens of the output; None if the request failed.
        client_seconds: the client's processor time in this round, divided by its requests.
    """

    load: str
    start: float
    late: float = 0.0
    first: float | None = None
    last: float | None = None
    end: float = 0.0
    chunks: int = 0
    longest_gap: float = 0.0
    tokens: int | None = None
    finish_reason: str = ""
    client_seconds: float = 0.0

    @property
    def per_token(self) -> float | None:
        """Seconds per token from the first text to the last (TPOT).

        A chunk may hold many tokens, so this is not the time between chunks, but the mean over all
        tokens after the first. None if there are fewer than two tokens, or all are in one chunk.
        """
        if self.first is None or self.last is None or self.chunks < 2 or (self.tokens or 0) < 2:
            return None
        assert self.tokens is not None
        return (self.last - self.first) / (self.tokens - 1)


@dataclass(frozen=True)
class Record:
    """One generation: what came out, how long it took, and what it cost.

    Attributes:
        engine, item, round: name of the engine, id of the input, and number of the repetition, from
            0.
        token_ids: the output up to and including the first stop token.
        first_tokens: number of output tokens that exist after ``prefill_seconds``.
        prefill_seconds: seconds from the request to the first tokens.
        decode_seconds: seconds from the first tokens to the end.
        other_load: number of cores that other processes kept busy meanwhile; None where unknown.
        error: why there is no output; empty if there is one.
        batch: number of requests that ran together.
        unit: number of that batch; in the suite ``parallel`` it counts the batches of one task.
        wall_seconds: seconds of the whole batch, divided by its number of requests; 0 where
            unknown.
        right: whether the answer is right; None where it cannot be checked.
        counts: what the generation cost; None for engines that do not report it.
        text: the checked text of the output; empty if it was not checked.
        streamed: tokens and times of a request to a server; the fields above do not have them then.
    """

    engine: str
    item: str
    round: int
    token_ids: tuple[int, ...] = ()
    first_tokens: int = 1
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    other_load: float | None = None
    error: str = ""
    batch: int = 1
    unit: int = 0
    wall_seconds: float = 0.0
    right: bool | None = None
    counts: Counts | None = None
    text: str = ""
    streamed: StreamedAnswer | None = None


@dataclass(frozen=True)
class ItemInfo:
    """An input, to which the ``item`` of a record refers by its id.

    Attributes:
        prompt: id of the conversation, which is the same for all its turns.
        group: kind of task.
        question, answer: the user's text and a right answer, if answers are checked.
    """

    id: str
    prompt: str
    group: str
    prompt_tokens: int
    max_tokens: int
    question: str = ""
    answer: str = ""


@dataclass(frozen=True)
class Score:
    """The oracle's score of an output.

    Attributes:
        nll: summed negative log-likelihood of the output's tokens.
        agreed: number of tokens that are the oracle's argmax.
        tokens: number of tokens.
    """

    nll: float
    agreed: int
    tokens: int


@dataclass(frozen=True)
class Results:
    """The results of a whole run; ``scores`` maps (item, output) to the oracle's score."""

    created: str
    commit: str
    model: str
    machine: Machine
    settings: Mapping[str, Any]
    items: tuple[ItemInfo, ...]
    engines: tuple[EngineInfo, ...]
    records: tuple[Record, ...]
    scores: Mapping[OutputKey, Score] = field(default_factory=dict)

    @property
    def is_parallel(self) -> bool:
        """True if the suite ``parallel`` made the result. Such a result has figures of its own."""
        return self.settings.get("suite") == "parallel"

    @property
    def is_load(self) -> bool:
        """True if the result is about requests to servers."""
        return self.settings.get("suite") == "load"

    @property
    def failed(self) -> dict[str, str]:
        """Engine -> why it could not be measured, or was measured only in part."""
        return {each.name: each.reason for each in self.engines if each.status != "ok"}

    @property
    def versions(self) -> dict[str, str]:
        """Package -> version, for the packages of all engines."""
        return {name: found for each in self.engines for name, found in each.versions.items()}


def groups_of(results: Results) -> list[str]:
    """Return the groups of prompts, in the order of the prompts."""
    return list(dict.fromkeys(item.group for item in results.items))


def trim(
    token_ids: Sequence[int], stop_ids: Iterable[int], max_tokens: int, stopped: bool
) -> tuple[int, ...]:
    """Cut an output after its first stop token, and to at most ``max_tokens`` tokens.

    Args:
        stopped: whether the engine reports that it stopped at a stop token. Some engines leave this
            token out of the output; it is put back, because a forward was spent on it.
    """
    stops = frozenset(stop_ids)
    kept: list[int] = []
    for token in token_ids[:max_tokens]:
        kept.append(token)
        if token in stops:
            return tuple(kept)
    if stopped and stops and len(kept) < max_tokens:
        kept.append(max(stops))
    return tuple(kept)
