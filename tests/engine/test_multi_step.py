"""Several steps in one call give the same outputs, steps and learned data as single steps."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from driving import finish
from one_by_one import CONFIG, OneByOne, add, alike, both, engine_of, facts, prompt

from paradecode.core.errors import BackendError
from paradecode.engine import multi_step
from paradecode.engine.cost import CostCurve
from paradecode.engine.engine import Engine
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.draft.acceptance import Calibration
from paradecode.models.tiny import tiny_checkpoint

pytestmark = pytest.mark.usefixtures("same_costs")
SPECS = (
    "greedy", "prompt-lookup", "prompt-lookup(budget=fixed)",
    "prompt-lookup(min_ngram=2,max_ngram=20,num_speculative_tokens=3)",
    "prompt-lookup(max_ngram=1,budget=auto(patience=2))",
    "prompt-lookup(table={table},budget=fixed,num_speculative_tokens=64)",
    "prompt-lookup(table={table})",
)  # fmt: skip


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Make an n-gram table from the model's own outputs."""
    counting = pytest.importorskip("paradecode_lab.training.ngrams.counting")
    engine = engine_of(OneByOne)
    texts = []
    for seed in range(24):
        params = {"max_tokens": 60, "temperature": 0.7, "seed": seed}
        (made,) = alike([engine], ("greedy", seed, params))
        texts.append([*prompt(seed), *made.output])
    path = tmp_path_factory.mktemp("tables") / "own.ngrams"
    counting.count_ngrams(texts, CONFIG.vocab_size).save(path)
    return str(path)


def curve_of(seed: int) -> CostCurve | None:
    """Return costs at which some drafts save time and others do not."""
    random = np.random.default_rng(seed)
    if seed % 4 == 0:
        return None
    grid = np.cumsum(random.uniform(1e-5, 4e-4, (2, 4)), axis=1) + 1e-3
    return CostCurve((1, 2, 8, 40), (20, 300), tuple(map(tuple, grid.tolist())))


def remembered(engine: Engine, salt: str = "") -> Any:
    """Return what the requests of the tenant have learned."""
    stores = engine.stores.of(salt, "one")
    return {name: (one.calibration.read(), one.refused) for name, one in stores.items()}


