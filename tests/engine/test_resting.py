"""While a slow drafter rests, the backend makes several of its steps in one call."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from one_by_one import CONFIG, OneByOne, alike, both, engine_of

from paradecode.core.head import DraftPace, HeadDraft
from paradecode.engine.cost import CostCurve
from paradecode.engine.sequence import LiveSequence
from paradecode.models.tiny import tiny_checkpoint
from paradecode.testing.draft_heads import random_head

pytestmark = pytest.mark.usefixtures("same_costs", "steady")
CURVE = CostCurve((1, 32), (20,), ((1e-3, 2e-3),))
SLOW = CostCurve((1, 32), (20,), ((1e-2, 2e-2),))
HEADS = {"eagle": "eagle", "eagle3": "eagle", "medusa-own": "medusa", "kangaroo": "kangaroo",
         "mtp": "mtp", "longspec": "longspec", "clover": "clover", "ppd": "ppd"}  # fmt: skip


HEADS_OF = {"eagle": "eagle3", "medusa": "medusa-own"}


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a head's draft take a third of a step, whatever the machine does."""

    def book(self: DraftPace, seconds: float, levels: int) -> None:
        self.draft, self.level = 3e-4, 1e-4

    monkeypatch.setattr(DraftPace, "book", book)
    monkeypatch.setattr(DraftPace, "row", property(lambda self: 0.0, lambda self, seconds: None),
                        raising=False)  # fmt: skip


def asked(spec: str, tokens: int = 120, **params: Any) -> tuple[str, int, dict[str, Any]]:
    return spec, 5, {"max_tokens": tokens, "ignore_eos": True, "seed": 3, **params}


@pytest.mark.first(3)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", HEADS)
def test_a_refused_head_leaves_its_steps_to_the_backend(kind, temperature, tmp_path, made):
    """All reports equal those of single steps, and the tokens those of plain decoding."""
    spec = f"{HEADS[kind]}(head='{random_head(kind, CONFIG, tmp_path)}')"
    one, several = both(curve=CURVE)
    for _ in range(2):  # The second request knows that the drafts of the first have failed.
        (refused,) = alike((one, several), asked(spec, temperature=temperature))
    (plain,) = alike([engine_of(OneByOne)], asked("greedy", temperature=temperature))
    assert refused.output == plain.output
    assert one.forwards == several.forwards
    assert sum(made) > 2 * 120 * 0.5


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("partner", ["eagle", "medusa", "draft-model"])
def test_copies_beside_a_resting_model_are_left_to_the_backend(
    partner: str, temperature: float, tmp_path: Path, made: list[int]
) -> None:
    """While only the draft model rests, the backend drafts by copying; nothing else changes."""
    model = "draft-model"
    if partner != model:
        model = f"{partner}(head='{random_head(HEADS_OF[partner], CONFIG, tmp_path)}')"
    draft = tiny_checkpoint("llama", seed=9) if partner == "draft-model" else None
    one, several = both(curve=CURVE, draft=draft)
    for engine in (one, several):
        engine.load.others["draft"] = CostCurve((1, 32), (20,), ((5e-4, 1e-3),))
    for seed in (8, 8, 5):
        (fused,) = alike(
            (one, several), (f"prompt-lookup+{model}", seed, asked("", temperature=temperature)[2])
        )
        (plain,) = alike(
            [engine_of(OneByOne)], ("greedy", seed, asked("", temperature=temperature)[2])
        )
        assert fused.output == plain.output
    assert one.forwards == several.forwards
    assert sum(made) > 100


@pytest.mark.parametrize("neighbour", [False, True])
def test_a_head_gets_the_states_of_steps_that_it_did_not_see(
    neighbour: bool, tmp_path: Path, head_drafts: list[HeadDraft], made: list[int]
) -> None:
    """The head gets the states of all rows from the prompt's first on, exact to the last bit."""
    spec = f"eagle(head='{random_head('eagle3', CONFIG, tmp_path)}')"
    rows, curve = [], SLOW if neighbour else CURVE  # Beside others a dear head is not asked.
    for engine in both(curve=curve):
        head_drafts.clear()
        others = [asked("greedy", 150)] * neighbour
        sequence, *_ = alike([engine], asked(spec, 150), *others)
        mine = [draft for draft in head_drafts if draft.memory is head_drafts[0].memory]
        assert mine[0].start == 0
        ends = [draft.start + len(draft.tokens) for draft in mine]
        assert ends[:-1] == [draft.start for draft in mine[1:]]
        features, tokens = (np.concatenate(part) for part in
                            zip(*((draft.features, draft.tokens) for draft in mine)))  # fmt: skip
        assert tokens.tolist() == sequence.tokens[1 : ends[-1] + 1].tolist()
        assert max(len(draft.tokens) for draft in mine[1:]) >= 16
        rows.append((features, [len(draft.tokens) for draft in mine]))
    assert np.array_equal(rows[0][0], rows[1][0])
    assert rows[0][1] == rows[1][1]
    assert max(made) > 9


