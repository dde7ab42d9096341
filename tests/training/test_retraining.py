"""Retraining: from a model that decodes plainly to one that decodes by another method."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from train_command import run

from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.llm import LLM

torch = pytest.importorskip("torch")

# The modules below import PyTorch.
from retraining_models import CPU, SMALL, answers, causally, counting, random_model
from safetensors.torch import load_file, save_file

from paradecode.backends.torch.model import Transformer
from paradecode.methods.retrained.layers import Routers
from paradecode.models.catalogue import open_model
from paradecode_lab.training.adaptation.texts import BlockText, read_texts
from paradecode_lab.training.batched import final_states
from paradecode_lab.training.retraining.first import ROUTERS, FirstObjective, answers_of
from paradecode_lab.training.retraining.lud import LexicalUnitObjective, units, with_placeholders
from paradecode_lab.training.retraining.nested import NestedObjective
from paradecode_lab.training.retraining.run import Retraining, RetrainingPlan
from paradecode_lab.training.retraining.texts import rows_of, write_tasks
from paradecode_lab.training.retraining.wedlm import WedlmObjective, columns_seen, drawn, with_ends
from paradecode_lab.training.running import CHECKPOINT

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return random_model(tmp_path_factory.mktemp("models") / "model", 2)


def test_a_unit_is_a_token_and_the_sure_ones_behind_it():
    random = np.random.default_rng(0)
    sure = random.random((5, 12)) < 0.6
    for most in (1, 3, 20):
        found = units(torch.from_numpy(sure), most).numpy()
        for row, at in np.ndindex(sure.shape):
            rest = sure[row, at + 1 :]
            run_of = len(rest) if rest.all() else int(rest.argmin())
            assert found[row, at] == min(1 + run_of, most)


def test_a_placeholder_sees_what_it_sees_when_the_engine_decodes(folder):
    """Each group must have the states of a causal forward over its text and its placeholders."""
    made = LexicalUnitObjective(open_model(str(folder)), 3, 0.9, CPU)
    tokens = torch.from_numpy(np.random.default_rng(1).integers(5, 500, (2, 9)))
    roots = torch.tensor([[2, 7], [5, 2]])
    columns, places, seen = with_placeholders(tokens, roots, 3, made.mask)
    states = final_states(made.model, columns, places, seen[:, None])
    for row, group in np.ndindex(2, 2):
        root = int(roots[row, group])
        alone = torch.cat([tokens[row, : root + 1], torch.full((3,), made.mask)])[None]
        wanted = causally(made.model, alone)[0]
        got = states[row, 9 + 3 * group : 12 + 3 * group]
        assert torch.allclose(got, wanted[root + 1 :], atol=1e-4)
        assert torch.allclose(states[row, : root + 1], wanted[: root + 1], atol=1e-4)


def test_placeholders_learn_the_unit_and_where_it_ends(folder):
    made = LexicalUnitObjective(open_model(str(folder)), 2, 0.5, CPU)
    tokens = torch.tensor([[5, 6, 7, 8, 9, 0]])
    units_of = units(torch.tensor([[False, False, False, True, True, False]]), 3)
    wanted, labels = made._labels(tokens, torch.tensor([[0, 1, 2, 4]]), units_of)
    mask = made.mask
    # The unit after 5 is 6 alone; after 6 it is 7 8 9; after 7 it is 8 9; after 9 it is 0.
    assert wanted.tolist() == [[True, False, True, True, True, True, True, False]]
    expected = [[mask, mask, 8, 9, 9, mask, mask, mask]]
    assert torch.where(wanted, labels, mask).tolist() == expected


@pytest.mark.wide
def test_it_learns_to_write_several_tokens(folder, tmp_path):
    """A model that counts as sure of every token learns to count, and to write units at once."""
    objective = LexicalUnitObjective(open_model(str(folder)), 3, 0.0, CPU)
    plan, texts = RetrainingPlan(steps=150, batch=8, rate=5e-3), counting()
    Retraining(plan, objective, texts).run(tmp_path, lambda: False, lambda *_: None)
    with LLM(tmp_path / "model", threads=1) as llm:
        for threshold, least, most in ((0.9, 2, 6), (2, 7, 7)):
            assert least <= answers(llm, texts, f"lud(threshold={threshold})") <= most


def test_known_tokens_of_a_block_stand_in_front_of_its_masks(folder):
    """A block's states equal those of a causal forward with its known tokens before its masks."""
    made = WedlmObjective(open_model(str(folder)), 4, 8, 1.0, CPU)
    random = np.random.default_rng(1)
    tokens = torch.from_numpy(random.integers(5, 500, (3, 11)))
    masked = torch.from_numpy(random.random((3, 11)) < 0.5)
    end = torch.tensor([11, 7, 9])
    masked &= torch.arange(11) < end[:, None]
    inside = torch.arange(11) < end[:, None]
    columns = torch.cat([tokens, tokens.masked_fill(masked, made.mask)], 1)
    seen = columns_seen(masked, inside, 4)[:, None]
    states = final_states(made.model, columns, torch.arange(11).tile(2), seen)
    for row, first in np.ndindex(3, 3):
        block = range(4 * first, min(4 * first + 4, int(end[row])))
        order = [at for at in block if not masked[row, at]]
        order += [at for at in block if masked[row, at]]
        places = torch.tensor([*range(4 * first), *order])
        alone = torch.cat([tokens[row, : 4 * first], columns[row, 11:][order]])[None]
        wanted = causally(made.model, alone, places)[0]
        assert torch.allclose(states[row, 11:][order], wanted[4 * first :], atol=1e-4)
    assert torch.allclose(states[:, :11], causally(made.model, tokens), atol=1e-4)


