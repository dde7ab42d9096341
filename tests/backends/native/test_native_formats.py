"""GGUF formats: weights are exact to the last bit, and a row does not depend on other rows."""

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, quants
from naive import Naive, random_weights
from native_models import BASE

from paradecode.backends.native import _core
from paradecode.backends.native.backend import OWN, SOURCES, NativeBackend
from paradecode.backends.native.shape import shape_record
from paradecode.core.errors import InvalidInput
from paradecode.models.config import Rope
from paradecode.models.weights import Kind, Tensor
from spans import span

# Offsets of the half-precision factors in each kind's block.
FACTORS = {
    Kind.Q4_0: (0,), Kind.Q4_1: (0, 2), Kind.Q5_0: (0,), Kind.Q5_1: (0, 2), Kind.Q8_0: (0,),
    Kind.IQ4_NL: (0,), Kind.Q2_K: (80, 82), Kind.Q3_K: (108,), Kind.Q4_K: (0, 2),
    Kind.Q5_K: (0, 2), Kind.Q6_K: (208,), Kind.IQ4_XS: (0,),
}  # fmt: skip
KINDS = sorted(FACTORS, key=lambda kind: kind.name)
CONFIG = BASE.altered(
    hidden_size=512, intermediate_size=256, heads=8, kv_heads=4, head_dim=64, vocab_size=77,
    rope=Rope(dim=64), layers=2,
)  # fmt: skip


def random_blocks(kind: Kind, shape: tuple[int, int], rng: np.random.Generator) -> Tensor:
    """Return blocks of random bits whose factors have a sensible size."""
    size, count = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (shape[0], shape[1] // size, count), np.uint8)
    for offset in FACTORS[kind]:
        # Scales of up to 6 bits, and integers of up to 8 bits, multiply the factor.
        values = rng.uniform(0.5, 2.0, blocks.shape[:2]) * 2.0**-14
        halves = (values * rng.choice([-1, 1], values.shape)).astype(np.float16)
        blocks[..., offset : offset + 2] = halves[..., None].view(np.uint8)
    return Tensor(blocks.reshape(shape[0], -1), shape, kind)


def weights_of(kind: Kind, seed: int = 0) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    return {
        name: random_blocks(kind, weight.shape, rng) if len(weight.shape) == 2 else weight
        for name, weight in random_weights(CONFIG, seed).items()
    }


def opened(weights: dict[str, Tensor], **options: object) -> NativeBackend:
    backend = NativeBackend(CONFIG, weights, **options)  # type: ignore[arg-type]
    backend.reserve(8)
    return backend


def test_every_kind_that_the_core_reads_is_tested():
    floats = {Kind.F32, Kind.F16, Kind.BF16}
    assert SOURCES.keys() == OWN.keys() == floats | FACTORS.keys()


@pytest.mark.parametrize("dtype", ["auto", "f32"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_weights_equal_the_gguf_package_to_the_last_bit(kind, dtype):
    """The embeddings equal the weights that the gguf package decodes, to the last bit.

    The layers of this model add nothing, so the model's output is the embedding.
    """
    weights = weights_of(kind)
    zero = {name: Tensor(np.zeros(weights[name].shape, np.float32), weights[name].shape)
            for name in weights if name.endswith((".o", ".down"))}  # fmt: skip
    backend = opened({**weights, **zero}, dtype=dtype)
    tokens = np.arange(CONFIG.vocab_size)
    got = backend.forward([span(range(8), tokens, hidden=(1,))])[0].hidden[1]
    embed = weights["embed"]
    expected = quants.dequantize(np.asarray(embed.data), kind).reshape(embed.shape)
    assert (got == expected).all()  # But for the sign of zero, which the sum with zero takes.


@pytest.mark.first(6)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_packed_weights_are_hardly_larger_than_the_file(kind):
    weights = weights_of(kind)
    stored = sum(
        # Panels come in pairs: the head's 77 rows take the space of 96.
        weight.data.nbytes * (96 / 77 if name == "head" else 1)
        for name, weight in weights.items()
        if weight.kind is kind and name != "embed"
    )
    assert opened(weights).weight_bytes <= 1.02 * stored


@pytest.mark.first(2)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_forward_is_that_of_the_weights(kind):
    """The logits are close to those of a forward in float64 with the same weights.

    Only the 8-bit rounding of activations differs.
    """
    weights = weights_of(kind, seed=1)
    tokens = np.random.default_rng(2).integers(0, CONFIG.vocab_size, 20)
    got = opened(weights).forward([span(range(8), tokens)])[0].logits.numpy()
    expected = Naive(CONFIG, weights).logits(tokens)
    error = (got - expected).std(axis=1) / expected.std(axis=1)
    assert error.max() < 0.12


@pytest.mark.first(4)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_rows_do_not_depend_on_neighbours_or_kernels(kind, monkeypatch):
    weights = weights_of(kind, seed=3)
    tokens = np.random.default_rng(4).integers(0, CONFIG.vocab_size, 23)
    first = None
    for name in _core.available_isas():
        monkeypatch.setenv("PARADECODE_ISA", name)
        backend = opened(weights, threads=1)
        together = backend.forward([span(range(8), tokens)])[0].logits.numpy()
        for a, b in [(0, 1), (1, 3), (3, 10), (10, 15), (15, 23)]:
            alone = backend.forward([span(range(8), tokens[a:b], a)])[0].logits.numpy()
            assert (alone == together[a:b]).all()
        first = together if first is None else first
        assert (together == first).all(), name


def test_formats_that_the_core_cannot_make_are_refused():
    narrow = CONFIG.altered(intermediate_size=96)
    core = _core.Model(shape_record(narrow), half_cache=True, threads=1, apart=False)
    with pytest.raises(InvalidInput, match="whole blocks of 256"):
        core.set_format("layers.0.down", OWN[Kind.Q6_K])
    core.set_format("layers.0.q", OWN[Kind.Q6_K])
    with pytest.raises(InvalidInput, match="the format of its blocks"):
        core.fill("layers.0.q", 0, SOURCES[Kind.F32], np.zeros((4, 2048), np.uint8))


def test_packing_says_how_far_it_is() -> None:
    weights = random_weights(BASE)
    seen: list[tuple[int, int]] = []
    make_with = NativeBackend(BASE, weights, progress=lambda *told: seen.append(told))
    make_with.close()
    matrices = [tensor for tensor in weights.values() if len(tensor.shape) == 2]
    total = sum(tensor.data.nbytes for tensor in matrices)
    done = [told for told, _ in seen]
    assert len(seen) == len(matrices)
    assert {of for _, of in seen} == {total}
    assert done == sorted(done)
    assert done[-1] == total