def test_a_head_that_cannot_pay_beside_others_costs_them_nothing(tmp_path, head_drafts, made):
    """A head that gains no time in a batch gets no states and prompts; alone, it begins."""
    spec = f"eagle(head='{random_head('eagle3', CONFIG, tmp_path)}')"
    for engine in both(curve=CURVE):
        alike([engine], asked(spec, 20))  # So that a draft's time is known.
        head_drafts.clear()
        backend = engine.models["target"]
        states, forward = [], backend.forward

        def seen(spans: Any, forward: Any = forward, states: list[int] = states) -> Any:
            states.extend(len(span.hidden) for span in spans)
            return forward(spans)

        backend.forward = seen  # type: ignore[method-assign]
        params = asked(spec, 60)[2]  # After more refusals it is tried all the same.
        alike([engine], *[(spec, 5 + i, {**params, "salt": f"{i}"}) for i in range(4)])
        assert head_drafts == []
        assert states
        assert not any(states)
        alike([engine], asked(spec, 20, salt="alone"))
        assert head_drafts
    assert max(made) > 9


@pytest.mark.first(2)
@pytest.mark.parametrize("spec", ["draft-model", "s2d", "layer-skip", "swift"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_refused_model_leaves_its_steps_to_the_backend(spec, temperature, made):
    """A resting draft model leaves its steps to the backend, and reads their tokens later.

    Rows of the target's own layers were already dropped.
    """
    engines = both(curve=CURVE, draft=tiny_checkpoint("llama", seed=9))
    for engine in engines:
        engine.load.others["draft"] = CostCurve((1, 32), (20,), ((5e-4, 6e-4),))
    (refused,) = alike(engines, asked(spec, 200, temperature=temperature))
    (plain,) = alike([engine_of(OneByOne)], asked("greedy", 200, temperature=temperature))
    assert refused.output == plain.output
    assert sum(made) > 200 * 0.7


def test_a_batch_of_refused_heads(tmp_path: Path, made: list[int]) -> None:
    """Each head drafts when its own rest is over; the other methods make that step themselves."""
    folder = random_head("eagle", CONFIG, tmp_path)
    specs = [f"eagle(head='{folder}')", f"eagle(head='{folder}',width=2)", "greedy",
             "prompt-lookup(budget=fixed)"]  # fmt: skip
    engines = both(curve=CURVE, kv_tokens=8192)
    wanted = [asked(spec, 100, seed=seed, salt=str(seed)) for seed, spec in enumerate(specs)]
    sequences = alike(engines, *wanted)
    plain = alike([engine_of(OneByOne)], *[("greedy", *rest) for _, *rest in wanted])
    assert [one.output for one in sequences] == [one.output for one in plain]
    assert sum(made) > 50


@pytest.mark.parametrize("params", [{"logprobs": 2}, {"presence_penalty": 0.5}, {"min_tokens": 40}])
def test_where_a_backend_may_not_the_method_goes_on(params, tmp_path, made):
    spec = f"eagle(head='{random_head('eagle', CONFIG, tmp_path)}')"
    alike(both(curve=CURVE), asked(spec, 40, **params))
    assert not made


def drafted(sequence: LiveSequence) -> int:
    return sum(step.drafted > 0 for step in sequence.trace)


def test_fixed_budgets_never_rest(tmp_path: Path, made: list[int]) -> None:
    spec = f"eagle(head='{random_head('eagle', CONFIG, tmp_path)}',budget=fixed)"
    (sequence,) = alike(both(curve=CURVE), asked(spec, 40))
    assert drafted(sequence) > 30
    assert not made
