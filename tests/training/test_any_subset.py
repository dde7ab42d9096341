"""ASSD's training: a masked diffusion model learns the densities that `assd` decodes with."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from train_command import run

from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM
from paradecode.methods.canvas.loop import Unmask
from paradecode.methods.canvas.placed import read_placed

torch = pytest.importorskip("torch")

# The modules below import PyTorch.
from retraining_models import CPU, SMALL, random_model
from unmasking_models import model_folder

from paradecode.backends.torch.model import Transformer
from paradecode.models.catalogue import open_model
from paradecode_lab.training.adaptation.texts import BlockText
from paradecode_lab.training.batched import final_states
from paradecode_lab.training.retraining.any_subset import AnySubsetObjective, drawn
from paradecode_lab.training.retraining.run import Retraining, RetrainingPlan
from paradecode_lab.training.retraining.texts import rows_of

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS: dict[str, dict[str, Any]] = {
    "full": {"attention": "full"}, "block": {"attention": "block", "block_length": 4},
    "causal": {"attention": "causal"},
}  # fmt: skip
KINDS |= {f"{kind}-shift": {**facts, "shift": True} for kind, facts in KINDS.items()}
PROMPT = [3, 30, 31, 32, 4]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Random models that differ only in their attention."""
    place = tmp_path_factory.mktemp("models")
    made = model_folder(place / "model")
    described = json.loads((made / "config.json").read_text())
    found = {}
    for kind, facts in KINDS.items():
        found[kind] = shutil.copytree(made, place / kind)
        (found[kind] / "config.json").write_text(json.dumps({**described, **facts}))
    return found


def objective(folder: Path, placed: float = 0.15, drafts: int = 5) -> AnySubsetObjective:
    return AnySubsetObjective(open_model(str(folder)), placed, drafts, CPU)


