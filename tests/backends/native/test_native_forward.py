"""The float32 path against an independent NumPy forward and against transformers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from native_models import BASE, CONFIGS, make, page_count, random_weights, reference, span

from paradecode.core.layers import Half
from paradecode.models.weights import Kind, Tensor

EXACT = {"dtype": "f32", "kv_dtype": "f32"}


def close(actual: np.ndarray, expected: np.ndarray, tolerance: float = 1e-4) -> bool:
    return bool(np.abs(actual - expected).max() <= tolerance * np.abs(expected).max())


@pytest.mark.parametrize("name", CONFIGS)
def test_prefill_in_chunks_matches_the_reference(name):
    config = CONFIGS[name]
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, config.vocab_size, 41)
    expected, hidden = reference(config, random_weights(config), tokens)
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


@pytest.mark.first(2)
@pytest.mark.parametrize("window", [0, 300])
@pytest.mark.parametrize("name", ["grouped", "odd_sizes", "widest_heads"])
def test_long_contexts_match_the_reference(name, window):
    config = replace(CONFIGS[name], context_length=1024, sliding_window=window)
    tokens = np.random.default_rng(3).integers(0, config.vocab_size, 600)
    expected, _ = reference(config, random_weights(config), tokens)
    backend = make(config, threads=2, **EXACT)
    got = [
        backend.forward([span(range(38), tokens[a:b], a)])[0].logits.numpy()
        for a, b in [(0, 520), (520, 540), (540, 541), (541, 600)]
    ]
    assert close(np.concatenate(got), expected)


@pytest.mark.parametrize("name", ["grouped", "window", "partial"])
def test_trees_tails_and_unstored_rows(name):
    """Context 10, three cached tail slots, four new rows in a tree, two of them not stored."""
    config = CONFIGS[name]
    rng = np.random.default_rng(2)
    tokens = rng.integers(0, config.vocab_size, 17)
    positions = np.array([*range(10), 10, 11, 10, 11, 12, 12, 13])
    sees = np.zeros((17, 17), bool)
    sees[:, :10] = np.tri(17, 10, dtype=bool)
    paths = {10: [10], 11: [10, 11], 12: [12], 13: [12, 13], 14: [10, 11, 14], 15: [12, 13, 15],
             16: [10, 11, 14, 16]}  # fmt: skip
    for row, path in paths.items():
        sees[row, path] = True
    expected, _ = reference(config, random_weights(config), tokens, positions, sees)
    backend = make(config, **EXACT)
    pages = rng.permutation(64)[:2]
    backend.forward([span(pages, tokens[:10])])
    empty = {"tail": np.empty(0, np.int32), "tail_positions": np.empty(0, np.int32)}
    slots = np.array([20, 11, 17, 30, 12, -1, -1], np.int32)
    backend.forward(
        [span(pages, tokens[10:13], 10, positions=positions[10:13].astype(np.int32),
              slots=slots[:3], mask=sees[10:13, 10:13], **empty)]
    )  # fmt: skip
    (result,) = backend.forward(
        [span(pages, tokens[13:], 10, positions=positions[13:].astype(np.int32), slots=slots[3:],
              tail=slots[:3], tail_positions=positions[10:13].astype(np.int32),
              mask=sees[13:, 10:])]
    )  # fmt: skip
    assert close(result.logits.numpy(), expected[13:])


def test_full_attention_and_a_visible_list_with_an_overwrite():
    """A diffusion step: a block is recomputed in place while it sees everything around it."""
    config, rng = BASE, np.random.default_rng(3)
    tokens = rng.integers(0, 100, 24)
    everything = np.ones((24, 24), bool)
    backend = make(config, **EXACT)
    pages = np.array([9, 4])
    (first,) = backend.forward([span(pages, tokens, mask=everything)])
    expected, _ = reference(config, random_weights(config), tokens, sees=everything)
    assert close(first.logits.numpy(), expected)
    # With a single layer, keys and values depend on the tokens alone, so a recomputed block must
    # give the logits of a full forward over the new tokens.
    changed = tokens.copy()
    changed[8:13] = rng.integers(0, 100, 5)
    single = type(config)(**{**config.__dict__, "layers": 1})
    backend = make(single, **EXACT)
    backend.forward([span(pages, tokens, mask=everything)])
    outside = np.array([*range(8), *range(13, 24)], np.int32)
    block = np.arange(8, 13, dtype=np.int32)
    (result,) = backend.forward(
        [span(pages, changed[8:13], 0, positions=block, slots=block, visible=outside,
              mask=np.ones((5, 5), bool))]
    )  # fmt: skip
    expected, _ = reference(single, random_weights(single), changed, sees=everything)
    assert close(result.logits.numpy(), expected[8:13])
    (again,) = backend.forward(
        [span(pages, tokens[:1], 24, slots=np.array([-1], np.int32))]
    )  # fmt: skip
    longer = np.append(changed, tokens[0])
    expected, _ = reference(single, random_weights(single), longer)
    assert close(again.logits.numpy(), expected[24:])


def test_sliding_window_over_a_visible_list_uses_slots_as_positions():
    config = CONFIGS["window"]
    tokens = np.random.default_rng(4).integers(0, 100, 20)
    expected, _ = reference(config, random_weights(config), tokens)
    backend = make(config, **EXACT)
    pages = np.array([3, 1])
    backend.forward([span(pages, tokens[:18])])
    for order in (np.arange(18), np.random.default_rng(5).permutation(18)):
        (result,) = backend.forward([span(pages, tokens[18:], 18, visible=order.astype(np.int32))])
        assert close(result.logits.numpy(), expected[18:])


def test_embeddings_resume_layers_and_selected_logits():
    config, rng = BASE, np.random.default_rng(5)
    tokens = rng.integers(0, 100, 9)
    weights = random_weights(config)
    backend = make(config, **EXACT)
    given = rng.normal(size=(9, 64)).astype(np.float32)
    expected, hidden = reference(config, weights, tokens, states=given)
    (result,) = backend.forward(
        [span([0], tokens, embeddings=given, hidden=(1,), logits=np.array([8, 0, 8], np.int32))]
    )
    assert close(result.logits.numpy(), expected[[8, 0, 8]])
    assert list(result.hidden) == [1]
    assert close(result.hidden[1], hidden[1])
    (resumed,) = backend.forward([span([0], tokens, resume=result.hidden[1], layers=(2,))])
    assert close(resumed.logits.numpy(), expected)
    (swapped,) = backend.forward([span([1], tokens, layers=(2, 0))])
    expected, _ = reference(config, weights, tokens, layers=(2, 0))
    assert close(swapped.logits.numpy(), expected)
    (bare,) = backend.forward([span([1], tokens, layers=())])
    expected, _ = reference(config, weights, tokens, layers=())
    assert close(bare.logits.numpy(), expected)
    (nothing,) = backend.forward([span([1], tokens, logits=np.empty(0, np.int32))])
    assert nothing.logits.shape == (0, 100)


SOME = (0, Half(1, "mlp"), Half(2, "attention"), Half(0, "mlp"))


@pytest.mark.parametrize("name", ["grouped", "biases", "qk_norm", "odd_sizes", "window"])
def test_halves_of_layers_match_the_reference(name):
    config = CONFIGS[name]
    tokens = np.random.default_rng(9).integers(0, config.vocab_size, 23)
    backend = make(config, threads=2, **EXACT)
    for layers in [SOME, [Half(1, "attention")], [Half(2, "mlp")], SOME[::-1]]:
        expected, hidden = reference(config, random_weights(config), tokens, layers=layers)
        asked = tuple(hidden)
        first, second = (
            backend.forward([span([5, 2], tokens[a:b], a, layers=tuple(layers), hidden=asked)])[0]
            for a, b in [(0, 17), (17, 23)]
        )
        assert close(np.concatenate([first.logits.numpy(), second.logits.numpy()]), expected)
        for layer, states in hidden.items():  # What the last part of it that ran puts out.
            assert close(np.concatenate([first.hidden[layer], second.hidden[layer]]), states)


@pytest.mark.parametrize("name", ["grouped", "biases", "window"])
def test_halves_of_layers_match_the_torch_backend(name):
    """Drafts by some halves, over keys and values that all layers have stored."""
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


def test_only_attention_stores_keys_and_values():
    rng = np.random.default_rng(11)
    tokens, other = rng.integers(0, 100, 12), rng.integers(0, 100, 12)
    backend = make(BASE, **EXACT)

    def after():
        unstored = np.array([-1], np.int32)
        return backend.forward([span([2], [5], 12, slots=unstored)])[0].logits.numpy()

    backend.forward([span([2], tokens)])
    before = after()
    backend.forward([span([2], other, layers=tuple(Half(layer, "mlp") for layer in range(3)))])
    assert (after() == before).all()
    backend.forward([span([2], other, layers=(Half(1, "attention"),))])
    assert (after() != before).any()


def test_copied_slots_carry_keys_and_values():
    tokens = np.random.default_rng(6).integers(0, 100, 12)
    backend = make(BASE, **EXACT)
    backend.forward([span([2], tokens)])
    (expected,) = backend.forward([span([2], [5], 12)])
    order = np.random.default_rng(7).permutation(16)[:12]
    backend.copy(np.arange(32, 44), 7 * 16 + order)
    backend.copy(7 * 16 + order, 7 * 16 + np.arange(12))  # overlapping: all reads come first
    (moved,) = backend.forward([span([7], [5], 12)])
    assert (moved.logits.numpy() == expected.logits.numpy()).all()


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
@pytest.mark.parametrize("scaling", ["default", "linear", "llama3", "yarn"])
def test_agrees_with_transformers(family, scaling):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from dataclasses import replace

    from paradecode.models.config import Rope

    parameters = {
        "default": {},
        "linear": {"factor": 4.0},
        "llama3": {
            "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "yarn": {"factor": 4.0, "original_max_position_embeddings": 64},
    }[scaling]  # fmt: skip
    config = replace(
        BASE,
        qkv_bias=family == "Qwen2",
        qk_norm=family == "Qwen3",
        norm_eps=1e-6,
        rope=Rope(
            dim=16,
            scaling="none" if scaling == "default" else scaling,
            factor=parameters.get("factor", 1.0),
            original_context=64,
            attention_factor=0.1 * np.log(4.0) + 1.0 if scaling == "yarn" else 1.0,
        ),
    )
    settings = getattr(transformers, family + "Config")(
        vocab_size=100, hidden_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, intermediate_size=96, rms_norm_eps=1e-6,
        max_position_embeddings=512, tie_word_embeddings=False,
        rope_parameters={"rope_type": scaling, "rope_theta": 10000.0, **parameters},
    )  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, family + "ForCausalLM")(settings).eval()
    names = {
        "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
        "o": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj",
        "down": "mlp.down_proj", "attn_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm", "q_norm": "self_attn.q_norm",
        "k_norm": "self_attn.k_norm",
    }  # fmt: skip
    state = {k: v.detach() * (1.0 if "norm" in k else 6.0) for k, v in model.state_dict().items()}
    model.load_state_dict(state)
    weights = {}
    for name, shape in config.tensors().items():
        if name.startswith("layers."):
            _, index, rest = name.split(".", 2)
            base, _, suffix = rest.partition(".")
            key = f"model.layers.{index}.{names[base]}.{suffix or 'weight'}"
        else:
            key = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight",
                   "head": "lm_head.weight"}[name]  # fmt: skip
        weights[name] = Tensor(state[key].numpy().copy(), shape, Kind.F32)
    from paradecode.backends.native.backend import NativeBackend

    backend = NativeBackend(config, weights, **EXACT)
    backend.reserve(8)
    tokens = np.random.default_rng(8).integers(0, 100, 100)
    with torch.no_grad():
        expected = model(torch.tensor(tokens)[None]).logits[0].numpy()
    (result,) = backend.forward([span(range(7), tokens)])
    assert close(result.logits.numpy(), expected)
