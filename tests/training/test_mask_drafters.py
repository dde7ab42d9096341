"""DEER: a small drafter with masks is trained for a causal target and drafts for it."""

import json
from pathlib import Path

import numpy as np
import pytest
from train_command import run

from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.llm import LLM
from paradecode_lab.measure.tasks.task import is_held_out
from paradecode_lab.measure.tasks.tasks import SETS

torch = pytest.importorskip("torch")

# The modules below import PyTorch.
from retraining_models import CPU, random_model

from paradecode.models.catalogue import open_model
from paradecode_lab.training.adaptation.texts import BlockText, read_texts
from paradecode_lab.training.batched import final_states
from paradecode_lab.training.retraining.answers import write_answers
from paradecode_lab.training.retraining.deer import DeerObjective, continued, refined
from paradecode_lab.training.retraining.run import Retraining, RetrainingPlan
from paradecode_lab.training.retraining.texts import rows_of

pytestmark = pytest.mark.usefixtures("one_thread")
LITTLE = ("--instances", 40, "--batch", 4, "--threads", 1, "--length", 24)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return random_model(tmp_path_factory.mktemp("models") / "model", 3)


@pytest.fixture(scope="module")
def base(folder):
    return open_model(str(folder))


def texts(count: int) -> list[BlockText]:
    """Return random texts of different lengths."""
    random, made = np.random.default_rng(5), []
    for _ in range(count):
        start, answer = random.integers(1, 5), random.integers(1, 9)
        ids = random.integers(5, 500, start + answer).astype(np.int32)
        made.append(BlockText(ids, int(start), len(ids)))
    return made


def test_in_stage_one_a_share_of_all_behind_the_cut_is_masked():
    cut, end = np.arange(1, 4001) % 7 + 1, np.arange(4000) % 11 + 10
    weights = continued(cut, end, 20, np.random.default_rng(0))
    shares, found = [], []
    for row, first, last in zip(weights, cut, end, strict=True):
        assert not row[:first].any()
        assert not row[last:].any()
        if row.any():
            (counts,) = set(row[row > 0])
            shares.append(1 / (counts * (last - first)))
            found.append((row > 0).sum() / (last - first))
    assert 0 < min(shares) <= max(shares) <= 1
    assert weights.sum(1).mean() == pytest.approx(1, abs=0.1)  # The factor 1 / t does this.
    assert np.corrcoef(shares, found)[0, 1] > 0.8


def test_in_stage_two_masks_count_less_the_further_they_are_from_the_text():
    cut, end = np.full(3000, 3), np.full(3000, 12)
    weights = refined(cut, end, 20, 6, 1.5, np.random.default_rng(0))
    counts = (weights > 0).sum(1)
    assert set(counts) == {1, 2, 3, 4, 5, 6}
    assert np.bincount(counts)[1:].min() > 400
    for row, count in zip(weights, counts, strict=True):
        parts = [1.5 ** (count - i) for i in range(1, count + 1)]
        assert row[3 : 3 + count] == pytest.approx(np.array(parts) / sum(parts))
    short = refined(np.array([3]), np.array([5]), 20, 400, 1.5, np.random.default_rng(0))
    assert np.flatnonzero(short).tolist() == [3, 4]


@pytest.mark.parametrize("weight", [0.0, 2.0])
@pytest.mark.parametrize("stage", [1, 2])
def test_the_loss_of_each_stage_is_that_of_single_texts(base, stage, weight):
    """The loss of a batch equals the one of single texts, computed token by token."""
    made, some = DeerObjective(base, 2, 0.4, 5, 1.3, weight, CPU), texts(6)
    got = made.loss(rows_of(some, CPU), np.random.default_rng(7), 0.59 if stage == 1 else 0.61)
    random = np.random.default_rng(7)
    starts, ends = (np.array([getattr(text, name) for text in some]) for name in ("start", "end"))
    cuts, length = random.integers(starts, ends), ends.max()
    drawn = (
        continued(cuts, ends, length, random)
        if stage == 1
        else refined(cuts, ends, length, 5, 1.3, random)
    )
    drafted, plain = [], []
    for text, cut, weights in zip(some, cuts, drawn, strict=True):
        masked = np.flatnonzero(weights)
        ids = torch.from_numpy(text.tokens.astype(np.int64))
        seen = ids.clone()
        seen[masked] = made.mask
        at = torch.arange(len(ids))
        states = final_states(made.model, seen[None], at, at <= at[:, None])[0]
        said = made.model.logits(states).log_softmax(-1)
        losses = [-said[p - 1, ids[p]].item() for p in masked]
        behind = text.end - cut
        if stage == 1:
            share = 1 / (behind * weights[masked[0]]) if len(masked) else 1.0
            drafted.append(sum(losses) / (share * behind))
        else:
            parts = [1.3 ** (len(masked) - i) for i in range(1, len(masked) + 1)]
            drafted.append(np.average(losses, weights=parts))
        plain += [-said[p - 1, ids[p]].item() for p in range(text.start, cut)]
    wanted = (np.mean(drafted) + weight * np.mean(plain)) / (1 + weight)
    assert float(got) == pytest.approx(wanted, rel=1e-4)
    assert len({*cuts - starts}) > 2


def test_the_stages_follow_one_another(base, monkeypatch):
    place, seen = "paradecode_lab.training.retraining.deer.", list[int]()

    def noted(stage, real):
        return lambda *given: seen.append(stage) or real(*given)

    monkeypatch.setattr(f"{place}continued", noted(1, continued))
    monkeypatch.setattr(f"{place}refined", noted(2, refined))
    for share, wanted in ((0.0, [1] * 8), (0.5, [1] * 4 + [2] * 4), (1.0, [2] * 8)):
        seen.clear()
        made = DeerObjective(base, 1, share, 4, 1.01, 1.0, CPU)
        trainer = Retraining(RetrainingPlan(steps=8, batch=2), made, texts(4))
        for _ in range(8):
            trainer.advance()
        assert seen == wanted