def test_shares_of_answers_are_masked_block_by_block():
    answers = np.zeros((40, 50), bool)
    answers[:, 7:44] = True
    shares, masked = drawn(answers, 16, np.random.default_rng(0))
    assert not masked[~answers].any()
    found = set()
    for row, first in np.ndindex(40, 4):
        part = slice(16 * first, 16 * first + 16)
        (share,) = set(shares[row, part])
        assert masked[row, part].sum() == round(share * answers[row, part].sum())
        found.add(share)
    assert len(found) == 160
    assert 0.4 < np.mean([*found]) < 0.6


def test_ends_are_repeated_where_there_is_one():
    tokens = torch.tensor([[5, 6, 7, 0, 0], [5, 6, 7, 8, 9], [5, 0, 3, 3, 3]])
    rows = rows_of([BlockText(t.numpy()[:n], 1, n) for t, n in zip(tokens, (4, 5, 2))], CPU)
    made = with_ends(rows, 3, (0,), 6)
    assert made.end.tolist() == [6, 5, 5]
    assert made.tokens[0].tolist() == [5, 6, 7, 0, 0, 0]
    assert made.tokens[1, :5].tolist() == [5, 6, 7, 8, 9]
    assert made.tokens[2, :5].tolist() == [5, 0, 0, 0, 0]
    assert torch.equal(with_ends(rows, 0, (0,), 6).tokens, rows.tokens)


@pytest.mark.parametrize("weight", [0.0, 1.0, 3.0])
def test_the_loss_of_masks_weighs_one_over_their_share(folder, monkeypatch, weight):
    """In the loss, a mask has the weight of one over the share of masks in its block.

    The reference adds cross-entropies of single forwards, one mask after the other.
    """
    made, texts = WedlmObjective(open_model(str(folder)), 4, 1, weight, CPU), counting(3)
    shares = np.array([[0.2] * 4 + [0.9] * 4 + [0.5] * 2] * 3)
    masked = np.zeros((3, 10), bool)
    masked[:, [3, 5, 6, 9]] = True
    monkeypatch.setattr(
        "paradecode_lab.training.retraining.wedlm.drawn", lambda *_: (shares, masked)
    )
    found = float(made.loss(rows_of(texts, CPU), np.random.default_rng(0), 0.0))
    losses, parts, plain = [], [], []
    for text in texts:
        ids = torch.from_numpy(text.tokens.astype(np.int64))
        for first in (0, 4, 8):
            known = [at for at in range(first, min(first + 4, 10)) if not masked[0, at]]
            masks = [at for at in range(first, min(first + 4, 10)) if masked[0, at]]
            places = torch.tensor([*range(first), *known, *masks])
            row = torch.cat([ids[:first], ids[known], torch.full((len(masks),), made.mask)])[None]
            states = causally(made.model, row, places)[0]
            for state, at in zip(states[len(places) - len(masks) :], masks, strict=True):
                losses.append(-made.model.logits(state[None])[0].log_softmax(-1)[ids[at]].item())
                parts.append(1 / shares[0, at])
        said = made.model.logits(causally(made.model, ids[None])[0]).log_softmax(-1)
        plain += [-said[at - 1, ids[at]].item() for at in range(3, 10)]
    wanted = (np.average(losses, weights=parts) + weight * np.mean(plain)) / (1 + weight)
    assert found == pytest.approx(wanted, rel=1e-4)


