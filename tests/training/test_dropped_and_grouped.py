"""Layers that tokens skip, and tokens in groups: training must agree with decoding."""

from pathlib import Path

import numpy as np
import pytest
from train_command import run

from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM

torch = pytest.importorskip("torch")

# The modules below import PyTorch.
from retraining_models import CPU, SMALL, counting, random_model

from paradecode.models.catalogue import open_model
from paradecode_lab.training.adaptation.texts import BlockText
from paradecode_lab.training.retraining.first import ROUTERS
from paradecode_lab.training.retraining.hamburger import PARTS, HamburgerObjective, lengths
from paradecode_lab.training.retraining.lora_drop import ADAPTERS, LoraDropObjective, inner_layers
from paradecode_lab.training.retraining.run import Retraining, RetrainingPlan
from paradecode_lab.training.retraining.texts import rows_of

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return random_model(tmp_path_factory.mktemp("models") / "model", 2)


@pytest.fixture(scope="module")
def deep(tmp_path_factory) -> Path:
    """A random model like ``folder``'s, but with four layers."""
    return random_model(tmp_path_factory.mktemp("models") / "deep", 4)


def test_holes_of_training_are_those_of_decoding(deep, tmp_path):
    """Training with dropped layers must give the engine's log-probabilities of its tokens."""
    made, texts = LoraDropObjective(open_model(str(deep)), 4, 0.5, 2, 0, CPU), counting(6)
    assert made.sizes["dropped"] == [2]
    with torch.no_grad():
        made.trained["2.b"].normal_(0, 0.3, generator=torch.Generator().manual_seed(0))
    made.export(tmp_path)
    spec = f"lora-drop(adapters='{tmp_path / ADAPTERS}',window=2)"
    with LLM(deep, backend="torch", dtype="fp64", threads=1) as llm:
        prompts = [text.tokens[:3].tolist() for text in texts]
        outs = llm.complete(prompts, decoder=spec, max_tokens=9, logprobs=0)
    for prompt, out in zip(prompts, outs, strict=True):
        tokens = np.array(prompt + out.token_ids, np.int32)
        logits, right = made.answers(rows_of([BlockText(tokens, 3, len(tokens))], CPU))
        wanted = logits.log_softmax(-1).gather(-1, right[:, None])[:, 0].detach().numpy()
        assert np.allclose([one.logprob for one in out.logprobs], wanted, atol=2e-3)


def test_a_lora_learns_to_stand_for_a_layer(deep, tmp_path):
    """A LoRA must learn to give the output of a dropped layer, here the last one but one."""
    base, texts = open_model(str(deep)), counting()
    made = LoraDropObjective(base, 8, 0.25, 3, 0, CPU)
    rows = rows_of(texts, CPU)
    before = made.loss(rows, np.random.default_rng(0), 0.0).item()
    frozen = {name: tensor.clone() for name, tensor in made.model.w.items()}
    plan = RetrainingPlan(steps=60, batch=8, rate=2e-2)
    Retraining(plan, made, texts).run(tmp_path, lambda: False, lambda *_: None)
    assert made.loss(rows, np.random.default_rng(0), 1.0).item() < before - 1.0
    assert all(torch.equal(made.model.w[name], tensor) for name, tensor in frozen.items())


@pytest.mark.parametrize(("layers", "share", "dropped"), [
    (3, 0.5, [1]), (4, 0.0, [2]), (6, 0.5, [3, 4]), (6, 1.0, [3, 4]), (12, 0.25, [8, 9, 10]),
])  # fmt: skip
def test_inner_layers_are_dropped(folder, layers, share, dropped):
    config = open_model(str(folder)).config.altered(layers=layers)
    assert inner_layers(config, share) == dropped


def test_a_model_without_an_inner_layer_is_refused(folder):
    with pytest.raises(InvalidInput, match="inner layer"):
        LoraDropObjective(open_model(str(folder)), 4, 0.5, 3, 0, CPU)


