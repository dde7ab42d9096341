"""Scheduling: admission, priorities, deadlines, memory, chunks."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from driving import LOOP, PROMPT, add, by, finish, greedy, negative, plainly, toy_engine

from paradecode.backends.interface import PAGE
from paradecode.core.decoder import Forward
from paradecode.core.errors import CapacityError, InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.core.tree import EMPTY
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import Limits
from paradecode.engine.request import GenerationRequest
from paradecode.engine.scheduler import SLOWER, room_for, shared_out
from paradecode.methods.draft.verifiers import coupled
from paradecode.methods.specs import parse
from paradecode.testing.toy import ToyBackend

CURVE = CostCurve((1, 4, 8, 64), (64,), ((0.002, 0.0022, 0.0036, 0.024),))


def test_priority_then_arrival() -> None:
    engine, ended = toy_engine(batch=1), []
    names = {}
    for name, priority in (("c", 5), ("a", 0), ("d", 5), ("b", 1)):
        names[id(add(engine, max_tokens=1, priority=priority))] = name
    while engine.busy:
        ended += [names[id(sequence)] for sequence in engine.step() if sequence.finished]
    assert ended == ["a", "b", "c", "d"]


def test_a_deadline_ends_a_request_with_what_it_has() -> None:
    engine = toy_engine(batch=1)
    running, waiting = add(engine, deadline=3600.0), add(engine, deadline=3600.0)
    other = add(engine)
    engine.step()
    engine.step()
    for sequence in (running, waiting):
        sequence.arrived -= 7200.0
    news = engine.step()
    assert running in news
    assert waiting in news
    assert (running.finish_reason, running.output) == ("deadline", greedy(count=2))
    assert (waiting.finish_reason, waiting.output) == ("deadline", [])
    finish(engine)
    assert other.output == greedy()


def test_too_big_a_request_is_refused_at_once() -> None:
    engine = toy_engine(kv_tokens=64)
    with pytest.raises(CapacityError, match="kv_tokens"):
        add(engine, max_tokens=60)
    assert not engine.busy


def test_requests_wait_for_memory() -> None:
    engine = toy_engine(kv_tokens=160, draft_tokens=0, batch=8)
    sequences = [add(engine, prompt=PROMPT[i:], max_tokens=12) for i in range(6)]
    engine.step()
    assert 1 <= len(engine.running) < 6
    finish(engine)
    for i, sequence in enumerate(sequences):
        assert sequence.output == greedy(PROMPT[i:])


def test_a_prompt_is_cut_where_the_step_is_full() -> None:
    engine = toy_engine(step_tokens=10)
    first, second = add(engine, prompt=PROMPT), add(engine, prompt=LOOP)
    steps = 0
    while not first.output:
        engine.step()
        steps += 1
    assert steps == 4
    assert not second.output
    assert first.stats.forwards == 1
    finish(engine)
    assert first.output == greedy(PROMPT)
    assert second.output == greedy(LOOP)


def test_running_requests_do_not_wait_for_a_long_prompt() -> None:
    engine = toy_engine(step_tokens=5)
    first = add(engine, prompt=(5, 6), max_tokens=8)
    engine.step()
    second = add(engine, prompt=PROMPT)
    for count in range(2, 6):
        engine.step()
        assert len(first.output) == count
        assert second.output == []
    finish(engine)
    assert second.output == greedy(PROMPT)


def test_waiting_prompts_do_not_stop_running_requests() -> None:
    engine = toy_engine(step_tokens=8)
    running = [add(engine, prompt=(5, 6 + i), max_tokens=60) for i in range(4)]
    engine.step()
    prompts = [add(engine, prompt=PROMPT[i:] * 3, max_tokens=2) for i in range(3)]
    for count in range(2, 40):
        engine.step()
        assert [len(sequence.output) for sequence in running] == [count] * 4
        if count == 25:  # Those behind the first were not forgotten.
            shares = [sequence.caches["target"].length for sequence in prompts]
            assert shares[0] > shares[1] > 0
            assert shares[2] > 0
    finish(engine)
    assert [sequence.output for sequence in prompts] == [
        greedy(PROMPT[i:] * 3, 2) for i in range(3)
    ]


def test_a_prompt_is_not_starved_by_steps_that_fill_the_budget() -> None:
    engine = toy_engine(step_tokens=4)
    running = [add(engine, prompt=(5, 6 + i), max_tokens=60) for i in range(8)]
    while not all(sequence.output for sequence in running):
        engine.step()
    late = add(engine, prompt=PROMPT, max_tokens=2)
    for _ in range(40):
        engine.step()
    assert late.caches["target"].length > 2
    counts = [len(sequence.output) for sequence in running]
    assert max(counts) - min(counts) <= 2
    finish(engine)
    assert late.output == greedy(PROMPT, 2)


def test_drafts_shrink_with_load() -> None:
    """Drafts shrink in a full batch: rows are nearly free up to 16 and expensive beyond."""
    curve = CostCurve((1, 16, 64), (64,), ((0.010, 0.011, 0.059),))

    def drafted(batch: int) -> float:
        engine = toy_engine(batch=16, kv_tokens=4096)
        engine.load.curve = curve
        params = SamplingParams(48, ignore_eos=True)
        sequences = [
            engine.add(
                GenerationRequest(np.array(LOOP), parse("prompt-lookup"), params, salt=str(i))
            )
            for i in range(batch)
        ]
        finish(engine)
        assert all(sequence.output == greedy(count=48) for sequence in sequences)
        return sum(sequence.stats.drafted for sequence in sequences) / batch

    alone, crowded = drafted(1), drafted(16)
    assert alone > 24
    assert crowded < alone / 2


def test_tenants_take_turns_by_what_they_were_given() -> None:
    engine, ended = toy_engine(batch=1), []
    names = {}
    for name, tokens in (("a", 20), ("b", 4)):
        for index in range(8):
            sequence = add(engine, prompt=(5, 6), max_tokens=tokens, salt=name)
            names[id(sequence)] = f"{name}{index}"
    while engine.busy:
        ended += [names[id(sequence)] for sequence in engine.step() if sequence.finished]
    # An output of "a" is worth 42, one of "b" 10.
    assert ended[:6] == ["a0", "b0", "b1", "b2", "b3", "b4"]
    assert ended.index("b7") < ended.index("a2")


def test_a_pause_earns_no_credit() -> None:
    engine = toy_engine(batch=1)
    for _ in range(6):
        add(engine, prompt=(5, 6), max_tokens=20, salt="busy")
    for _ in range(70):
        engine.step()
    names = {}
    for name in ("busy", "new"):
        for _ in range(4):
            names[id(add(engine, prompt=(5, 6), max_tokens=20, salt=name))] = name
    ended = []
    while engine.busy:
        ended += [names.get(id(s), "busy") for s in engine.step() if s.finished]
    assert ended[:7].count("new") == 3


class Watched(ToyBackend):
    """A toy backend that records the rows of each forward."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def forward(self, spans: Sequence[Any]) -> Any:
        self.rows.append(sum(len(span.positions) for span in spans))
        return super().forward(spans)


