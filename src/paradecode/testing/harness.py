"""Run requests through an engine, and check every step and every result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from paradecode.backends.interface import Backend
from paradecode.core.constraint import Constraint
from paradecode.core.decoder import TARGET, Decoder, Guarantee, Steps, TokenSequence
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.specs import parse
from paradecode.testing.machines import BackendFactory, Kind, checkpoint
from paradecode.testing.reference import Outcome, plain, static
from paradecode.testing.toy import LetterText

DecoderFactory = Callable[[], Decoder]
LOGPROB_TOLERANCE = 1e-9
END = -1
"""A token outside of the vocabulary. It asks a constraint whether the text may end."""
Hook = Callable[[Engine, list[LiveSequence], int], None]
"""Called before step i (0, 1, ...) of :meth:`Run.serve`."""


class ConformanceFailure(AssertionError):
    """A method broke its promise. The message names the case, the request, and the place."""


@dataclass(frozen=True)
class Subject:
    """The method under test. ``block_length`` is for canvas methods; 0 means the usual one."""

    name: str
    make: DecoderFactory
    guarantee: Guarantee = "exact"
    block_length: int = 0


@dataclass(frozen=True)
class Job:
    """One request of a case. A request with ``plain`` is a neighbour that uses plain decoding."""

    prompt: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    salt: str = ""
    plain: bool = False
    constraint: Constraint | None = None


@dataclass(eq=False)
class Watched:
    """A decoder that keeps its errors, because the engine reports none after a sequence's end."""

    inner: Decoder
    errors: list[Exception]

    def decode(self, seq: TokenSequence) -> Steps:
        try:
            yield from self.inner.decode(seq)
        except Exception as error:
            self.errors.append(error)
            raise


class Bench:
    """The models of one kind, and the results of plain decoding that are already computed.

    Args:
        kind: the kind of model.
        factory: returns the models. Each engine gets new ones, so cases share no state.
    """

    def __init__(self, kind: Kind, factory: BackendFactory) -> None:
        self.kind, self._factory = kind, factory
        self.oracle = factory(kind)[TARGET]
        self.oracle.reserve(1)
        self._known: dict[tuple[tuple[int, ...], str, int | None, Constraint | None], Outcome] = {}

    def models(self) -> Mapping[str, Backend]:
        return self._factory(self.kind)

    def expected(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        blocks: int | None = None,
        constraint: Constraint | None = None,
    ) -> Outcome:
        """Return the output of plain decoding, or of static blocks of the length ``blocks``.

        Each result is computed only once.
        """
        key = tuple(prompt), repr(params), blocks, constraint
        if key not in self._known:
            self._known[key] = (
                plain(self.oracle, prompt, params, constraint)
                if blocks is None
                else static(self.oracle, prompt, params, blocks)
            )
        return self._known[key]