def test_groups_follow_the_entropies():
    assert lengths([], 4) == []
    assert lengths([0.01] * 9, 4) == [4, 4, 1]
    assert lengths([0.01, 0.01, 0.004, 0.02, 0.004], 4, 0.005) == [1, 2, 2]
    assert lengths([1.0, 0.29, 0.29, 0.31, 0.04, 0.1], 4) == [3, 2, 1]
    assert lengths([0.01, 0.04, 2.0, 0.5, 0.59, 0.7], 3) == [2, 3, 1]


def test_groups_of_training_are_those_of_decoding(folder, tmp_path):
    """Training with full groups must give the engine's log-probabilities of its tokens."""
    made, texts = HamburgerObjective(open_model(str(folder)), 3, 2, 0.05, 0, CPU), counting(5)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for name, tensor in made.parts.items():
            if not name.endswith("norm"):
                tensor.normal_(0, tensor.shape[0] ** -0.5, generator=generator)
    made.export(tmp_path)
    spec = f"hamburger(parts='{tmp_path / PARTS}',confidence=0)"
    with LLM(tmp_path / "model", backend="torch", dtype="fp64", threads=1) as llm:
        prompts = [text.tokens[:3].tolist() for text in texts]
        outs = llm.complete(
            prompts, decoder=spec, max_tokens=8, logprobs=0, temperature=1.0, ignore_eos=True
        )
    for prompt, out in zip(prompts, outs, strict=True):
        assert out.stats.forwards == 2 + 2
        tokens = np.array(prompt + out.token_ids, np.int32)
        rows = rows_of([BlockText(tokens, 3, len(tokens))], CPU)
        groups = torch.tensor([[0, 3, 6], [0, 6, 9], [0, 9, 11]])
        logits, right, _, last = made.answers(rows, groups)
        wanted = logits.log_softmax(-1).gather(-1, right[:, None])[:, 0].detach().numpy()
        assert last.tolist() == [0, 0, 1, 0, 0, 1, 0, 1]
        assert np.allclose([one.logprob for one in out.logprobs], wanted, atol=5e-3)


@pytest.mark.wide
def test_it_learns_to_write_groups(folder, tmp_path):
    """A model whose groups all have the full length learns to count, three tokens a row."""
    made, texts = HamburgerObjective(open_model(str(folder)), 3, 1, 100.0, 0, CPU), counting()
    plan = RetrainingPlan(steps=150, batch=8, rate=5e-3)
    Retraining(plan, made, texts).run(tmp_path, lambda: False, lambda *_: None)
    with LLM(tmp_path / "model", threads=1) as llm:
        prompts = [text.tokens[:3].tolist() for text in texts[:20]]
        spec = f"hamburger(parts='{tmp_path / PARTS}',confidence=0.5)"
        outs = llm.complete(prompts, decoder=spec, max_tokens=9)
    right = [one.token_ids == text.tokens[3:].tolist() for one, text in zip(outs, texts)]
    assert sum(right) >= 18
    # One forward for the prompt, and three for seven tokens.
    assert np.mean([one.stats.forwards for one in outs]) <= 4.5


@pytest.mark.first(1)
@pytest.mark.parametrize(("name", "own", "changed", "spec"), [
    ("lora-drop", ("--window", 1), "window", f"lora-drop(adapters='{{}}/{ADAPTERS}',window=1)"),
    ("hamburger", ("--blocks", 1), "blocks", f"hamburger(parts='{{}}/{PARTS}',confidence=0)"),
    ("first", (), "price", f"first(routers='{{}}/{ROUTERS}')"),
    ("wedlm", (), "block", "wedlm(entropy=2)"),
])  # fmt: skip
def test_a_command_makes_what_decodes(name, own, changed, spec, deep, tmp_path):
    made = tmp_path / "out"
    assert name in run(name, made, "--model", deep, "--steps", 2, *own, *SMALL)
    with LLM(made / "model" if (made / "model").exists() else deep, threads=1) as llm:
        out = llm.complete("copy: Ana", decoder=spec.format(made), max_tokens=5, ignore_eos=True)
        assert len(out.token_ids) == 5
    with pytest.raises(InvalidInput, match=changed):
        run(name, made, "--model", deep, "--steps", 2, f"--{changed}", 16, *SMALL)