@pytest.mark.wide
def test_it_learns_to_fill_masks(folder, tmp_path):
    """A trained model fills the masks of an answer in few forwards.

    Answers repeat one token six times and end, so one forward is enough.
    """
    objective = WedlmObjective(open_model(str(folder)), 32, 8, 1.0, CPU)
    texts = [
        BlockText(np.array([3, 10 + n % 20, 4, *[40 + n % 20] * 6, 0], np.int32), 3, 10)
        for n in range(64)
    ]
    plan = RetrainingPlan(steps=150, batch=8, rate=5e-3)
    Retraining(plan, objective, texts).run(tmp_path, lambda: False, lambda *_: None)
    with LLM(tmp_path / "model", threads=1) as llm:
        for spec, least, most in (("wedlm", 1, 5), ("wedlm(entropy=0)", 7, 12)):
            assert least <= answers(llm, texts, spec) <= most


def test_a_unit_is_what_the_model_before_the_training_is_sure_of(folder, monkeypatch):
    made, seen = LexicalUnitObjective(open_model(str(folder)), 3, 0.0, CPU), []

    def noted(sure, most):
        seen.append(sure)
        return units(sure, most)

    monkeypatch.setattr("paradecode_lab.training.retraining.lud.units", noted)
    rows = rows_of([*counting(4), BlockText(np.arange(5, 12, dtype=np.int32), 2, 6)], CPU)
    chances = made._chances(rows)
    with torch.no_grad():
        for tensor in made.trained.values():
            tensor.add_(1.0)
    assert torch.equal(made._chances(rows), chances)
    made.loss(rows, np.random.default_rng(0), 0.0)
    assert torch.equal(seen[0], rows.answers)  # Only answer tokens count.


def test_the_price_of_a_layer_is_concave_in_its_gate(folder):
    rows, random = rows_of(counting(4), CPU), np.random.default_rng(0)
    made = [FirstObjective(open_model(str(folder)), 4, price, 0, CPU) for price in (0.0, 3.0)]
    free, priced = (float(one.loss(rows, random, 0.0).detach()) for one in made)
    gate = 1 / (1 + np.exp(-1.0))  # At first every router has weight 0 and bias 1.
    assert priced - free == pytest.approx(3 * gate * (2 - gate), abs=1e-4)


def test_gates_of_training_are_the_layers_of_decoding(folder, tmp_path):
    """In the second half of a training, log-probabilities must be those of decoded texts."""
    base = open_model(str(folder))
    made, texts = FirstObjective(base, 4, 0.0, 0, CPU), counting(12)
    with torch.no_grad():
        made.model.weight.copy_(torch.randn(1, 32, generator=torch.Generator().manual_seed(0)))
        made.model.hard = False
        answers_of(made.model, rows_of(texts, CPU))
        made.model.bias.sub_(made.model.scores[0].median().logit() - 1e-3)
    made.export(tmp_path)
    made.model.hard, kept = True, set()
    with LLM(tmp_path / "model", backend="torch", dtype="fp64", threads=1) as llm:
        spec = f"first(routers='{tmp_path / ROUTERS}')"
        prompts = [text.tokens[:3].tolist() for text in texts]
        for prompt, out in zip(
            prompts, llm.complete(prompts, decoder=spec, max_tokens=8, logprobs=0)
        ):
            tokens = np.array(prompt + out.token_ids, np.int32)
            rows = rows_of([BlockText(tokens, 3, len(tokens))], CPU)
            logits, right = answers_of(made.model, rows)
            wanted = logits.log_softmax(-1).gather(-1, right[:, None])[:, 0].detach().numpy()
            kept.add(bool(made.model.scores[0] >= 0.5))
            assert np.allclose([one.logprob for one in out.logprobs], wanted, atol=2e-3)
    assert kept == {False, True}


@pytest.mark.wide
def test_a_price_makes_routers_skip(folder, tmp_path):
    plan, texts = RetrainingPlan(steps=60, batch=8, rate=5e-2), counting()
    for price in (0.0, 100.0):
        made = FirstObjective(open_model(str(folder)), 4, price, 0, CPU)
        before = {name: tensor.clone() for name, tensor in made.trained.items()}
        Retraining(plan, made, texts).run(tmp_path / str(price), lambda: False, lambda *_: None)
        assert not torch.equal(before["weight"], made.trained["weight"])
        assert any(not torch.equal(before[n], t) for n, t in made.trained.items() if ".b" in n)
        frozen = made.model.using({})  # The routers were trained on this.
        answers_of(frozen, rows_of(texts, CPU))
        assert (frozen.scores[0].max().item() < 0.02) == (price > 0)
        stored = Routers.open(str(tmp_path / str(price) / ROUTERS))
        assert np.array_equal(stored.tensors["weight"], made.model.weight.detach().numpy())