@pytest.mark.parametrize("placed", ["", "0:50 51, 3:52, 9:53"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_say_what_the_decoder_reads(folders, monkeypatch, kind, placed):
    """Training must predict what the decoder reads, for every row of drafts and verifications."""
    seen, read, warp = [], Unmask.read, SamplingParams(temperature=1.0).warp

    def noted(self, window, refresh, positions, logits, canvas=None):
        seen.append((positions.copy(), np.log(logits.probabilities(warp))))
        return read(self, window, refresh, positions, logits, canvas)

    monkeypatch.setattr(Unmask, "read", noted)
    with LLM(folders[kind], backend="torch", dtype="fp64", threads=1) as llm:
        params = {"max_tokens": 12, "ignore_eos": True, "temperature": 1.0, "seed": 1}
        (out,) = llm.complete([PROMPT], decoder=f"assd(tokens=4,placed='{placed}')", **params)
    made, start = objective(folders[kind]), len(PROMPT)
    tokens = np.array(PROMPT + out.token_ids, np.int32)
    rows = rows_of([BlockText(tokens, start, len(tokens))], CPU)
    known = np.arange(len(tokens))[None] < start
    for first, some in read_placed(placed):
        known[0, start + first : start + first + len(some)] = True
        assert out.token_ids[first : first + len(some)] == some
    drafts = 0
    for positions, wanted in seen:
        positions = positions[positions < len(tokens)]  # Whole blocks may be longer.
        limit = np.arange(len(tokens))[None]
        limit[0, positions] = positions[0]
        drafts += len(positions) > 1
        states, right = made.chain(rows, known, limit)
        found = Transformer.logits(made.model, states).log_softmax(-1).detach().numpy()
        chain = np.flatnonzero(~known[0])
        assert np.array_equal(right, tokens[chain])
        at = np.searchsorted(chain, positions)
        assert np.allclose(found[at], wanted[: len(at)], atol=2e-3)
    assert drafts >= 2
    assert len(seen) > drafts


def one_row(made: AnySubsetObjective, tokens: np.ndarray, known: np.ndarray, at: int, limit: int):
    """Return the logits [V] of a token from a forward of its own.

    Its rows are the given tokens, the tokens before the limit, and the row that predicts the token.
    """
    model, shift = made.model, int(made.model.config.shift)
    given = np.flatnonzero(known)
    left = np.array([k for k in range(limit) if not known[k]], int)
    places = [*given, *left, at - shift]
    shown = shift == 1 and (known[at - 1] or at - 1 < limit)
    text = [*tokens[given], *tokens[left], tokens[at - 1] if shown else made.mask]
    seen = np.eye(len(places), dtype=bool)
    for i, row in enumerate(given):
        for j, other in enumerate(given):
            block = {"full": 99, "causal": 1}.get(model.config.attention, 4)
            seen[i, j] = other // block <= row // block
    for i in range(len(given), len(places)):
        seen[i, : len(given)] = True
        seen[i, len(given) : i + 1] = True
    if shown and (not known[at - 1] or not len(left)):
        seen[-1, places.index(at - 1)] = False
    columns, where = torch.tensor([text]), torch.tensor(places)
    states = final_states(model, columns, where, torch.from_numpy(seen))
    return model.logits(states[0, -1:])[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_mean_of_single_forwards(folders, monkeypatch, kind):
    made, random = objective(folders[kind], 0.6, 3), np.random.default_rng(5)
    texts = [
        BlockText(random.integers(5, 500, length).astype(np.int32), start, end)
        for length, start, end in ((14, 3, 14), (9, 4, 8), (11, 1, 11))
    ]
    rows = rows_of(texts, CPU)
    known, limit = drawn(rows.answers.numpy(), 0.6, 3, random)
    name = "paradecode_lab.training.retraining.any_subset.drawn"
    monkeypatch.setattr(name, lambda *_: (known, limit))
    losses, behind, double = [], 0, 0
    for row, text in enumerate(texts):
        for at in range(text.start, text.end):
            if not known[row, at]:
                said = one_row(made, rows.tokens[row].numpy(), known[row], at, limit[row, at])
                losses.append(-said.log_softmax(-1)[text.tokens[at]].item())
                behind += limit[row, at] < at
                double += known[row, at - 1] and at > text.start
    assert behind > 2
    assert double > 1
    found = made.loss(rows, random, 0.0).item()
    assert found == pytest.approx(np.mean(losses), rel=1e-4)


def test_some_tokens_are_given_and_some_are_drafted():
    answers = np.zeros((300, 40), bool)
    answers[:, 9:36] = True
    for placed, drafts in ((0.0, 1), (0.15, 5), (1.0, 2)):
        known, limit = drawn(answers, placed, drafts, np.random.default_rng(0))
        assert known[:, :9].all()
        assert not known[:, 36:].any()
        counts, ahead = known[:, 9:36].sum(1), []
        assert set(counts) == set(range(max(int(np.ceil(27 * placed)), 1)))
        for row, own in zip(known, limit, strict=True):
            chain = [at for at in range(9, 36) if not row[at]]
            ahead += [turn - chain.index(own[at]) for turn, at in enumerate(chain)]
            assert own[chain[0]] == chain[0]
        assert set(ahead) == set(range(drafts))
        if drafts == 5:
            assert 0.5 < np.mean(np.array(ahead) == 0) < 0.65


@pytest.mark.wide
def test_a_model_learns_to_write_what_is_given(folders, tmp_path):
    """After training, the model writes the answer that the token placed at the end determines.

    Each answer repeats one token five times, and the prompt does not tell which one.
    """
    texts = [BlockText(np.array([3, 4, *[40 + n] * 5, 0], np.int32), 2, 8) for n in range(20)]
    plan, made = RetrainingPlan(steps=150, batch=8, rate=5e-3), objective(folders["full"], 1.0, 3)
    Retraining(plan, made, texts).run(tmp_path, lambda: False, lambda *_: None)
    right = forwards = 0
    with LLM(tmp_path / "model", threads=1) as llm:
        for token in range(40, 60):
            spec = f"assd(tokens=3,placed='4:{token}')"
            (out,) = llm.complete([[3, 4]], decoder=spec, max_tokens=6)
            right += out.token_ids == [token] * 5 + [0]
            forwards += out.stats.forwards
    assert right >= 16  # Without the placed token it would be 1.
    assert forwards < 90  # 5 tokens in each of 20 texts.


def test_the_command_makes_a_model_of_the_same_kind(folders, tmp_path):
    output, folder = tmp_path / "out", folders["block-shift"]
    said = run("assd", output, "--model", folder, "--steps", 2, "--drafts", 3, *SMALL)
    assert "assd(tokens=3)" in said
    before, after = (open_model(str(place)) for place in (folder, output / "model"))
    assert (after.config.attention, after.config.shift) == ("block", True)
    assert not np.array_equal(*(one.weights["embed"].float32() for one in (before, after)))
    prompts = (output / "graded-0-40.jsonl").read_text().splitlines()
    assert any(json.loads(line)["prompt"].startswith("chain") for line in prompts)
    with LLM(output / "model", threads=1) as llm:
        assert llm.complete("copy: Ana", decoder="assd(tokens=3)", max_tokens=5).token_ids
    with pytest.raises(InvalidInput, match="drafts"):
        run("assd", output, "--model", folder, "--steps", 2, "--drafts", 2, *SMALL)


def test_what_cannot_be_trained_is_refused(folders, tmp_path):
    causal = random_model(tmp_path / "causal", 1)
    for arguments, field in (
        (("--model", causal), "--model.*diffusion"),
        (("--model", "smollm2"), "--model"),
        (("--model", folders["full"], "--tasks", "hard"), "tasks.*simple, graded"),
    ):
        with pytest.raises(InvalidInput, match=field):
            run("assd", tmp_path / "out", *arguments, "--steps", 1, *SMALL)
    assert not (tmp_path / "out").exists()
