"""Any order of arrivals, steps and cancellations keeps pages and tokens right."""

from functools import cache

import numpy as np
from driving import toy_engine
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from paradecode.core.logits import ArrayLogits
from paradecode.core.sampling import Sampler, SamplingParams
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.specs import parse
from paradecode.search.run import SearchRun
from paradecode.search.strategies import find_strategy
from paradecode.testing.toy import ToyBackend, toy_config
from tiers import examples

CONTEXT = 72
TOY = ToyBackend(toy_config(context_length=CONTEXT, windows=(0, 11)))
STEM = tuple(4 + (5 * i * i + 2 * i) % 24 for i in range(40))
PROMPTS = st.builds(
    lambda shared, own: (*STEM[:shared], *own),
    st.sampled_from([0, 3, 16, 17, 32, 40]),
    st.lists(st.integers(0, 28), min_size=1, max_size=20).map(tuple)
    | st.just((5, 6, 7, 8) * 4 + (5,)),
)
METHODS = st.sampled_from(
    ["greedy", "prompt-lookup", "prompt-lookup(num_speculative_tokens=20,max_ngram=1)"]
)
PARAMS = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 24), "seed": st.integers(0, 3)},
    optional={
        "temperature": st.sampled_from([0.8, 1.5]), "top_k": st.sampled_from([1, 4]),
        "top_p": st.just(0.7), "repetition_penalty": st.just(1.4),
        "frequency_penalty": st.just(0.9), "ignore_eos": st.booleans(),
        "stop_token_ids": st.just((9,)), "logprobs": st.just(1),
    },
)  # fmt: skip


SEARCHES = st.sampled_from([
    "best-of(n=3)", "ffs(n=3)", "majority(n=2)", "a-star(k=2,step_tokens=3,budget=40)",
    "beam(width=3)", "diverse-beam(width=2,groups=2)",
])  # fmt: skip
"""Searches that start branches and forks beside the requests."""


@cache
def plain_output(prompt: tuple[int, ...], given: tuple[tuple[str, object], ...]) -> list[int]:
    """Decode plainly from the toy's definition: no cache, no batch, no engine."""
    params = SamplingParams.from_mapping(dict(given))
    ends = {*(() if params.ignore_eos else TOY.config.eos_tokens), *params.stop_token_ids}
    sampler, output = Sampler(params, np.array(prompt, np.int32), sorted(ends)), []
    while len(output) < params.max_tokens and len(prompt) + len(output) < CONTEXT:
        logits = ArrayLogits(TOY.plain_logits(np.array([*prompt, *output]))[None, :])
        output.append(sampler.token(logits, 0))
        sampler.advance(output[-1:])
        if output[-1] in ends:
            break
    return output


class EngineMachine(RuleBasedStateMachine):
    """Admit, step and cancel at random, with few pages and small steps."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = toy_engine(
            {"target": ToyBackend(TOY.config)}, True, kv_tokens=320, batch=5, step_tokens=23
        )
        self.jobs: list[tuple[LiveSequence, tuple[int, ...], dict[str, object]]] = []
        self.searches: list[SearchRun] = []

    @rule(
        prompt=PROMPTS, params=PARAMS, method=METHODS, salt=st.sampled_from(["", "a"]),
        priority=st.integers(0, 2), deadline=st.sampled_from([None, None, None, 0.0]),
    )  # fmt: skip
    def add(self, prompt, params, method, salt, priority, deadline) -> None:
        request = GenerationRequest(
            np.array(prompt, np.int32), parse(method), SamplingParams(**params),
            priority, deadline, salt,
        )  # fmt: skip
        self.jobs.append((self.engine.add(request), prompt, params))

    @precondition(lambda self: len(self.searches) < 3)
    @rule(search=SEARCHES, prompt=PROMPTS, deadline=st.sampled_from([None, None, 0.0]))
    def search(self, search, prompt, deadline) -> None:
        params = SamplingParams(max_tokens=8, temperature=1.0, seed=1)
        request = GenerationRequest(
            np.array(prompt, np.int32), parse("greedy"), params, deadline=deadline
        )
        self.searches.append(
            SearchRun(self.engine, request, find_strategy(search), lambda tokens: "")
        )

    @precondition(lambda self: self.searches)
    @rule(data=st.data())
    def give_up(self, data) -> None:
        data.draw(st.sampled_from(self.searches)).close()

    @precondition(lambda self: self.engine.busy)
    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            for sequence in self.engine.step():
                assert sequence.trace or sequence.finished
            self.engine.check()
            for search in self.searches:
                search.advance()
            self.engine.check()

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data) -> None:
        sequence, _, _ = data.draw(st.sampled_from(self.jobs))
        self.engine.cancel(sequence)
        assert sequence.finished

    @precondition(lambda self: self.engine.busy)
    @rule()
    def drain(self) -> None:
        for _ in range(2000):
            if not self.engine.busy:
                break
            self.engine.step()
            for search in self.searches:
                search.advance()
        assert not self.engine.busy
        assert self.engine.pools["target"].held == 0
        assert self.engine.unreserved == self.engine.pools["target"].count
        for search in self.searches:
            assert search.finished
            assert search.error is None or "cancelled" in str(search.error)
        self.searches.clear()

    @invariant()
    def books(self) -> None:
        self.engine.check()
        assert len(self.engine.running) <= 5

    @invariant()
    def tokens(self) -> None:
        for sequence, prompt, params in self.jobs:
            assert sequence.error is None
            wanted = plain_output(prompt, tuple(params.items()))
            assert sequence.output == wanted[: len(sequence.output)]
            if sequence.finish_reason in ("stop", "length"):
                assert sequence.output == wanted
            if sequence.finished:
                assert not sequence.caches

    def teardown(self) -> None:
        if self.engine.busy:
            self.drain()
        self.books()
        self.tokens()


TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(
    examples(60), stateful_step_count=30, suppress_health_check=list(HealthCheck),
)  # fmt: skip