def test_the_loss_is_the_mean_over_models_that_end_at_the_exits(folder):
    """The loss of each exit must equal that of a model that has no more layers."""
    base, rows = open_model(str(folder)), rows_of(counting(6), CPU)
    made = NestedObjective(base, (1, 2), 0, CPU)
    losses = []
    for layers in (1, 2):
        cut = Transformer(base.config.altered(layers=layers), base.weights, torch.float32, CPU)
        said = cut.logits(causally(cut, rows.tokens)[:, :-1]).log_softmax(-1)
        chances = said.gather(-1, rows.tokens[:, 1:, None])[..., 0]
        losses.append(-chances[rows.answers[:, 1:]].mean().item())
    assert losses[0] != pytest.approx(losses[1], abs=1e-2)
    found = made.loss(rows, np.random.default_rng(0), 0.0).item()
    assert found == pytest.approx(np.mean(losses), abs=1e-4)
    drawn, random = NestedObjective(base, (1, 2), 1, CPU), np.random.default_rng(0)
    found = {round(drawn.loss(rows, random, 0.0).item(), 4) for _ in range(12)}
    assert sorted(found) == pytest.approx(sorted(losses), abs=1e-3)


def test_a_step_at_one_exit_leaves_deeper_layers_alone(folder):
    made = NestedObjective(open_model(str(folder)), (1, 2), 1, CPU)
    before = {name: tensor.clone() for name, tensor in made.trained.items()}
    trainer = Retraining(RetrainingPlan(steps=9, batch=4), made, counting(8))
    changed = set()
    for _ in range(9):
        trainer.advance()
        new = {n for n, tensor in made.trained.items() if not torch.equal(tensor, before[n])}
        deep = any(name.startswith("layers.1.") for name in new)
        changed.add(deep)
        if deep:
            break
        assert any(name.startswith("layers.0.") for name in new)
    assert changed == {False, True}


def test_nested_exits_learn_and_are_cut_off(folder, tmp_path):
    """A model of one layer learns to count, and is written without the second layer."""
    plan, texts = RetrainingPlan(steps=150, batch=8, rate=5e-3), counting()
    made = NestedObjective(open_model(str(folder)), (1,), 0, CPU)
    Retraining(plan, made, texts).run(tmp_path, lambda: False, lambda *_: None)
    with LLM(tmp_path / "model", threads=1) as llm:
        assert llm.backend.config.layers == 1
        assert answers(llm, texts) <= 7


@pytest.mark.wide
def test_the_command_makes_a_draft_model(folder, tmp_path):
    output = tmp_path / "out"
    said = run("sorted", output, "--model", folder, "--steps", 2, "--exits", "1 2", *SMALL)
    assert "s2d(exits='1 2')" in said
    with LLM(folder, draft_model=output / "model", threads=1) as llm:
        assert llm.complete("copy: Ana", decoder="s2d(exits='1 2')", max_tokens=5).token_ids
    for field, value in (("exits", "2 1"), ("exits", "1 3"), ("drawn", 3)):
        with pytest.raises(InvalidInput, match=f"--{field}"):
            run("sorted", tmp_path / "x", "--model", folder, "--steps", 1, f"--{field}", value,
                *SMALL)  # fmt: skip