def test_the_drafter_begins_as_the_first_layers_of_its_target(base, tmp_path):
    made = DeerObjective(base, 2, 0.5, 4, 1.01, 1.0, CPU)
    made.export(tmp_path)
    cut = open_model(str(tmp_path / "model"))
    config = base.config.altered(name=cut.config.name, layers=2, shift=True, mask_token=made.mask)
    assert cut.config == config
    for name, tensor in cut.weights.items():
        assert np.array_equal(tensor.float32(), base.weights[name].float32())
    with LLM(tmp_path / "model", threads=1) as llm:
        assert llm.families == ("autoregressive", "diffusion")


@pytest.mark.wide
def test_it_learns_what_its_target_says(folder, base, tmp_path):
    """Trained on the target's own answers, the drafter saves forwards and changes no output."""
    file = tmp_path / "answers.jsonl"
    with LLM(folder, threads=1) as llm:
        write_answers(file, llm, SETS["simple"], 12, 40, 0, lambda *_: None)
    known = read_texts(file, base, 1, 40)
    made = DeerObjective(base, 2, 0.5, 8, 1.01, 1.0, CPU)
    made.export(tmp_path / "cut")
    plan = RetrainingPlan(steps=150, batch=12, rate=5e-3)
    Retraining(plan, made, known).run(tmp_path / "run", lambda: False, lambda *_: None)
    forwards = []
    for draft in ("cut", "run"):
        with LLM(folder, draft_model=tmp_path / draft / "model", threads=1) as llm:
            spec = "deer(width=1,budget=fixed,num_speculative_tokens=8)"
            prompts = [text.tokens[: text.start].tolist() for text in known]
            for params in ({"temperature": 0}, {"temperature": 0.7, "seed": 3}):
                plain = llm.complete(prompts, decoder="greedy", max_tokens=20, **params)
                out = llm.complete(prompts, decoder=spec, max_tokens=20, **params)
                assert [one.token_ids for one in out] == [one.token_ids for one in plain]
                forwards.append(sum(one.stats.forwards for one in out))
    assert forwards[2] < 0.5 * forwards[0]  # Trained texts were greedy.


def test_texts_are_the_plain_answers_to_prompts_that_are_not_held_out(folder, tmp_path):
    told = []
    with LLM(folder, threads=1) as llm:
        for name in ("whole", "part"):
            file = tmp_path / name
            if name == "part":  # A run that was stopped within its second batch.
                lines = (tmp_path / "whole").read_text().splitlines(keepends=True)
                file.write_text("".join(lines[:35]) + lines[35][:9])
            write_answers(file, llm, SETS["graded"], 40, 9, 1, lambda *done: told.append(done))
        assert (tmp_path / "whole").read_bytes() == (tmp_path / "part").read_bytes()
        assert told == [(32, 40), (40, 40), (40, 40)]
        lines = (tmp_path / "whole").read_text().splitlines()
        prompts = list[str]()
        for entry in map(json.loads, lines):
            decoded = llm.tokenizer.decode(entry["prompt"])
            prompts.append(decoded.removeprefix("<|user|>").removesuffix("<|assistant|>"))
            asked = [{"role": "user", "content": prompts[-1]}]
            assert llm.chat_tokens(asked) == entry["prompt"]
        again = llm.complete(
            [json.loads(line)["prompt"] for line in lines], decoder="greedy",
            temperature=0, max_tokens=9,
        )  # fmt: skip
        assert [one.token_ids for one in again] == [json.loads(line)["answer"] for line in lines]
    assert not any(map(is_held_out, prompts))
    names = {prompt.split()[0].rstrip(":") for prompt in prompts}
    assert names == {task.name for task in SETS["graded"]}


def test_the_command_makes_a_draft_model(folder, tmp_path):
    output = tmp_path / "out"
    given = ("--model", folder, "--layers", 1, *LITTLE)
    said = run("deer", output, "--steps", 2, *given)
    assert "--decoder deer" in said
    with LLM(folder, draft_model=output / "model", threads=1) as llm:
        out = llm.complete("copy: Ana", decoder="deer(budget=fixed)", max_tokens=9, temperature=0)
        plain = llm.complete("copy: Ana", decoder="greedy", max_tokens=9, temperature=0)
        assert out.token_ids == plain.token_ids
        assert out.stats.drafted > 0
    (file,) = output.glob("answers-*.jsonl")
    before = file.read_bytes()
    with pytest.raises(InvalidInput, match="reach"):
        run("deer", output, "--steps", 2, "--reach", 3, *given)
    run("deer", tmp_path / "from-file", "--steps", 1, "--texts", file, *given)
    assert not [*(tmp_path / "from-file").glob("answers-*")]
    assert file.read_bytes() == before


@pytest.mark.parametrize(("field", "given"), [
    ("--layers", ("--layers", 4)), ("tasks.*simple, graded", ("--tasks", "hard")),
    ("causal", ("--model", "paradecode/tiny-diffusion")),
])  # fmt: skip
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    folder, tmp_path, field, given
):
    with pytest.raises((InvalidInput, InvalidModel), match=field):
        run("deer", tmp_path / "out", "--model", folder, "--steps", 1, *LITTLE, *given)
    assert not (tmp_path / "out").exists()
