"""Two ranks (gloo, CPU) give the same results as one rank in float64."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from naive import random_weights, tiny_config

torch = pytest.importorskip("torch")
pytest.importorskip("torch.distributed.tensor")
if not torch.distributed.is_available():
    pytest.skip("PyTorch without torch.distributed", allow_module_level=True)

from engines import served
from paradecode.backends.interface import Span
from paradecode.backends.torch.backend import TorchBackend
from paradecode.backends.torch.parallel.leader import ParallelBackend
from paradecode.backends.torch.parallel.messages import config_of, config_values
from paradecode.core.errors import InvalidInput
from paradecode.core.layers import Half
from paradecode.core.sampling import SamplingParams
from paradecode.core.tree import TokenTree
from paradecode.engine.engine import Engine, Limits
from paradecode.models.config import ModelConfig, Rope
from paradecode.models.mixture import Mixture
from paradecode.models.parts import Attention, Feed, Layer
from patience import PATIENCE
from spans import span

BIASED = Attention(4, 2, 8, rope=Rope(dim=8), output_bias=True)
CONFIGS = {
    # 61 tokens: the ranks' parts of the vocabulary differ in size.
    "everything": tiny_config(
        qkv_bias=True, output_bias=True, mlp_bias=True, qk_norm=True, tied_head=True,
        rope=Rope(dim=4, scaling="yarn", factor=4.0, original_context=64, attention_factor=1.1),
    ),
    "experts": tiny_config(
        sliding_window=9, eos_tokens=(3,),
        mixture=Mixture(experts=4, chosen=2, expert_size=16, shared_size=8, bias=True),
        dense=frozenset({0}),
    ),
    # Sums that are late, with shares of biases and of experts, and sums that a norm reads.
    "ladder": replace(tiny_config(), stack=(
        Layer((BIASED, Feed(48, bias=True)), "ladder", factor=0.5),
        Layer((BIASED, Feed(0, mixture=Mixture(4, 2, 16, 8, expert_bias=True))), "ladder"),
        Layer((replace(BIASED, norm="both"), Feed(48, norm="after")), "ladder"),
        Layer((BIASED, Feed(48))), Layer((BIASED, Feed(48)), "ladder"),
    )),
}  # fmt: skip
TREE = TokenTree(np.array([3, 4, 3, 9, 9], np.int32), np.array([-1, -1, 0, 0, 1], np.int32))
TOLERANCE = 1e-11


@dataclass
class Both:
    """The same model on one rank and on two ranks."""

    one: TorchBackend
    two: ParallelBackend
    config: ModelConfig

    def same(self, *spans: Span) -> list[np.ndarray]:
        """Run spans on one rank and on two; logits and hidden states must agree."""
        wanted, got = self.one.forward(spans), self.two.forward(spans)
        for a, b in zip(wanted, got, strict=True):
            np.testing.assert_allclose(b.logits.values, a.logits.values, rtol=0, atol=TOLERANCE)
            assert a.hidden.keys() == b.hidden.keys()
            for layer, values in a.hidden.items():
                np.testing.assert_allclose(b.hidden[layer], values, rtol=1e-6, atol=1e-6)
        return [result.logits.values for result in wanted]

    def text(self, length: int, seed: int = 0) -> np.ndarray:
        random = np.random.default_rng([length, seed])
        return random.integers(0, self.config.vocab_size, length).astype(np.int32)


def open_two(config: ModelConfig, seconds: float = PATIENCE) -> ParallelBackend:
    return ParallelBackend(
        config, random_weights(config), ranks=2, dtype="fp64", threads=1, seconds=seconds
    )


@pytest.fixture(
    scope="module",
    params=[
        "everything",
        *[pytest.param(name, marks=pytest.mark.wide) for name in ("experts", "ladder")],
    ],
)
def both(request: pytest.FixtureRequest) -> Iterator[Both]:
    config = CONFIGS[request.param]
    one = TorchBackend(config, random_weights(config), dtype="fp64", threads=1)
    two = open_two(config)
    try:
        for backend in (one, two):
            backend.reserve(64)
        yield Both(one, two, config)
    finally:
        two.close()


def causal(text: np.ndarray, start: int, end: int, pages: tuple[int, ...] = (5, 2, 9)) -> Span:
    return span(pages, text[start:end], start)


@pytest.mark.wide
def test_paged_spans_trees_and_copies(both: Both) -> None:
    text, other = both.text(24), both.text(7, 1)
    both.same(causal(text, 0, 17), causal(other, 0, 7, (11,)))
    both.same(causal(text, 17, 24))
    slots = np.arange(24, 24 + len(TREE), dtype=np.int32)
    tree = Span(
        pages=np.array([5, 2, 9], np.int32), tokens=TREE.tokens, positions=23 + TREE.depths,
        slots=slots, context=24, logits=np.arange(len(TREE), dtype=np.int32),
        mask=TREE.visibility, hidden=(0, 2),
    )  # fmt: skip
    both.same(tree)
    # The path of node 3 moves after the text, where node 2 was. Page 2 has slots 16 to 31.
    for backend in (both.one, both.two):
        backend.copy(np.array([2 * 16 + 8, 2 * 16 + 11]), np.array([2 * 16 + 8, 2 * 16 + 9]))
    kept = np.append(text, [3, 9, 1]).astype(np.int32)
    logits = both.same(causal(kept, 26, 27))
    fresh = both.same(causal(kept, 0, 27, (20, 21)))
    np.testing.assert_allclose(logits[0][0], fresh[0][26], rtol=0, atol=1e-9)


@pytest.mark.wide
def test_parts_of_the_layers(both: Both) -> None:
    text = both.text(12)
    lower = replace(causal(text, 0, 12), layers=(0,), hidden=(0,))
    both.same(lower)
    state = both.one.forward([lower])[0].hidden[0]
    both.same(replace(causal(text, 0, 12), layers=(1, 2), resume=state))
    both.same(replace(causal(text, 0, 12), layers=(), resume=state))
    both.same(replace(causal(text, 0, 12), layers=(0, Half(1, "mlp"), Half(2, "attention"))))
    both.same(replace(causal(text, 0, 12), tokens=text[:0], embeddings=state))


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("method", "temperature"), [("prompt-lookup", 1.0), ("greedy", 0.0), ("layer-skip", 0.0)]
)
def test_tokens_equal_those_of_one_rank(both: Both, method: str, temperature: float) -> None:
    params = SamplingParams(max_tokens=10, temperature=temperature, seed=5)
    prompts = [np.tile(both.text(5, seed), 4) for seed in range(3)]

    def tokens(backend: TorchBackend) -> list[list[int]]:
        engine = Engine({"target": backend}, Limits(batch=2, kv_tokens=1024, step_tokens=16))
        live = served(engine, [(method, prompt, params) for prompt in prompts])
        return [sequence.tokens[20:].tolist() for sequence in live]

    wanted = tokens(both.one)
    assert all(wanted)
    assert tokens(both.two) == wanted


def test_a_refused_span_leaves_the_ranks_in_step(both: Both) -> None:
    good = causal(both.text(6), 0, 6)
    blind = replace(good, mask=np.zeros((6, 6), bool))  # Both ranks refuse it.
    for bad in (blind, replace(good, context=999), replace(good, layers=(7,))):
        with pytest.raises(InvalidInput):
            both.two.forward([bad])
        both.same(good)


def test_each_rank_has_half(both: Both) -> None:
    config = both.config
    assert both.two.name == "torch-cpu-fp64-2-ranks"
    assert both.two.keys[0].shape == (64 * 16, config.kv_heads // 2, config.head_dim)
    held = {name: tuple(w.to_local().shape if name in ("embed", "head") else w.shape)
            for name, w in both.two.model.w.items()}  # fmt: skip
    whole = config.tensors()
    assert held["layers.0.q"] == (whole["layers.0.q"][0] // 2, config.hidden_size)
    assert held["layers.0.down"] == (config.hidden_size, config.intermediate_size // 2)
    assert held["embed"] == (31, config.hidden_size)
    if config.mixture is not None:
        assert held["layers.1.experts.3.up"] == (8, config.hidden_size)
        assert held["layers.1.router"] == whole["layers.1.router"]


@pytest.mark.wide
def test_one_divided_model_a_process(both: Both) -> None:
    with pytest.raises(InvalidInput, match="close the other"):
        open_two(both.config)


@pytest.mark.wide
def test_a_configuration_travels_whole() -> None:
    for config in CONFIGS.values():
        assert config_of(config_values(config)) == config
