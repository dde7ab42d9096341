"""The conformance cases for every method. Each is a function of a :class:`Run` and says what holds.

To add one, write a function and decorate it with ``@case``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from paradecode.core.automaton import TokenAutomaton
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine, Limits
from paradecode.engine.sequence import LiveSequence
from paradecode.testing.harness import Job, Run, limits_of

Case = Callable[[Run], None]
Values = Mapping[str, Any]
"""Sampling parameters by name."""
CASES: dict[str, Case] = {}

LOOP = (5, 6, 7, 8, 9) * 4
"""A prompt that repeats itself, so that drafters find text to copy."""
PAIR = (11, 12) * 7 + (11,)
LONG = tuple(4 + (3 * i * i + i) % 24 for i in range(37))
"""A prompt that takes more than two pages of K/V, and has no pattern."""
MIXED = LONG[:9] + LOOP + LONG[3:12] + (5, 6)
PROMPTS = (LOOP, PAIR, (7,), LONG, MIXED)


def case(function: Case) -> Case:
    CASES[function.__name__.replace("_", "-")] = function
    return function


def ask(max_tokens: int = 12, **values: Any) -> SamplingParams:
    return SamplingParams.from_mapping({"max_tokens": max_tokens, **values})


def crossed(
    prompts: Iterable[tuple[int, ...]],
    each: Sequence[Values],
    other: Sequence[Values] = ({},),
    **all: Any,
) -> list[Job]:
    """Return a job for every combination of a prompt, an entry of ``each`` and one of ``other``.

    All jobs have the values ``all``.
    """
    every = product(prompts, each, other)
    return [Job(prompt, ask(**{**all, **one, **two})) for prompt, one, two in every]


def warm(temperature: float) -> tuple[Values, Values]:
    """Return parameters for greedy decoding, and for sampling at a temperature."""
    return {"temperature": 0.0}, {"temperature": temperature}


def variety(run: Run) -> list[Job]:
    """Return sixteen requests that differ in prompt and in every sampling parameter."""
    eos = run.eos
    params = [
        ask(),
        ask(temperature=0.8, seed=1),
        ask(temperature=1.0, seed=2),
        ask(temperature=0.8, top_k=5, seed=3),
        ask(temperature=1.0, top_p=0.8, seed=4),
        ask(temperature=1.0, min_p=0.05, seed=5),
        ask(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02, seed=-6),
        ask(repetition_penalty=1.3, logprobs=3),
        ask(presence_penalty=1.5),
        ask(frequency_penalty=0.7, temperature=0.8, seed=7),
        ask(temperature=1.0, seed=8, repetition_penalty=0.8, logprobs=0),
        ask(logit_bias={6: -1000.0, 8: 4.0}),
        ask(logit_bias={eos: 1000.0}, min_tokens=5),
        ask(logit_bias={eos: 3.0}, ignore_eos=True, logprobs=2),
        ask(stop_token_ids=(9,), min_tokens=2),
        ask(max_tokens=40),
    ]
    return [Job(PROMPTS[i % len(PROMPTS)], each) for i, each in enumerate(params)]


def serve(run: Run, part: slice, limits: Limits) -> None:
    """Serve a part of the sixteen requests in an engine with these limits."""
    run.serve(variety(run)[part], limits)


ALL, EVEN, ODD, THIRD = slice(None), slice(0, None, 2), slice(1, None, 2), slice(0, None, 3)
LIMITED = {
    "one-at-a-time": (slice(1, None, 3), limits_of(batch=1)),
    # The batch changes when requests end and others are admitted.
    "batch-of-4": (EVEN, limits_of(batch=4)),
    "batch-of-16": (ALL, limits_of(batch=16)),
    # A step has room for a few rows, so prompts arrive in pieces and share steps with drafts.
    "chunks-of-1": (THIRD, limits_of(batch=4, step_tokens=1)),
    "chunks-of-3": (EVEN, limits_of(batch=4, step_tokens=3)),
    "chunks-of-7": (ODD, limits_of(batch=8, step_tokens=7)),
    # Memory is small, so requests wait for each other, and cached prefixes are dropped.
    "little-memory": (ODD, limits_of(batch=8, kv_tokens=512)),
}
CASES |= {name: partial(serve, part=part, limits=at) for name, (part, at) in LIMITED.items()}


@case
def mixed_methods(run: Run) -> None:
    """Every other request of the batch is decoded plainly, and no result changes."""
    jobs = variety(run)
    run.serve([replace(job, plain=i % 2 == 0) for i, job in enumerate(jobs)])


@case
def prefix_cache(run: Run) -> None:
    """When the requests are repeated, long prompts come from the cache, and no result changes."""
    jobs = [job for job in variety(run) if len(job.prompt) > 16][1::2]
    engine = run.engine()
    run.serve(jobs, engine=engine)
    for job, sequence in zip(jobs, run.serve(jobs, engine=engine)):
        if len(job.prompt) > 32 and run.bench.kind.family == "autoregressive":
            run.require(sequence.cached_tokens >= 32, "a second run found no prefix in the cache")
    run.serve([Job((*job.prompt, 6, 7), job.params) for job in jobs], engine=engine)


@case
def no_prefix_cache(run: Run) -> None:
    """When the cache is off, repeated requests are computed again, and nothing is cached."""
    jobs, engine = variety(run)[::3], run.engine(limits_of(prefix_cache=False))
    run.serve(jobs, engine=engine)
    for sequence in run.serve(jobs, engine=engine):
        run.require(sequence.cached_tokens == 0, "tokens were cached although the cache is off")


@case
def tenants(run: Run) -> None:
    """Requests with different salts never share a page, even if their prompts are the same."""
    engine = run.engine()
    for salt in ("", "a", "b"):
        jobs = [Job(LONG, ask(), salt), Job(MIXED, ask(temperature=0.8, seed=5), salt)]
        for sequence in run.serve(jobs, engine=engine):
            run.require(
                sequence.cached_tokens == 0, f"tenant {salt!r} was given another tenant's pages"
            )


@case
def cancelled_neighbour(run: Run) -> None:
    """When requests are cancelled at all stages, the other results do not change."""

    def cancel(engine: Engine, sequences: list[LiveSequence], step: int) -> None:
        if step < 8 and 2 * step < len(sequences):
            engine.cancel(sequences[2 * step])

    run.serve(variety(run), limits_of(batch=6, step_tokens=24), before=cancel)


@case
def stop_strings(run: Run) -> None:
    """Outputs end at stop strings at each position of the text, also inside accepted drafts."""
    jobs = []
    for prompt in (LOOP, PAIR, MIXED):
        params = ask(18, ignore_eos=True)
        text = run.expected(prompt, params).text
        for at in (1, 2, 5, 9, 14):
            jobs.append(Job(prompt, replace(params, stop=("0", text[at : at + 3], text[at + 1 :]))))
            jobs.append(Job(prompt, replace(params, stop=text[at])))
    run.serve(jobs)


@case
def stop_tokens(run: Run) -> None:
    """Outputs end at stop tokens at each position of the text, also inside accepted drafts."""
    jobs = []
    for prompt in (LOOP, PAIR, MIXED):
        params = ask(18, ignore_eos=True)
        tokens = run.expected(prompt, params).tokens
        for at in (0, 1, 4, 9, 15):
            stops = replace(params, stop_token_ids=(tokens[at],))
            jobs += [Job(prompt, stops), Job(prompt, replace(stops, min_tokens=at + 2))]
    run.serve(jobs)


@case
def end_of_text(run: Run) -> None:
    """Outputs end at EOS, which is likely and in the prompt's pattern, so drafts contain it."""
    loop = (*(5, 6, run.eos, 8) * 4, 5, 6)
    values: tuple[Values, ...] = ({}, {"min_tokens": 6}, {"ignore_eos": True}, {"temperature": 1.0})
    pushes = [{"logit_bias": {run.eos: push}} for push in (2.0, 5.0, 30.0, 1000.0)]
    run.serve(crossed([loop], pushes, values, seed=3))