def watched(**limits: int) -> tuple[Any, Watched]:
    backend = Watched()
    engine = toy_engine({"target": backend}, **{"kv_tokens": 8192, **limits})
    engine.load.curve = CURVE
    return engine, backend


def test_a_step_costs_little_more_beside_a_greedy_owner() -> None:
    engine, backend = watched()
    many = [add(engine, prompt=(5, 6 + i), max_tokens=90, salt="greedy") for i in range(12)]
    engine.step()
    engine.step()
    assert backend.rows[-1] == 12
    modest = add(engine, prompt=(5, 6), max_tokens=60, salt="modest")
    engine.step()
    for count in range(2, 60):
        engine.step()
        assert len(modest.output) == count  # It waits for nobody.
        cost = engine.load.of_step("target", backend.rows[-1], 64)
        assert cost <= SLOWER * engine.load.of_step("target", 1, 0)
        assert backend.rows[-1] == 3
    given = [len(one.output) for one in many]
    assert max(given) - min(given) <= 1
    finish(engine)
    assert backend.rows[-3:] == [12, 12, 12]
    assert [one.output for one in many] == [greedy((5, 6 + i), 90) for i in range(12)]
    assert modest.output == greedy((5, 6), 60)


def test_prompts_of_a_greedy_owner_come_in_pieces_beside_another_one() -> None:
    engine, backend = watched()
    modest = add(engine, prompt=(5, 6), max_tokens=130, salt="modest")
    engine.step()
    late = [add(engine, prompt=PROMPT[i:] * 2, max_tokens=3, salt="greedy") for i in range(3)]
    for count in range(2, 130):
        engine.step()
        assert len(modest.output) == count
        assert backend.rows[-1] <= 3
    assert late[0].finished  # Nor does the prompt wait for ever.
    finish(engine)
    assert [one.output for one in late] == [greedy(PROMPT[i:] * 2, 3) for i in range(3)]


