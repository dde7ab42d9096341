"""Jacobi Forcing: which states are recorded, what noisy tokens see, and what is learned."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from train_command import run

from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM

torch = pytest.importorskip("torch")

# These need PyTorch themselves.
from unmasking_models import model_folder, quiet, whole

from paradecode.models.tiny import tiny_checkpoint
from paradecode_lab.training.batched import BatchedModel, final_states
from paradecode_lab.training.jacobi.forcing import (
    JacobiSettings,
    columns_seen,
    differs,
    first_of_window,
    fit_jacobi,
    forced,
    pairs,
)
from paradecode_lab.training.jacobi.states import JacobiStates, noise, noisy_answer, record_states
from paradecode_lab.training.samples import Origin
from paradecode_lab.training.unmasking.workload import CanvasWorkload

CPU = torch.device("cpu")
SMALL = CanvasWorkload(limit=8, max_tokens=18)
LOOP = np.array([3, 9, 4, 7, 12, 5, 8, 20])


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A random causal model with the tiny models' tokenizer."""
    folder = model_folder(tmp_path_factory.mktemp("models") / "model")
    config = json.loads((folder / "config.json").read_text())
    del config["attention"], config["mask_token_id"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def looping(count: int = 60, block: int = 4, copies: int = 3, seed: int = 0) -> JacobiStates:
    """Return texts that follow a loop of tokens, with random noise in their copies.

    A text has a prompt of 3 tokens and an answer of 12.
    """
    random = np.random.default_rng(seed)
    tokens = LOOP[(random.integers(0, 8, (count, 1)) + np.arange(15)) % 8].astype(np.float32)
    noisy = np.repeat(tokens[:, None], copies, 1)
    wrong = random.random(noisy.shape) < 0.6
    wrong[:, :, :3] = False
    noisy[wrong] = random.integers(0, 90, int(wrong.sum()))
    start, end = np.full(count, 3, np.float32), np.full(count, 15, np.float32)
    return JacobiStates(block, tokens, noisy, start, end)


def test_states_are_those_of_the_iteration(folder):
    """The model's own prediction from a state must be right at the state's first wrong token."""
    from paradecode.models.catalogue import open_model

    checkpoint = open_model(str(folder))
    model = BatchedModel(checkpoint.config, checkpoint.weights, CPU)
    with LLM(folder, backend="torch", dtype="fp32", threads=1) as llm:
        made = record_states(llm, SMALL, 5, 3, quiet)
        prompts = SMALL.asked(llm)
        plain = llm.complete(prompts, max_tokens=18, temperature=0, decoder="greedy")
    for row, (prompt, output) in enumerate(zip(prompts, plain, strict=True)):
        start, end = int(made.start[row]), int(made.end[row])
        text = made.tokens[row, :end].astype(int).tolist()
        assert start == len(prompt)
        assert text == [*prompt, *output.token_ids]
        for copy in range(3):
            seen = made.noisy[row, copy, :end].astype(int).tolist()
            assert seen[:start] == prompt
            for number, first in enumerate(range(start, end, 5)):
                last = min(first + 5, end)
                if (number + copy) % 3 == 0:
                    assert seen[first:last] == text[first:last]
                wrong = [at for at in range(first, last) if seen[at] != text[at]]
                if wrong:  # What the state says of itself is nearer to the text.
                    tokens = torch.tensor([[*text[:first], *seen[first:last]]])
                    with torch.no_grad():
                        states = model.states(tokens, torch.ones_like(tokens, dtype=torch.bool))
                        said = model.logits(states)[0].argmax(-1).tolist()
                    assert said[wrong[0] - 1] == text[wrong[0]]


def test_noise_grows_over_a_window():
    right = list(range(10, 22))
    states = [
        [[0] * 4, [10, 0, 0, 0], [10, 11, 12, 0]], [[0] * 4, [14, 15, 0, 0], [14, 15, 16, 0]],
        [[0, 19, 20, 21], [18, 19, 0, 0]],
    ]  # fmt: skip
    assert [noise(state, right[:4]) for state in states[0]] == [1.0, 0.75, 0.25]
    assert noisy_answer(right, states, 4, 3, 0) == [10, 11, 12, 13, 14, 15, 0, 0, 0, 19, 20, 21]
    assert noisy_answer(right, states, 4, 3, 1)[:8] == [10, 0, 0, 0, 0, 0, 0, 0]
    assert noisy_answer(right[:5], states[:1], 4, 3, 2) == [0, 0, 0, 0, 14]


def test_a_noisy_token_sees_the_text_before_its_window_and_the_noise_in_it():
    """Each noisy row must give what a plain forward gives after the same mix of text and noise."""
    made, copy = looping(6), 1
    model = BatchedModel(*tiny_checkpoint("llama"), CPU)
    rows = np.arange(6)
    with torch.no_grad():
        found = pairs(model, made, rows, copy)
        first = first_of_window(np.full((6, 1), 3), 4, 12, 15)
        # Copy 1 begins with the second block of a window, so two blocks of this window are left.
        assert first[0].tolist()[3:] == [3] * 8 + [11] * 4
        tokens, noisy = made.tokens.astype(np.int64), made.noisy[:, copy].astype(np.int64)
        wrong = differs(tokens, noisy, first)
        number = 0
        for row in rows:
            for at in range(2, 14):
                if not wrong[row, at]:
                    assert (tokens[row, first[row, at] : at + 1] == noisy[row, first[row, at] : at + 1]).all()  # noqa: E501  # fmt: skip
                    continue
                own = first[row, at]
                mixed = torch.from_numpy(
                    np.concatenate([tokens[row, :own], noisy[row, own : at + 1]])
                )[None]
                places = torch.arange(at + 1)
                states = final_states(model, mixed, places, places[None] <= places[:, None])
                wanted = model.logits(states[0, -1])
                assert torch.allclose(found.noisy[number], wanted, atol=2e-4)
                assert int(found.right[found.behind[number]]) == tokens[row, at + 1]
                number += 1
        assert number == len(found.noisy) > 20


def test_columns_of_the_text_never_see_noise():
    seen = columns_seen(first_of_window(np.array([[2], [4]]), 0, 6, 9), np.array([[2], [4]]))
    assert not seen[:, :9, 9:].any()
    assert seen.any(-1).all()
    assert (seen[:, :9, :9] == np.tril(np.ones((9, 9), bool))).all()


def test_what_is_said_behind_noise_is_learnt_and_the_text_is_kept():
    made, settings = looping(200), JacobiSettings(steps=60, batch=8, rate=2e-3)
    model, untold = (BatchedModel(*tiny_checkpoint("llama"), CPU) for _ in range(2))
    report = fit_jacobi(model, made, settings, whole)
    assert report.before.behind_noise < 0.1 < 0.25 < report.after.behind_noise
    assert report.after.behind_text > 0.95
    # Without noise, the same training learns the texts as well, but predicts worse after noise.
    clean = replace(made, noisy=np.repeat(made.tokens[:, None], 3, 1))
    assert fit_jacobi(untold, clean, settings, whole).after.behind_text > 0.95
    control = fit_jacobi(untold, made, replace(settings, steps=1), lambda training: None)
    assert control.before.behind_noise < 0.8 * report.after.behind_noise


def test_the_teacher_gets_no_gradient_from_noise():
    """Without the next-token loss, the rows of the text must add no gradient."""
    made = looping(4)
    clean = replace(made, noisy=np.repeat(made.tokens[:, None], 3, 1))
    model = BatchedModel(*tiny_checkpoint("llama"), CPU)
    for weight in model.parameters.values():
        weight.requires_grad_()
    assert float(forced(model, clean, np.arange(4), 0, 0.0).detach()) == 0
    loss = forced(model, made, np.arange(4), 0, 0.0)
    found = pairs(model, made, np.arange(4), 0)
    wanted = found.plain.detach().softmax(-1)[found.behind]
    own = -(wanted * found.noisy.log_softmax(-1)).sum(-1).mean()
    assert torch.allclose(loss, own)
    gradients = [
        torch.autograd.grad(each, model.parameters["layers.0.q"])[0] for each in (loss, own)
    ]
    assert torch.allclose(*gradients, atol=1e-6)


@pytest.mark.wide
def test_from_prompts_to_a_model_whose_jacobi_decoding_is_its_plain_decoding(folder, tmp_path):
    output = tmp_path / "out"
    arguments = [
        "--model", folder, "--backend", "native", "--threads", 1, "--limit", 16, "--max-tokens", 20,
        "--block", 6, "--steps", 4, "--rate", 0.003, "--json",
    ]  # fmt: skip
    first = run("jacobi", output, *arguments)
    report = json.loads(first[first.index("{") :])
    assert report["file"] == str(output / "model")
    again = run("jacobi", output, *arguments)  # It is done: the figures are the same.
    assert json.loads(again[again.index("{") :]) == report
    with pytest.raises(InvalidInput, match="new folder"):
        run("jacobi", output, *arguments, "--weight", 2)
    specs = [
        f"jacobi(num_speculative_tokens={count},explore=always,recycle={recycle})"
        for count, recycle in ((12, 0), (12, 4), (31, 16))
    ]
    with LLM(output / "model", backend="native", threads=1) as llm:
        prompts = SMALL.asked(llm)
        for sampling in ({"temperature": 0}, {"temperature": 0.8, "seed": 3}):
            plain = llm.complete(prompts, max_tokens=24, decoder="greedy", **sampling)
            for spec in specs:
                made = llm.complete(prompts, max_tokens=24, decoder=spec, **sampling)
                assert [each.token_ids for each in made] == [each.token_ids for each in plain]


def test_a_diffusion_model_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="autoregressive"):
        run("jacobi", tmp_path / "out", "--model", "paradecode/tiny-diffusion", "--limit", 2)


def test_a_damaged_file_is_refused(tmp_path):
    made, path = looping(4), tmp_path / "states"
    own = Origin("workload", "weights")
    made.save(path, own)
    again = JacobiStates.load(path, own, vocab_size=96)
    assert np.array_equal(again.noisy, made.noisy)
    for broken in (
        replace(made, noisy=made.noisy + 90), replace(made, end=made.end + 1),
        replace(made, start=made.end), replace(made, block=0), replace(made, block=10**30),
        replace(made, tokens=made.tokens + 0.5),
    ):  # fmt: skip
        broken.save(path, own)
        with pytest.raises(InvalidInput, match="damaged"):
            JacobiStates.load(path, own, vocab_size=96)