def test_a_stopped_run_goes_on_to_the_same_weights(folder, tmp_path):
    objective = lambda: LexicalUnitObjective(open_model(str(folder)), 2, 0.5, CPU)  # noqa: E731
    plan, texts = RetrainingPlan(steps=6, batch=4), counting(8)
    whole, part = objective(), objective()
    Retraining(plan, whole, texts).run(tmp_path / "whole", lambda: False, lambda *_: None)
    begun = Retraining(plan, part, texts)
    assert not begun.run(tmp_path / "part", lambda: begun.step == 3, lambda *_: None)
    again = objective()
    trainer = Retraining(plan, again, texts)
    trainer.resume(tmp_path / "part" / CHECKPOINT)
    assert trainer.step == 3
    trainer.run(tmp_path / "part", lambda: False, lambda *_: None)
    assert all(torch.equal(again.trained[name], whole.trained[name]) for name in whole.trained)
    other = Retraining(RetrainingPlan(steps=7, batch=4), objective(), texts)
    with pytest.raises(InvalidInput, match="steps"):
        other.resume(tmp_path / "part" / CHECKPOINT)
    path, place = tmp_path / "part" / CHECKPOINT, tmp_path / "same" / folder.name
    shutil.copytree(folder, place)
    weights = {n: 2 * w for n, w in load_file(folder / "model.safetensors").items()}
    save_file(weights, place / "model.safetensors")
    same_name = LexicalUnitObjective(open_model(str(place)), 2, 0.5, CPU)
    with pytest.raises(InvalidInput, match="weights"):
        Retraining(plan, same_name, texts).resume(path)
    good = torch.load(path)
    optimizer, name = good["optimizer"], next(iter(good["weights"]))
    number, own = next(iter(optimizer["state"].items()))
    cut = {**own, "exp_avg": own["exp_avg"][:1]}
    for damage in (
        {"step": -1}, {"step": 7}, {"weights": 0}, {"optimizer": {}}, {"facts": 0},
        {"optimizer": {**optimizer, "state": {**optimizer["state"], number: cut}}},
    ):  # fmt: skip
        torch.save({**good, **damage}, path)
        with pytest.raises(InvalidModel, match="checkpoint"):
            trainer.resume(path)
    more = {**good["weights"], "another": torch.zeros(2)}
    for weights, named in (({}, name), ({**more, name: torch.zeros(1)}, name), (more, "another")):
        torch.save({**good, "weights": weights}, path)
        with pytest.raises(InvalidInput, match=rf"^{re.escape(named)}: .* was begun with"):
            trainer.resume(path)
    path.write_bytes(b"damaged")
    with pytest.raises(InvalidModel, match="checkpoint"):
        trainer.resume(path)


def test_texts_of_tasks_are_never_held_out(folder, tmp_path):
    from paradecode_lab.measure.tasks.task import is_held_out
    from paradecode_lab.measure.tasks.tasks import TASKS

    path = tmp_path / "tasks.jsonl"
    write_tasks(path, TASKS, 50, 0)
    prompts = [json.loads(line)["prompt"] for line in path.read_text().splitlines()]
    assert len(prompts) == 50
    assert not any(map(is_held_out, prompts))
    base = open_model(str(folder))
    rows = rows_of(read_texts(path, base, 1, 256)[:5], CPU)
    for tokens, start, end in zip(rows.tokens, rows.start, rows.end, strict=True):
        assert (tokens[start - 1], tokens[end - 1]) == (4, 0)
    assert (rows.answers.sum(1) == rows.end - rows.start).all()


def test_the_command_makes_a_model_that_decodes(folder, tmp_path):
    output = tmp_path / "out"
    said = run("lud", output, "--model", folder, "--steps", 2, *SMALL)
    assert "lud(placeholders=4)" in said
    described = json.loads((output / "model" / "config.json").read_text())
    assert described["attention"] == "causal"
    before, after = (open_model(str(place)) for place in (folder, output / "model"))
    assert after.config.mask_token == described["mask_token_id"]
    assert not np.array_equal(*(one.weights["embed"].float32() for one in (before, after)))
    with LLM(output / "model", threads=1) as llm:
        assert llm.families[0] == "autoregressive"
        assert llm.complete("copy: Ana", decoder="lud(threshold=0)", max_tokens=5)
    with pytest.raises(InvalidInput, match="steps"):
        run("lud", output, "--model", folder, "--steps", 3, *SMALL)


def test_what_cannot_be_retrained_is_refused(folder, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text("[]\n")
    for arguments, field in (
        (("--model", folder, "--texts", bad), "--texts"),
        (("--model", "paradecode/tiny-diffusion"), "causal"),
    ):
        with pytest.raises((InvalidInput, InvalidModel), match=field):
            run("lud", tmp_path / "out", *arguments, "--steps", 1, *SMALL)
    with pytest.raises(InvalidInput, match="new folder"):
        run("lud", folder.parent, "--model", folder.parent / "model", "--steps", 1, *SMALL)
    assert not (folder.parent / CHECKPOINT).exists()
    base = open_model(str(folder))
    shallow = replace(base, config=base.config.altered(layers=1))
    with pytest.raises(InvalidInput, match="one layer"):
        FirstObjective(shallow, 4, 0.0, 0, CPU)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="OUTPUT"):
        run("lud", tmp_path / "file", "--model", folder, "--steps", 1, *SMALL)