@case
def max_tokens(run: Run) -> None:
    """Outputs of one, two and three tokens are right."""
    run.serve([Job(prompt, ask(n, seed=1)) for n in (1, 2, 3) for prompt in PROMPTS])


@case
def context_end(run: Run) -> None:
    """Outputs that reach the end of the context are right, at several distances from it."""
    room = run.config.context_length
    jobs = [
        Job((LOOP * room)[: room - left], ask(64, ignore_eos=True, temperature=t, seed=4))
        for left in (1, 2, 3, 7, 20)
        for t in (0.0, 0.8)
    ]
    run.serve(jobs)


@case
def penalties(run: Run) -> None:
    """Penalties count along the draft, in texts that repeat themselves."""
    values = (
        {"repetition_penalty": 1.5},
        {"repetition_penalty": 0.5},
        # Two tokens alternate until a draft has one of them too often.
        {"presence_penalty": -2.0, "frequency_penalty": 2.0, "logit_bias": {11: 12.0, 12: 12.0}},
    )
    run.serve(crossed((LOOP, PAIR), values, warm(0.8), seed=9, ignore_eos=True))


@case
def bans(run: Run) -> None:
    """Biases that ban the expected token, or force one token, hold in every step."""
    jobs = []
    for prompt in (LOOP, PAIR):
        first = run.expected(prompt, ask()).tokens[0]
        biases = ({first: -1000.0}, {first: 1000.0}, {10: 6.0, 11: 6.0}, {first: 0.5, 5: -2.0})
        jobs += crossed([prompt], [{"logit_bias": bias} for bias in biases], warm(1.0), seed=2)
    run.serve(jobs)


