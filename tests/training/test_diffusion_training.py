"""The training loop learns, and a run that was stopped and continued gets the same weights."""

import json
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from diffusion_models import CPU, SMALL, trainer

from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode_lab.training.diffusion.evaluation import EXACT, VARIANTS, evaluate, look
from paradecode_lab.training.diffusion.training import (
    MODEL,
    OBJECTIVES,
    DiffusionPlan,
    TinyTraining,
)
from paradecode_lab.training.running import CHECKPOINT, LOG


def same(a: TinyTraining, b: TinyTraining) -> bool:
    pairs = zip(a.average.state_dict().values(), b.average.state_dict().values(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


@pytest.mark.first(1)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_loss_falls(objective):
    learner = trainer(objective=objective, steps=30, hidden_size=64)
    losses = [learner.advance() for _ in range(30)]
    assert np.mean(losses[-5:]) < 0.75 * np.mean(losses[:3])


@pytest.mark.first(1)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_there_are_no_more_workers_than_packs(objective):
    """A machine with more cores than packs must get the same weights.

    Further workers are left out.
    """
    few, many = (trainer(workers, objective=objective, rows=64) for workers in (2, 5))
    assert few.advance() == many.advance()
    assert same(few, many)


def test_a_training_begins_with_the_weights_of_another_model(tmp_path):
    first = trainer(steps=2)
    first.advance()
    first.save(tmp_path / CHECKPOINT)
    rounded = {k: v.half().float() for k, v in first.average.state_dict().items()}
    second = trainer(start=str(tmp_path / MODEL))
    for name, own in second.model.state_dict().items():
        assert torch.equal(own, rounded[name])
    assert same(second, trainer(start=str(tmp_path / MODEL)))
    for folder in (str(tmp_path / "nothing"), "paradecode/tiny-diffusion", str(tmp_path)):
        with pytest.raises(InvalidModel, match="same size"):
            trainer(start=folder)


@pytest.mark.wide
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_stopped_run_ends_with_the_weights_of_an_unbroken_one(tmp_path, objective, workers):
    unbroken = trainer(workers, objective=objective)
    for _ in range(SMALL.steps):
        unbroken.advance()
    asked = iter([False] * 5 + [True])
    broken = trainer(workers, objective=objective)
    done = broken.run(tmp_path, lambda: next(asked), quiet)
    assert not done
    assert broken.step == 5
    assert (tmp_path / MODEL / "model.safetensors").exists()  # The present model can be tried.
    resumed = TinyTraining.load(tmp_path / CHECKPOINT, broken.plan, CPU, workers)
    assert resumed.run(tmp_path, lambda: False, quiet)
    assert same(unbroken, resumed)
    assert not same(unbroken, broken)


def quiet(step, loss, exact):
    pass


@pytest.mark.wide
def test_workers_change_rounding_only():
    one, two = trainer(1), trainer(2)
    losses = [(one.advance(), two.advance()) for _ in range(3)]
    np.testing.assert_allclose(*zip(*losses), rtol=1e-3)


def test_seeds_differ():
    assert not same(trainer(seed=0), trainer(seed=1))


def test_the_log_and_the_last_evaluation(tmp_path):
    told = []
    learner = trainer(steps=4)
    learner.run(
        tmp_path, lambda: False, lambda *what: told.append(what), lambda: look(learner, 1), every=4
    )
    assert [step for step, _, _ in told] == [1, 2, 3, 4]
    lines = [json.loads(line) for line in (tmp_path / LOG).read_text().splitlines()]
    assert [line["step"] for line in lines] == [4]
    assert set(lines[0]["exact"]) == set(learner.shares)
    results = evaluate(learner, tmp_path, VARIANTS[:1], instances=1)
    written = json.loads((tmp_path / EXACT).read_text())
    assert written["step"] == 4
    assert written["exact_match"]["static(1)"].keys() == results["static(1)"].keys()


@pytest.mark.wide
def test_steps_may_change_while_the_rate_is_high(tmp_path):
    learner = trainer(steps=20)
    for _ in range(4):
        learner.advance()
    learner.save(tmp_path / CHECKPOINT)
    longer = TinyTraining.load(tmp_path / CHECKPOINT, replace(learner.plan, steps=40), CPU)
    assert longer.plan.steps == 40
    for _ in range(12):
        learner.advance()
    learner.save(tmp_path / CHECKPOINT)
    with pytest.raises(InvalidInput, match=r"steps: 40 .*begun with 20"):
        TinyTraining.load(tmp_path / CHECKPOINT, replace(learner.plan, steps=40), CPU)


def test_another_plan_and_a_damaged_file_are_refused(tmp_path):
    learner, path = trainer(), tmp_path / CHECKPOINT
    learner.save(path)
    with pytest.raises(InvalidInput, match="seed: 5"):
        TinyTraining.load(path, replace(learner.plan, seed=5), CPU)
    good = torch.load(path)
    name = next(name for name, tensor in good["average"].items() if tensor.ndim == 2)
    for part in ("model", "average"):
        torch.save({**good, part: {**good[part], name: good[part][name][:1]}}, path)
        with pytest.raises(InvalidInput, match=rf"^{name}: .*begun with \[1,"):
            TinyTraining.load(path, learner.plan, CPU)
    torch.save(good, path)
    data = path.read_bytes()
    for damaged in (b"", b"nothing", data[: len(data) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(InvalidModel, match="remove it"):
            TinyTraining.load(path, learner.plan, CPU)


@pytest.mark.parametrize("bad", [
    {"objective": "x"}, {"steps": 0}, {"rows": 0}, {"heads": 5}, {"layers": 1000}, {"tasks": "x"},
    {"blocks": 2}, {"blocks": 0.5, "objective": "autoregressive"},
    {"shift": True, "objective": "autoregressive"}, {"states": (0,)},
    {"states": (0, 6), "objective": "autoregressive"},
    {"states": tuple(range(6)), "objective": "autoregressive"},
])  # fmt: skip
def test_bad_plans(bad):
    with pytest.raises(InvalidInput, match=next(iter(bad)) if "heads" not in bad else "hidden"):
        DiffusionPlan(**bad)