class Run:
    """One case with one method on one model."""

    def __init__(self, case: str, subject: Subject, bench: Bench) -> None:
        self.subject, self.bench = subject, bench
        self.config = bench.oracle.config
        self.eos = self.config.eos_tokens[0]
        self._case = case
        self._errors: list[Exception] = []

    @property
    def exact(self) -> bool:
        return self.subject.guarantee == "exact"

    def fail(self, what: str) -> None:
        raise ConformanceFailure(
            f"{self.subject.name}, case {self._case} on {self.bench.kind.name}: {what}"
        )

    def require(self, truth: bool, what: str) -> None:
        if not truth:
            self.fail(what)

    def expected(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        constraint: Constraint | None = None,
    ) -> Outcome:
        """Return the output of the reference for the method's family."""
        blocks = self.subject.block_length if self.bench.kind.family == "diffusion" else None
        return self.bench.expected(prompt, params, blocks, constraint)

    def engine(self, limits: Limits | None = None) -> Engine:
        """Return a new engine, whose memory is so small that pages are reused again and again."""
        weights = checkpoint(self.bench.kind)[1] if self.bench.kind.architecture else {}
        return Engine(self.bench.models(), limits or limits_of(), LetterText, weights=weights)

    def serve(
        self,
        jobs: Sequence[Job],
        limits: Limits | None = None,
        engine: Engine | None = None,
        before: Hook | None = None,
    ) -> list[LiveSequence]:
        """Run ``jobs`` to their ends in one engine, and check every step and every result."""
        engine = engine or self.engine(limits)
        sequences = [self.add(engine, job) for job in jobs]
        # A step may have a single row, and every output token needs a few rows and a commit.
        enough = sum(len(job.prompt) + 16 * job.params.max_tokens for job in jobs) + 64
        step = 0
        while engine.busy:
            if before:
                before(engine, sequences, step)
            engine.step()
            step += 1
            self._books(engine)
            if step > enough:
                self.fail(f"still not finished after {step} steps: no progress")
        held = {name: pool.held for name, pool in engine.pools.items() if pool.held}
        self.require(not held, f"pages are held after the last request ended: {held}")
        if self._errors:
            self.fail(f"the decoder raised {self._errors[0]!r}")
        for index, (job, sequence) in enumerate(zip(jobs, sequences, strict=True)):
            self._check(f"request {index} ({_describe(job)})", job, sequence)
        return sequences

    def add(self, engine: Engine, job: Job) -> LiveSequence:
        make = parse("greedy") if job.plain else self.subject.make
        decoder = Watched(make(), self._errors)
        request = GenerationRequest(
            np.array(job.prompt, np.int32),
            lambda: decoder,
            job.params,
            salt=job.salt,
            constraint=job.constraint,
        )
        return engine.add(request)

    def _books(self, engine: Engine) -> None:
        try:
            engine.check()
        except AssertionError as error:
            self.fail(f"page books: {error}")

    def _check(self, who: str, job: Job, seq: LiveSequence) -> None:
        if seq.error is not None:
            self.fail(f"{who} ended with {seq.error!r}")
        for complaint in structure(job, seq, self.config.context_length, self.config.eos_tokens):
            self.fail(f"{who}: {complaint}")
        # A canvas is filled in an order of its own, so with a constraint there is not one right
        # output.
        free = job.constraint is None or self.bench.kind.family == "autoregressive"
        if (self.exact and free) or job.plain:
            self._equal(who, job, seq)

    def _equal(self, who: str, job: Job, seq: LiveSequence) -> None:
        reference = self.bench.expected if job.plain else self.expected
        wanted = reference(job.prompt, job.params, constraint=job.constraint)
        got = tuple(seq.output)
        if seq.finish_reason == "cancelled":
            wanted_tokens = wanted.tokens[: len(got)]
        else:
            wanted_tokens = wanted.tokens
        if got != wanted_tokens:
            at = divergence(got, wanted_tokens)
            self.fail(
                f"{who} differs from {'plain decoding' if job.plain else self.bench.kind.reference}"
                f" at output token {at}: "
                f"expected {_around(wanted_tokens, at)}, got {_around(got, at)}"
            )
        self._equal_logprobs(who, wanted, seq)
        if seq.finish_reason != "cancelled":
            self.require(
                (seq.finish_reason, seq.text.value) == (wanted.finish_reason, wanted.text),
                f"{who} ended as {seq.finish_reason!r} with {seq.text.value!r}, plain decoding as "
                f"{wanted.finish_reason!r} with {wanted.text!r}",
            )

    def _equal_logprobs(self, who: str, wanted: Outcome, seq: LiveSequence) -> None:
        for at, entry in enumerate(seq.logprobs):
            ids = tuple(token for token, _ in entry.top)
            self.require(
                ids == wanted.top_ids[at],
                f"{who}: top tokens at {at} are {ids}, expected {wanted.top_ids[at]}",
            )
            got = [entry.logprob, *(value for _, value in entry.top)]
            want = [wanted.logprobs[at], *wanted.top_logprobs[at]]
            self.require(
                bool(np.allclose(got, want, rtol=0, atol=LOGPROB_TOLERANCE)),
                f"{who}: log-probabilities at {at} are {got}, expected {want}",
            )