@case
def log_probabilities(run: Run) -> None:
    """Log-probabilities are the model's own, and do not depend on drafts, biases or filters."""
    values = (
        {"logprobs": 0},
        {"logprobs": 1, "temperature": 0.8},
        {"logprobs": 5, "repetition_penalty": 1.4},
        {"logprobs": 20, "logit_bias": {6: 5.0}},
        {"logprobs": 2, "stop_token_ids": (7, 12)},
    )
    run.serve(crossed((LOOP, LONG, MIXED), values, seed=11))


@case
def several_choices(run: Run) -> None:
    """The outputs of one prompt have seeds of their own, and the first one has the request's."""
    jobs = []
    for prompt in (LOOP, LONG):
        params = ask(temperature=1.0, seed=42, n=4)
        jobs += [Job(prompt, params.for_choice(i)) for i in range(params.n)]
        run.require(jobs[-4].params.seed == 42, "the first choice lost the request's seed")
    run.serve(jobs)


def records(vocab_size: int) -> TokenAutomaton:
    """Return a small grammar of records over token ids, as an automaton.

    A record is ``5 6 7``, and then one to four of ``5 8 9 11``. After it comes ``10`` and another
    record, or ``12``. After ``12`` the text may end, begin another record, or continue with ``13``,
    after which it must end.
    """
    values = [dict.fromkeys((5, 8, 9, 11), state + 1) for state in range(3, 7)]
    more = [*values, {}]
    for step in more[1:]:
        step |= {10: 0, 12: 8}
    steps = [{5: 1}, {6: 2}, {7: 3}, *more, {13: 9, 5: 1}, {}]
    return TokenAutomaton.of(steps, (8, 9), vocab_size)


@case
def constrained(run: Run) -> None:
    """A constraint with forced tokens, choices and ends holds together with every processor."""
    constraint = records(run.config.vocab_size)
    eos = run.eos
    params = [
        ask(30),
        ask(30, temperature=0.8, seed=1),
        ask(30, temperature=1.0, top_k=3, seed=2),
        ask(30, temperature=1.0, top_p=0.7, min_p=0.05, seed=3),
        ask(30, repetition_penalty=1.4, logprobs=2),
        ask(30, frequency_penalty=1.1, temperature=0.8, seed=4),
        ask(30, logit_bias={12: 5.0, eos: 5.0}),
        ask(30, logit_bias={12: 5.0, 13: 9.0}, min_tokens=9),
        ask(30, logit_bias={eos: 1000.0}, min_tokens=20, temperature=0.7, seed=5),
        ask(30, logit_bias={10: -1000.0, 5: -8.0}, ignore_eos=True),
        ask(30, stop_token_ids=(9,), temperature=1.0, seed=6),
        ask(7, temperature=1.0, seed=7),
    ]
    if run.bench.kind.family == "autoregressive":
        params.append(ask(2))  # Two tokens fit no text, and a canvas would be refused.
    jobs = [
        Job(PROMPTS[i % len(PROMPTS)], each, constraint=constraint if i != 5 else None)
        for i, each in enumerate(params)
    ]
    jobs += [Job((5, 6, 7, 8, 10) * 4, each, constraint=constraint) for each in params[:4]]
    run.serve(jobs)
    run.serve(jobs[:4], limits_of(batch=4, step_tokens=1))


def repetitive(run: Run) -> list[LiveSequence]:
    """Serve prompts that repeat themselves, in which a drafter should find something to draft."""
    prompts = (LOOP, PAIR, MIXED)
    return run.serve(crossed(prompts, warm(1.5), max_tokens=60, seed=1, ignore_eos=True))


@case
def repetitive_texts(run: Run) -> None:
    """Long outputs with as many drafts as possible are right."""
    repetitive(run)