def random_params(seed: int) -> dict[str, Any]:
    random = np.random.default_rng([seed, 1])
    params: dict[str, Any] = {"max_tokens": int(random.integers(1, 120)), "seed": seed}
    if seed % 3:
        params["temperature"] = float(random.choice([0.3, 0.9]))
        params |= [{}, {"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.1}][int(random.integers(4))]
    if seed % 2:
        params |= {"ignore_eos": True}
    if seed % 5 == 0:
        params |= {"stop_token_ids": random.integers(0, CONFIG.vocab_size, 9).tolist()}
    if seed % 7 == 0:
        params |= {"min_tokens": params["max_tokens"] // 2}
    if seed % 4 < 2:
        params |= {"logprobs": 0}
    return params


@pytest.mark.first(7)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("seconds", [0.0, 0.002, 10.0])
def test_equal_step_by_step(spec, seconds, table, made, monkeypatch):
    """Successive requests that learn from one another and share prompts give equal reports."""
    monkeypatch.setattr(multi_step, "SECONDS", seconds)
    monkeypatch.setattr(multi_step, "AHEAD", 1 if seconds == 0.0 else 40)
    spec = spec.format(table=repr(table))
    curve = curve_of(round(1000 * seconds) + 1)
    one, several = both(curve=curve)
    for seed in range(8):
        alike((one, several), (spec, seed, random_params(seed)))
        assert remembered(one) == remembered(several), seed
    assert one.forwards == several.forwards
    if seconds == 10.0:
        assert max(made) > 9
    assert sum(made) > several.forwards // 2


@pytest.mark.first(2)
@pytest.mark.parametrize("seed", range(4))
def test_costs_decide_alike(seed: int, table: str, made: list[int]) -> None:
    engines = both(curve=curve_of(seed))
    params = {"max_tokens": 90, "temperature": 0.2 * seed, "seed": seed, "ignore_eos": True}
    for spec in SPECS[1:]:
        alike(engines, (spec.format(table=repr(table)), seed, params))
    assert made


@pytest.mark.parametrize("spec", SPECS[:3])
def test_the_context_ends_it(spec: str, made: list[int]) -> None:
    engines = both(config=replace(CONFIG, context_length=70))
    (long,) = alike(engines, (spec, 3, {"max_tokens": 200, "ignore_eos": True}))
    assert len(long.tokens) == 70
    assert made


@pytest.mark.parametrize(
    "params", [{"logprobs": 2}, {"presence_penalty": 0.5}, {"logit_bias": {5: 1.0}},
               {"repetition_penalty": 1.2}, {"min_tokens": 30}],
)  # fmt: skip
def test_what_the_backend_cannot_do_is_made_by_the_method(params, made):
    alike(both(), ("prompt-lookup", 5, {"max_tokens": 30, "ignore_eos": True, **params}))
    assert not made


@pytest.mark.parametrize("dtype", ["q8", "f32"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("spec", SPECS[:2])
def test_log_probabilities(spec: str, temperature: float, dtype: str, made: list[int]) -> None:
    """Log-probabilities equal those of the whole logits, bit by bit.

    They also do so in a greedy step, which alone would not read the whole logits.
    """
    params = {"max_tokens": 60, "temperature": temperature, "ignore_eos": True}
    asked = [(spec, seed, {**params, "seed": seed, "logprobs": scored})
             for seed, scored in ((1, 0), (2, None), (3, 0))]  # fmt: skip
    sequences = alike(both(dtype=dtype), *asked)
    assert [len(one.logprobs) for one in sequences] == [60, 0, 60]
    for one in sequences[::2]:
        assert [entry.token for entry in one.logprobs] == one.output
    assert len({entry.logprob for entry in sequences[0].logprobs}) > 5
    assert sum(made) > 5


def test_other_rules_are_left_to_the_method(made: list[int]) -> None:
    engines = both()
    params = {"max_tokens": 30, "temperature": 0.5, "seed": 2, "ignore_eos": True}
    for spec in ("prompt-lookup(verifier=rejection)", "suffix", "prompt-lookup(budget=confidence)"):
        alike(engines, (spec, 5, params))
    assert not made


@pytest.mark.parametrize("neighbour", [False, True])
def test_steps_without_a_draft_are_made_together(neighbour: bool, made: list[int]) -> None:
    """While a drafter does not draft because drafts gain no time, the backend makes the steps."""
    dear = CostCurve((1, 2), (20,), ((1e-3, 1e-2),))
    one, several = both(curve=dear)
    plain, _ = both()
    for seed in range(3):
        params = {"max_tokens": 100, "temperature": 0.5 * seed, "seed": seed, "ignore_eos": True}
        other = [("greedy", 9, params)] * neighbour
        spec = "copyspec(gamma=1,budget=auto(patience=9))"
        drafting, *_ = alike((one, several), (spec, seed, params), *other)
        said, *_ = alike((plain,), ("greedy", seed, params), *other)
        assert drafting.output == said.output
        assert remembered(one) == remembered(several)
        ((_, refused),) = remembered(several).values()
        assert refused > 4
    assert sum(made) > several.forwards // 2
    assert max(made) <= 9
    assert one.forwards == several.forwards


def test_first_drafts_know_of_the_others() -> None:
    """A request alone drafts together with its prompt; beside others it first waits.

    It waits until all requests know how many they are.
    """
    cheap = CostCurve((1, 2), (20,), ((1e-3, 1.01e-3),))
    engine = engine_of(OneByOne, curve=cheap)
    alone = add(engine, "prompt-lookup", [1, 2, 3] * 9, max_tokens=3)
    finish(engine)
    assert alone.trace[0].drafted > 0
    engine = engine_of(OneByOne, curve=cheap, batch=3)
    some = [add(engine, "prompt-lookup", [1, 2, 3] * 9, max_tokens=9) for _ in range(5)]
    engine.step()
    assert [one.neighbours for one in some] == [2] * 5
    finish(engine)
    assert [one.trace[0].drafted for one in some] == [0] * 5


def test_a_prompt_that_was_read_makes_no_later_step_longer() -> None:
    """A prompt that was read before a step does not make the step look slower.

    Otherwise drafts would look cheap. A prompt that is still being read does count.
    """
    curve = CostCurve((1, 100), (20,), ((1e-3, 1.0),))
    engine = engine_of(OneByOne, curve=curve, step_tokens=70)
    some = [add(engine, "greedy", [1, 2, 3] * 10, max_tokens=9) for _ in range(3)]
    engine.step()
    assert engine.load.rows == 2 + 10
    for _ in range(2):
        engine.step()
        assert engine.load.rows == 3
        expected = [curve.at(3, len(one.tokens)) + engine.load.overhead for one in some]
        assert [one.step_seconds(1) for one in some] == pytest.approx(expected)


@pytest.mark.first(4)
@pytest.mark.parametrize("seconds", [0.0, 0.002, 10.0])
@pytest.mark.parametrize("turn", range(6))
def test_batches_equal_step_by_step(turn, seconds, table, made, monkeypatch):
    """Batches of different methods, costs, lengths and ends give equal drafts and learned data."""
    monkeypatch.setattr(multi_step, "SECONDS", seconds)
    monkeypatch.setattr(multi_step, "AHEAD", 1 if turn % 2 else 40)
    random = np.random.default_rng(turn)
    seeds = (7 * turn + np.arange(int(random.integers(2, 9)))).tolist()
    specs = [SPECS[int(at)].format(table=repr(table)) for at in random.integers(0, 7, len(seeds))]
    one, several = both(curve=curve_of(turn), batch=4 if turn == 2 else 16, kv_tokens=8192)
    # Each has its own tenant: drafts depend on what a tenant has learned, and when.
    salts = [f"tenant {seed}" for seed in seeds]
    params = [{**random_params(seed), "salt": salt} for seed, salt in zip(seeds, salts)]
    alike((one, several), *zip(specs, seeds, params))
    for salt in salts:
        assert remembered(one, salt) == remembered(several, salt)
    assert one.forwards == several.forwards
    assert sum(made) > several.forwards // 4


def test_a_shared_tenant_learns_from_all(table: str, made: list[int]) -> None:
    """Requests of one tenant learn from one another; this changes drafts, but no output."""
    one, several = both(curve=curve_of(2), kv_tokens=8192)
    spec = SPECS[6].format(table=repr(table))
    outputs = []
    for engine in (one, several):
        params = {"max_tokens": 50, "ignore_eos": True}
        sequences = alike([engine], *[(spec, seed, params) for seed in range(6)])
        outputs.append([sequence.output for sequence in sequences])
        assert sum(sequence.stats.drafted for sequence in sequences) > 0
        ((learned, _),) = remembered(engine).values()
        assert learned != Calibration().read()
    assert outputs[0] == outputs[1]
    assert made


def test_neighbours_come_and_go(made: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A new request joins the next step; when all requests can, several steps follow."""
    monkeypatch.setattr(multi_step, "SECONDS", 0.0)
    params = {"max_tokens": 100, "ignore_eos": True}
    one, engine = both()
    expected = [alike([one], (spec, 8, params))[0].output for spec in SPECS[:2]]
    first = add(engine, SPECS[1], prompt(8), **params)
    for _ in range(6):
        engine.step()
    alone = len(made)
    assert alone > 0
    second = add(engine, SPECS[0], prompt(8), **params)
    forwards = engine.forwards
    engine.step()
    assert engine.forwards == forwards + 1
    assert len(made) == alone
    assert len(second.trace) == 1
    for _ in range(4):
        engine.step()
    assert len(made) > alone
    engine.cancel(second)
    together = len(made)
    finish(engine)
    assert len(made) > together
    assert [first.output, second.output] == [expected[1], expected[0][: len(second.output)]]


def test_one_that_cannot_has_all_make_their_own(made: list[int]) -> None:
    """All requests make single steps until the one that cannot make several has ended."""
    other, engine = both()
    pairs = []
    for spec, length in (("prompt-lookup", 80), ("suffix", 10), ("greedy", 80)):
        params = {"max_tokens": length, "ignore_eos": True}
        pairs.append([add(one, spec, prompt(4), salt=spec, **params) for one in (engine, other)])
    while len(pairs[1][0].trace) == 0 or not pairs[1][0].finished:
        engine.step()
        engine.check()
    assert not made
    finish(engine)
    finish(other)
    assert sum(made) > 20
    for mine, theirs in pairs:
        assert facts(mine) == facts(theirs)


def test_cancelled_between_two_calls(made: list[int]) -> None:
    engine = engine_of(lambda one: one)
    sequence = add(engine, "greedy", prompt(1), max_tokens=400, ignore_eos=True)
    changed: list[LiveSequence] = []
    while len(made) < 2:
        changed += engine.step()
    assert changed == [sequence] * 3
    engine.cancel(sequence)
    assert sequence.finish_reason == "cancelled"
    assert 1 + sum(made) == len(sequence.output) < 400
    engine.check()
    assert not engine.busy


@pytest.mark.parametrize("neighbours", [0, 3])
def test_a_step_that_fails_is_reported_by_the_method(neighbours: int, made: list[int]) -> None:
    """If the model fails at a token of one sequence, earlier tokens and other requests stay."""
    config, weights = tiny_checkpoint("qwen3", sharpness=2.0)
    sampling = {"max_tokens": 40, "temperature": 1.0, "seed": 4}
    short = [{**sampling, "max_tokens": 20, "seed": 10 + at} for at in range(neighbours)]
    asked = [("greedy", 2, sampling), *(("prompt-lookup", 2, params) for params in short)]
    plain, *others = alike([engine_of(OneByOne, config, weights)], *asked)
    known = {*prompt(2), *plain.output[:5]}.union(*(other.output for other in others))
    place, token = next((at, t) for at, t in enumerate(plain.output) if at > 4 and t not in known)
    broken = {**weights, "embed": replace(weights["embed"], data=weights["embed"].data.copy())}
    broken["embed"].data.reshape(config.vocab_size, -1)[token] = np.nan
    for engine in both(config=config, weights=broken):
        sequence, *more = alike([engine], *asked)
        assert isinstance(sequence.error, BackendError)
        assert sequence.output == plain.output[: place + 1]
        assert [one.output for one in more] == [one.output for one in others]
    assert sum(made) > 0
    if not neighbours:
        assert sum(made) == place


def test_more_draft_tokens_than_are_set_aside(made: list[int]) -> None:
    for engine in both(draft_tokens=2):
        sequence = add(engine, "prompt-lookup(budget=fixed)", [1, 2, 3] * 9, max_tokens=30)
        finish(engine)
        assert sequence.error is None
        assert max(step.drafted for step in sequence.trace) == 2
    assert not made


def test_times_add_up() -> None:
    _, several = both()
    (sequence,) = alike([several], ("prompt-lookup", 1, {"max_tokens": 100, "ignore_eos": True}))
    stats = sequence.stats
    assert all(step.seconds > 0 for step in sequence.trace)
    total = stats.prefill_seconds + stats.decode_seconds
    assert sum(step.seconds for step in sequence.trace) == pytest.approx(total)
    assert 0 < stats.target_seconds < total
    assert stats.target_seconds + stats.decoder_seconds < total


def test_owners_share_the_rows_of_a_step(made: list[int]) -> None:
    """An owner with long drafts gets few rows beside another owner; the outputs stay the same."""
    outputs = []
    curve = CostCurve((1, 64), (64,), ((0.001, 0.008),))
    for engine in both(curve=curve, kv_tokens=8192):
        params = {"max_tokens": 60, "ignore_eos": True}
        spec = "prompt-lookup(budget=fixed)"
        long = [add(engine, spec, prompt(seed), owner="long", **params) for seed in range(2)]
        short = add(engine, "greedy", prompt(6), owner="short", **params)
        while len(short.output) < 50:
            engine.step()
            engine.check()
            if made and made[-1]:
                assert sum(one.last_rows for one in long if not one.finished) <= 3
        finish(engine)
        outputs.append([one.output for one in (*long, short)])
    assert outputs[0] == outputs[1]
    assert sum(made) > 10