@dataclass
class Owner:
    """A simulated owner that repeats forwards of given sizes, one after another."""

    name: str
    sizes: list[int]
    divisible: bool = False
    calls: list[Any] = field(default_factory=list)
    last: int = 0

    def __post_init__(self) -> None:
        self.calls = [self.call(rows) for rows in self.sizes]

    def call(self, rows: int) -> Any:
        sequence, cache = SimpleNamespace(owner=self.name), SimpleNamespace(length=32)
        return SimpleNamespace(
            owner=sequence, cache=cache, rows=rows, divisible=self.divisible, waited=0, of=self
        )


def simulated(owners: list[Owner], steps: int, budget: int = 512) -> tuple[list[int], Counter[str]]:
    """Simulate owners; return the rows of each step and of each owner.

    No owner with something to do may wait for long.
    """
    engine, _ = watched()
    debts: dict[str, int] = {}
    widths, given = [], Counter[str]()
    for step in range(steps):
        calls = [call for owner in owners for call in owner.calls]
        least = min(sum(call.rows for call in owner.calls) for owner in owners)
        cost = lambda rows, context: engine.load.of_step("target", rows, context)  # noqa: E731
        chosen: Any = shared_out(calls, budget, least, cost, debts)
        widths.append(sum(rows for _, rows in chosen))
        for call, rows in chosen:
            given[call.of.name] += rows
            call.of.last = step
            assert rows == call.rows or call.divisible
        assert all(step - owner.last < 200 for owner in owners)
        assert all(debts.values())
    return widths, given


def test_what_cannot_be_cut_is_made_up_for() -> None:
    """After a block of 32 rows its owner waits some steps, so the other owner never waits."""
    widths, given = simulated([Owner("modest", [1]), Owner("blocks", [32] * 4)], 1000)
    room = 3
    assert given["modest"] == 1000
    assert set(widths) == {1, 33}
    assert sum(widths) / 1000 == pytest.approx(room, abs=0.1)


@pytest.mark.first(8)
@pytest.mark.parametrize("seed", range(20))
def test_nobody_starves(seed: int) -> None:
    draw = random.Random(seed)
    owners = [
        Owner(
            str(number), [draw.choice((1, 1, 2, 5, 32, 100)) for _ in range(draw.randrange(1, 9))],
            draw.random() < 0.3,
        )
        for number in range(draw.randrange(2, 9))
    ]  # fmt: skip
    widths, _ = simulated(owners, 600, budget=draw.choice((8, 64, 512)))
    assert min(widths) > 0


def test_owners_who_ask_for_little_all_have_it() -> None:
    owners = [Owner(str(number), [1]) for number in range(40)]
    widths, given = simulated([*owners, Owner("greedy", [1] * 100)], 100)
    assert set(widths) == {41}
    assert set(given.values()) == {100}


def test_room_grows_with_what_the_others_ask_for() -> None:
    def cost(rows: int, context: int) -> float:
        return 19.0 + rows + context

    assert room_for(2, 1, [0, 0], 512, cost) == 4  # 23 <= 1.15 * 20
    assert room_for(2, 4, [0, 0], 512, cost) == 8
    assert room_for(2, 20, [0, 0], 512, cost) == 40
    assert room_for(2, 100, [0, 0], 512, cost) == 200
    assert room_for(2, 100, [0, 0], 64, cost) == 64
    assert room_for(2, 1, [0, 50], 512, cost) == 2  # Long texts are dear: equal shares are left.


