"""Texts of unequal length in one step: padding is not computed, and changes no result."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

# The modules below import PyTorch.
from retraining_models import CPU, random_model
from unmasking_models import model_folder

from paradecode.backends.torch.model import Transformer
from paradecode.models.catalogue import open_model
from paradecode.models.checkpoint import Checkpoint
from paradecode_lab.training.adaptation.texts import BlockText
from paradecode_lab.training.batched import attention_in, final_states, spread
from paradecode_lab.training.retraining.any_subset import AnySubsetObjective
from paradecode_lab.training.retraining.deer import DeerObjective
from paradecode_lab.training.retraining.first import FirstObjective
from paradecode_lab.training.retraining.hamburger import HamburgerObjective
from paradecode_lab.training.retraining.lora_drop import LoraDropObjective
from paradecode_lab.training.retraining.lud import LexicalUnitObjective
from paradecode_lab.training.retraining.nested import NestedObjective
from paradecode_lab.training.retraining.run import Objective
from paradecode_lab.training.retraining.texts import rows_of
from paradecode_lab.training.retraining.wedlm import WedlmObjective

pytestmark = pytest.mark.usefixtures("one_thread")
Make = Callable[[Checkpoint], Objective]
OF_TOKENS: dict[str, Make] = {
    "first": lambda base: FirstObjective(base, 4, 0.0, 0, CPU),
    "lora-drop": lambda base: LoraDropObjective(base, 4, 0.5, 2, 0, CPU),
    "hamburger": lambda base: HamburgerObjective(base, 3, 2, 0.05, 0, CPU),
    "nested": lambda base: NestedObjective(base, (2, 4), 0, CPU),
}
"""Objectives whose loss is a mean over the answers' tokens."""
OF_DRAWS: dict[str, Make] = {
    "lud": lambda base: LexicalUnitObjective(base, 3, 0.05, CPU),
    "wedlm": lambda base: WedlmObjective(base, 4, 3, 1.0, CPU),
    "deer": lambda base: DeerObjective(base, 2, 0.5, 5, 1.3, 1.0, CPU),
    "assd": lambda base: AnySubsetObjective(base, 0.3, 3, CPU),
}
"""Objectives whose loss depends on what a step draws at random."""
LENGTHS = (31, 9, 14, 22, 7)


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> dict[str, Checkpoint]:
    """A causal model, and for ``assd`` a model with masks."""
    place: Path = tmp_path_factory.mktemp("models")
    made = {"assd": open_model(str(model_folder(place / "masks")))}
    causal = open_model(str(random_model(place / "causal", 4)))
    return {**dict.fromkeys((*OF_TOKENS, *OF_DRAWS), causal), **made}


def texts() -> list[BlockText]:
    random = np.random.default_rng(3)
    made = []
    for length in LENGTHS:
        tokens = random.integers(40, 60, length).astype(np.int32)
        made.append(BlockText(tokens, int(random.integers(3, length - 2)), length))
    return made


def begun(make: Make, base: Checkpoint) -> Objective:
    """Return an objective; its tensors of equal numbers, such as new routers, get noise."""
    made, random = make(base), torch.Generator().manual_seed(4)
    for tensor in made.trained.values():
        if (tensor == tensor.flatten()[0]).all():
            tensor += 0.1 * torch.randn(tensor.shape, generator=random)
    return made


def learnt(made: Objective, some: list[BlockText], done: float) -> tuple[float, list[torch.Tensor]]:
    """Return loss and gradients of a step.

    Tensors that the loss does not depend on get the gradient 0.
    """
    tensors = [tensor.requires_grad_() for tensor in made.trained.values()]
    loss = made.loss(rows_of(some, CPU), np.random.default_rng(5), done)
    found = torch.autograd.grad(loss, tensors, allow_unused=True)
    pairs = zip(found, tensors, strict=True)
    return loss.item(), [torch.zeros_like(t) if g is None else g for g, t in pairs]


