"""The float32 path equals an independent NumPy forward and transformers."""

import numpy as np
import pytest
from naive import Naive, random_weights
from native_models import CONFIGS, make, page_count

from paradecode.core.layers import Half
from spans import span

EXACT = {"dtype": "f32", "kv_dtype": "f32"}


def close(actual: np.ndarray, expected: np.ndarray, tolerance: float = 1e-4) -> bool:
    return bool(np.abs(actual - expected).max() <= tolerance * np.abs(expected).max())


@pytest.mark.parametrize("name", CONFIGS)
def test_prefill_in_chunks_matches_the_reference(name):
    config = CONFIGS[name]
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, config.vocab_size, 41)
    naive = Naive(config, random_weights(config))
    expected, hidden = naive.logits(tokens), naive.hidden(tokens)[1:]
    backend = make(config, threads=2, **EXACT)
    pages = rng.permutation(64)[: page_count(41)]
    got, states = [], []
    for first, last in [(0, 1), (1, 18), (18, 40), (40, 41)]:
        (result,) = backend.forward(
            [span(pages, tokens[first:last], first, hidden=tuple(range(config.layers)))]
        )
        got.append(result.logits.numpy())
        states.append(result.hidden)
    assert close(np.concatenate(got), expected)
    for layer in range(config.layers):
        assert close(np.concatenate([s[layer] for s in states]), hidden[layer])


@pytest.mark.first(1)
@pytest.mark.parametrize("window", [0, 300])
@pytest.mark.parametrize("name", ["grouped", "odd_sizes", "widest_heads"])
def test_long_contexts_match_the_reference(name, window):
    config = CONFIGS[name].altered(context_length=1024, sliding_window=window)
    tokens = np.random.default_rng(3).integers(0, config.vocab_size, 600)
    expected = Naive(config, random_weights(config)).logits(tokens)
    backend = make(config, threads=2, **EXACT)
    got = [
        backend.forward([span(range(38), tokens[a:b], a)])[0].logits.numpy()
        for a, b in [(0, 520), (520, 540), (540, 541), (541, 600)]
    ]
    assert close(np.concatenate(got), expected)


SOME = (0, Half(1, "mlp"), Half(2, "attention"), Half(0, "mlp"))


@pytest.mark.parametrize("name", ["grouped", "biases", "window"])
def test_halves_of_layers_match_the_torch_backend(name):
    """Drafts by some halves of layers equal the torch backend's; all layers stored the text."""
    pytest.importorskip("torch")
    from paradecode.backends.torch.backend import TorchBackend

    config, tokens = CONFIGS[name], np.random.default_rng(10).integers(0, 100, 24)
    exact = TorchBackend(config, random_weights(config), dtype="fp64", threads=1)
    exact.reserve(64)
    native = make(config, **EXACT)
    unstored = np.full(4, -1, np.int32)
    for backend in (exact, native):
        backend.forward([span([5, 2], tokens[:20])])
    for layers in [SOME, (Half(1, "attention"),), (Half(2, "mlp"), 0)]:
        draft = span([5, 2], tokens[20:], 20, layers=layers, slots=unstored)
        expected = exact.forward([draft])[0].logits.values
        assert close(native.forward([draft])[0].logits.numpy(), expected)