@pytest.mark.parametrize(("rows", "owners"), [(1, 2), (2, 3), (4, 8)])
def test_owners_take_turns_where_rows_are_few(rows: int, owners: int) -> None:
    engine = toy_engine(step_tokens=rows, kv_tokens=4096)
    sequences = [
        add(engine, prompt=(5, 6 + i), max_tokens=80, salt=str(i)) for i in range(owners)
    ]  # fmt: skip
    for _ in range(60):
        engine.step()
    made = [len(one.output) for one in sequences]
    assert min(made) >= 60 * rows // owners - 12


def test_what_an_owner_leaves_to_others_is_counted_with_the_request_that_comes() -> None:
    pages = 24
    engine = toy_engine(kv_tokens=pages * PAGE, draft_tokens=0)
    large = add(engine, prompt=LOOP * 2, max_tokens=200, salt="one")
    engine.step()
    small = add(engine, prompt=LOOP[:3], max_tokens=5, salt="one")
    engine.step()
    assert small.output  # It does not wait for what the large one has.
    engine.cancel(large)
    add(engine, prompt=LOOP * 3, max_tokens=240, salt="one")
    engine.step()
    assert sum(live.reserved for live in engine.running) <= pages - pages // 8


@pytest.mark.parametrize(("field", "value"), [
    ("priority", "high"), ("priority", None), ("priority", 1.5), ("priority", 10**30),
    ("deadline", "5"), ("deadline", float("nan")), ("deadline", True), ("deadline", -1),
    ("salt", 5), ("salt", "\ud800"), ("owner", ["a"]), ("owner", "\ud800"),
])  # fmt: skip
def test_what_the_books_cannot_hold_is_refused(field: str, value: Any) -> None:
    engine = toy_engine(batch=1)
    waiting = [add(engine, prompt=(5, 6 + i)) for i in range(2)]
    request = GenerationRequest(np.array(LOOP, np.int32), by(plainly), **{field: value})
    with pytest.raises(InvalidInput, match=field):
        engine.add(request)
    finish(engine)
    assert [one.output for one in waiting] == [greedy((5, 6 + i)) for i in range(2)]


def test_unseeded_requests_differ() -> None:
    engine = toy_engine()
    sequences = [add(engine, temperature=2.0, max_tokens=20) for _ in range(2)]
    finish(engine)
    assert sequences[0].output != sequences[1].output


@pytest.mark.parametrize("prompt", [[], [[5]], [-1], [29], [5] * 160, [0.5]])
def test_unusable_prompts_are_refused(prompt: list[int]) -> None:
    engine = toy_engine()
    with pytest.raises(InvalidInput):
        engine.add(GenerationRequest(np.array(prompt), by(plainly)))
    assert not engine.busy


@pytest.mark.parametrize(
    "params", [{"logit_bias": {29: 1.0}}, {"stop_token_ids": (400,)}, {"stop": "x"}]
)
def test_parameters_this_model_cannot_serve_are_refused(params: dict[str, object]) -> None:
    engine = toy_engine()
    with pytest.raises(InvalidInput):
        add(engine, **params)
    assert not engine.busy


@pytest.mark.parametrize("name", ["batch", "step_tokens", "kv_tokens", "draft_tokens"])
@pytest.mark.parametrize("value", [-1, 1.5, True, 1 << 40])
def test_limits_are_checked(name: str, value: object) -> None:
    with pytest.raises(InvalidInput, match=name):
        Limits(**{name: value})  # type: ignore[arg-type]


def test_what_networks_draft_waits_for_no_forward_of_the_others() -> None:
    """Methods that run a network before each forward share forwards with methods that do not."""

    def drafts_first(seq: Any) -> Any:
        while not seq.finished:
            for _ in range(3):  # Like a head that drafts by levels.
                reply = yield negative()
                assert reply == -1
            reply = yield Forward(seq.pending)
            seq.commit(coupled(seq, EMPTY, reply))

    engine = toy_engine()
    sequences = [add(engine, decode) for decode in (plainly, drafts_first, plainly, drafts_first)]
    finish(engine)
    assert [len(sequence.output) for sequence in sequences] == [12] * 4
    assert sequences[0].output == sequences[1].output
    assert engine.forwards == 12