def structure(job: Job, seq: LiveSequence, context: int, eos: Iterable[int]) -> Iterable[str]:
    """Yield the errors of a finished request that no method may make, not even a lossy one."""
    output, params, stats = seq.output, job.params, seq.stats
    ends = {*(() if params.ignore_eos else eos), *params.stop_token_ids}
    if seq.tokens[: seq.prompt_length].tolist() != list(job.prompt):
        yield "the prompt changed"
    if seq.finish_reason not in ("stop", "length", "cancelled"):
        yield f"it ended as {seq.finish_reason!r}"
    most = min(params.max_tokens, context - len(job.prompt))
    if len(output) > most:
        yield f"{len(output)} tokens, although only {most} had room"
    if seq.finish_reason == "length" and len(output) != most:
        yield f"it ended for length after {len(output)} of {most} tokens"
    if any(token in ends for token in output[:-1]):
        yield f"output {output} goes on after a stop token"
    if any(token in ends for token in output[: params.min_tokens]):
        yield f"output {output} stops before {params.min_tokens} tokens"
    if any(stop in seq.text.value for stop in params.stop):
        yield f"text {seq.text.value!r} contains a stop string of {params.stop}"
    if [token for step in seq.trace for token in step.tokens] != output:
        yield "the trace does not add up to the output"
    if params.logprobs is not None and [e.token for e in seq.logprobs] != output:
        yield "log-probabilities are not those of the output, token by token"
    if job.constraint is not None:
        yield from _breaches(job.constraint, seq, ends)
    yield from _counts(seq, most)
    if stats.generated != len(output) or stats.prompt_tokens != len(job.prompt):
        yield f"the counts are wrong: {stats}"


def _breaches(constraint: Constraint, seq: LiveSequence, ends: set[int]) -> Iterable[str]:
    text = seq.output[:-1] if seq.output and seq.output[-1] in ends else seq.output
    matcher = constraint.follow((END,))
    kept = matcher.possible(text)
    if kept < len(text):
        yield f"the constraint forbids {text[kept]} behind {text[:kept]}"
    elif seq.finish_reason == "stop" and not matcher.allows(text, END):
        yield f"{text} is not complete, yet the output ends"


def _counts(seq: LiveSequence, most: int) -> Iterable[str]:
    committed = 0
    for step in seq.trace:
        if not 0 <= step.accepted <= min(step.drafted, len(step.tokens)):
            yield f"a step accepted {step.accepted} of {step.drafted}, committed {step.tokens}"
        if len(step.tree) and int(step.tree.depths.max()) > most - committed:
            yield f"a draft is {int(step.tree.depths.max())} deep with room for {most - committed}"
        committed += len(step.tokens)


def limits_of(
    batch: int = 16, step_tokens: int = 512, prefix_cache: bool = True, kv_tokens: int = 4096
) -> Limits:
    return Limits(batch, step_tokens, kv_tokens, draft_tokens=64, prefix_cache=prefix_cache)


def divergence(got: Sequence[int], wanted: Sequence[int]) -> int:
    """Return the first position at which two sequences differ."""
    for at, (a, b) in enumerate(zip(got, wanted)):
        if a != b:
            return at
    return min(len(got), len(wanted))


def _around(tokens: Sequence[int], at: int) -> str:
    shown = ", ".join(str(token) for token in tokens[at : at + 6])
    return f"[{'..., ' if at else ''}{shown or 'the end'}{', ...' if len(tokens) > at + 6 else ''}]"


def _describe(job: Job) -> str:
    default = SamplingParams()
    changed = [
        f"{name}={getattr(job.params, name)!r}"
        for name in vars(default)
        if getattr(job.params, name) != getattr(default, name)
    ]
    who = "plain neighbour, " if job.plain else ""
    return f"{who}prompt of {len(job.prompt)}, {', '.join(changed) or 'defaults'}"