def alike(got: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    assert any(each.abs().max() > 1e-3 for each in wanted)
    for one, other in zip(got, wanted, strict=True):
        assert torch.allclose(one, other, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("done", [0.0, 0.9])
@pytest.mark.parametrize("name", OF_TOKENS)
def test_a_step_learns_what_its_texts_teach_one_by_one(bases, name, done):
    """A step over several texts must equal the weighted mean of steps over single texts.

    A single text has no padding. Its weight is the number of its answer's tokens.
    """
    made, some = begun(OF_TOKENS[name], bases[name]), texts()
    loss, gradients = learnt(made, some, done)
    counts = np.array([text.end - text.start for text in some])
    alone = [learnt(made, [text], done) for text in some]
    shares = counts / counts.sum()
    assert loss == pytest.approx(sum(s * one[0] for s, one in zip(shares, alone)), rel=1e-4)
    sums = [sum(s * g for s, g in zip(shares, each)) for each in zip(*(one[1] for one in alone))]
    alike(gradients, sums)


@pytest.mark.parametrize("done", [0.0, 0.9])
@pytest.mark.parametrize("name", OF_DRAWS)
def test_a_step_learns_what_it_does_with_padding(bases, monkeypatch, name, done):
    made = begun(OF_DRAWS[name], bases[name])
    loss, gradients = learnt(made, texts(), done)

    def padded(model, tokens, places, seen, inside):
        return final_states(model, tokens, places, seen)

    monkeypatch.setattr(f"{type(made).__module__}.final_states", padded)
    wanted, theirs = learnt(made, texts(), done)
    assert loss == pytest.approx(wanted, rel=1e-5)
    alike(gradients, theirs)


@pytest.mark.parametrize("name", [*OF_TOKENS, *OF_DRAWS])
def test_no_layer_computes_padding(bases, monkeypatch, name):
    """A layer must compute only the columns of texts, fewer than there are with padding."""
    made = (OF_TOKENS | OF_DRAWS)[name](bases[name])
    rows, real = list[int](), Transformer._part

    def counted(self, index, part, x, *about):
        rows.append(len(x))
        return real(self, index, part, x, *about)

    monkeypatch.setattr(Transformer, "_part", counted)
    random = np.random.default_rng(5)
    made.loss(rows_of(texts(), CPU), random, 0.0)
    text, whole = sum(LENGTHS), len(LENGTHS) * max(LENGTHS)
    copies = {"wedlm": 2, "assd": 2, "lud": 1}.get(name, 1)
    # ``lud`` has 8 groups of 3 placeholders in a text; only those that its units reach are
    # computed.
    most = copies * text + (name == "lud") * len(LENGTHS) * 24
    assert max(rows) <= most < copies * whole + (name == "lud") * len(LENGTHS) * 24
    if name in ("first", "lora-drop", "nested", "deer", "wedlm"):
        assert set(rows) == {copies * text}


def test_rows_come_back_to_their_places():
    random = torch.Generator().manual_seed(0)
    inside = torch.rand(3, 7, generator=random) < 0.5
    x = torch.randn(int(inside.sum()), 2, generator=random)
    wide = spread(x, inside)
    assert torch.equal(wide[inside], x)
    assert not wide[~inside].any()
    full = torch.ones_like(inside)
    assert torch.equal(spread(wide[full], full), wide)


def test_columns_outside_are_not_seen():
    """Attention over some columns must equal attention over each text's own columns alone."""
    random = torch.Generator().manual_seed(1)
    inside = torch.tensor([[True, False, True, True], [False, True, False, False]])
    q, k, v = (torch.randn(4, 2, 8, generator=random) for _ in range(3))
    at = torch.arange(4)
    seen = (at <= at[:, None]) & inside[:, None] | torch.eye(4).bool()
    got = attention_in(inside, seen[:, None])(0, q, k, v)
    for part in (slice(0, 3), slice(3, 4)):
        every = range(part.stop - part.start)
        causal = torch.tensor([[j <= i for j in every] for i in every])
        heads = (x[part].transpose(0, 1) for x in (q, k, v))
        wanted = torch.nn.functional.scaled_dot_product_attention(*heads, causal)
        assert torch.allclose(got[part], wanted.transpose(0, 1), atol=1e-6)
