"""The schema of a result: what was run, on what, and every single measurement.

All suites and the peers have this schema; ``result_files`` is its JSON. What can be computed from
the records (see ``figures`` and the suites' ``summary``) is not stored here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paradecode.core.trace import DraftCounts
from paradecode_lab.measure.machine import Machine

OutputKey = tuple[str, tuple[int, ...]]
"""(item, token ids): most engines give the same output in every round."""


@dataclass(frozen=True)
class EngineInfo:
    """One engine with one set of weights in one mode, or one method of this package's engine.

    Attributes:
        name: unique, e.g. ``llama-cpp/q4_1+lookup`` or ``prompt-lookup``.
        peer: the project.
        weights: storage format of the weights it ran.
        mode: ``plain`` or the name of its speculation.
        reference: the plain mode that it is compared with; None for a plain mode.
        versions: package -> version.
        settings: what it was opened with.
        status: ``ok``, ``skipped`` (not installed or not loaded) or ``failed`` (while running).
        reason: why it is not ``ok``.
        load_seconds, peak_bytes: of its process.
        guarantee: ``exact``, ``distribution`` or ``lossy`` for a method of this package; empty
            where nothing is promised.
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
    """What one generation took, as this package's engine counts it.

    Attributes:
        draft_forwards, draft_rows: of draft models, and of some layers of the target that drafted.
        deciding: forwards that decided a token of the output. The others of a canvas decided only
            what lies behind the end of text, which is easy.
        target, draft, verify, sample, other: decode seconds in target forwards; in draft models
            and the drafter's own code; in the rule that accepts; in argmax, top-k and sampling
            over the vocabulary; and in everything else. Requests of a batch share its forwards.
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
    """What a client saw of an answer that a server streamed. All times are seconds.

    Attributes:
        load: under which it was asked: ``c=4`` (clients) or ``2/s`` (requests a second).
        start: when it was sent (closed loop) or due (open loop), from the start of the round. The
            times that follow count from then.
        late: how much later than due it was sent: the client's own delay.
        first, last: to the first and to the last text; None without text.
        end: to the end of the answer.
        longest_gap: between two of its chunks.
        tokens: of the output; None where the request failed.
        client_seconds: processor time that the client took in this round, over its requests.
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

        A chunk may hold many tokens, so the time between chunks is no time between tokens: this is
        the mean over all tokens after the first. None where nothing was timed: fewer than two
        tokens, or all of them in one chunk.
        """
        if self.first is None or self.last is None or self.chunks < 2 or (self.tokens or 0) < 2:
            return None
        assert self.tokens is not None
        return (self.last - self.first) / (self.tokens - 1)


@dataclass(frozen=True)
class Record:
    """One generation.

    Attributes:
        engine, item, round: what, on which input, which repetition.
        token_ids: the output up to and including the first stop token.
        first_tokens: how many of them were there when ``prefill_seconds`` had passed.
        prefill_seconds: from the request to the first tokens.
        decode_seconds: from then to the end.
        other_load: cores that other processes kept busy meanwhile; None where unknown.
        error: why there is no output.
        batch: how many requests ran together; ``unit`` says which ones did (their number, in the
            suite ``parallel`` among those of their task).
        wall_seconds: of the whole batch, over the number of its requests; 0 where unknown.
        right: whether the answer is right; None where it cannot be checked.
        counts: None for engines that do not tell.
        text: the output as it was checked; empty where it was not.
        streamed: of a request to a server, whose tokens and times are there and not here.
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
    """What a record's ``item`` was.

    Attributes:
        prompt: joins the turns of one conversation.
        group: kind of task.
        question, answer: of a task that is checked: what the user says, and a right answer.
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
    """An output under the oracle: summed negative log-likelihood, argmax agreements, tokens."""

    nll: float
    agreed: int
    tokens: int


@dataclass(frozen=True)
class Results:
    """A whole run; ``scores`` maps (item, output) to what the oracle says of it."""

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
        """Whether the suite ``parallel`` made it, whose figures are others."""
        return self.settings.get("suite") == "parallel"

    @property
    def is_load(self) -> bool:
        """Whether it is of requests to servers."""
        return self.settings.get("suite") == "load"

    @property
    def failed(self) -> dict[str, str]:
        """Engine -> why it could not, or not completely, be measured."""
        return {each.name: each.reason for each in self.engines if each.status != "ok"}

    @property
    def versions(self) -> dict[str, str]:
        """Package -> version, of all engines."""
        return {name: found for each in self.engines for name, found in each.versions.items()}


def groups_of(results: Results) -> list[str]:
    """The groups, in the order of the prompts."""
    return list(dict.fromkeys(item.group for item in results.items))


def trim(
    token_ids: Sequence[int], stop_ids: Iterable[int], max_tokens: int, stopped: bool
) -> tuple[int, ...]:
    """What counts of an output: up to and including the first stop token, at most ``max_tokens``.

    Args:
        stopped: the engine says that it met a stop token; some leave it out of the output, and it
            is then put back, because a forward was spent on it.
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
