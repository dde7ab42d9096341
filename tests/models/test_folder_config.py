"""config.json is read like transformers' configuration classes read it."""

from __future__ import annotations

import json
import warnings
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from paradecode.backends.interface import Span
from paradecode.backends.torch.backend import TorchBackend
from paradecode.core.errors import InvalidModel
from paradecode.models.folder_config import folder_config
from paradecode.models.metadata import Metadata
from paradecode.models.safetensors_dir import read_weights
from tiny_folder import write_folder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

SMALL = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3", "Qwen3Moe")
UNUSED = (
    "initializer_range", "use_cache", "attention_dropout", "output_router_logits",
    "router_aux_loss_coef", "architectures",
)  # fmt: skip
"""Keys of training and of transformers' internals; nothing here reads them."""
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 5000.0},
    "linear": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "attention_factor": 1.25,
        "beta_fast": 16.0, "beta_slow": 2.0, "original_max_position_embeddings": 64,
        "mscale": 0.5, "mscale_all_dim": 0.25,
    },
    "yarn with broken pairs": {
        "rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "truncate": False,
        "original_max_position_embeddings": 64,
    },
    "dynamic": {"rope_type": "dynamic", "rope_theta": 5000.0, "factor": 4.0},
    "longrope": {
        "rope_type": "longrope", "rope_theta": 5000.0, "factor": 4.0,
        "short_factor": [1 + n / 8 for n in range(8)], "long_factor": [2.0 + n for n in range(8)],
        "original_max_position_embeddings": 64, "attention_factor": 1.25,
    },
}  # fmt: skip


def described(family, **changes):
    """Return config.json of a tiny model of this family, as transformers writes it."""
    config = getattr(transformers, f"{family}Config")(**SMALL)
    said = {**config.to_dict(), "architectures": [f"{family}ForCausalLM"], **changes}
    return deepcopy(said)


def theirs(family, values):
    """Return transformers' view of the values and rotary frequencies, or None if refused."""
    try:
        config = getattr(transformers, f"{family}Config").from_dict(deepcopy(values))
        with torch.device("meta"):
            transformers.AutoModelForCausalLM.from_config(config)
        kind = type(config).__module__.replace("configuration", "modeling")
        module = __import__(kind, fromlist=["x"])
        rotary = getattr(module, f"{family}RotaryEmbedding")(config)
        rope, context = config.rope_parameters, config.max_position_embeddings
        if rope["rope_type"] == "longrope":  # Up to here all texts have the same angles.
            context = min(context, rope["original_max_position_embeddings"])
    except Exception:
        return None
    head_dim = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    kinds = getattr(config, "layer_types", None)
    windowed = kinds is None or "sliding_attention" in kinds
    window = getattr(config, "sliding_window", None) if windowed else None
    return {
        "kv_heads": config.num_key_value_heads, "head_dim": head_dim, "window": window or 0,
        "norm_eps": config.rms_norm_eps, "context": context,
        "tied": config.tie_word_embeddings, "bias": getattr(config, "attention_bias", False),
        "bos": config.bos_token_id, "eos": config.eos_token_id,
        "rope": (rotary.inv_freq.numpy() * 1.0, rotary.attention_scaling),
    }  # fmt: skip


def ours(values):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = folder_config(Path(), Metadata(json.loads(json.dumps(values))))
    return {
        "kv_heads": config.kv_heads, "head_dim": config.head_dim, "window": config.sliding_window,
        "norm_eps": config.norm_eps, "context": config.context_length,
        "tied": config.tied_head, "bias": config.output_bias, "bos": config.bos_token,
        "eos": config.eos_tokens[0] if config.eos_tokens else None,
        "rope": (config.rope.inverse_frequencies(), config.rope.attention_factor),
    }  # fmt: skip


def compare(family, values):
    """Check that transformers and this package both refuse the values, or read them equally."""
    expected = theirs(family, values)
    if expected is None:
        with pytest.raises(InvalidModel):
            ours(values)
        return
    found = ours(values)
    (angles, gain), (wanted, scale) = found.pop("rope"), expected.pop("rope")
    assert found == expected
    np.testing.assert_allclose(angles, wanted, rtol=1e-5)
    assert gain == pytest.approx(scale)


@pytest.mark.first(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_null_means_what_the_class_makes_of_it(family):
    usual = described(family)
    for changes in ({}, {"use_sliding_window": True, "max_window_layers": 0}):
        for key in [*usual, "rope_theta", "rope_scaling", "original_max_position_embeddings"]:
            if key not in UNUSED:
                compare(family, {**usual, **changes, key: None})


@pytest.mark.first(1)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_key_that_is_left_out_has_the_default_of_the_class(family):
    usual = described(family)
    for key in usual:
        # Tokens are the files' own: transformers takes no ends from the class.
        if key not in (*UNUSED, "bos_token_id", "eos_token_id"):
            heads = {"num_attention_heads": 32} if key == "num_key_value_heads" else {}
            compare(family, {n: value for n, value in (usual | heads).items() if n != key})


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize("style", ["rope_parameters", "rope_scaling"])
def test_nulls_and_gaps_in_rotary_parameters(kind, style):
    for key in (None, *ROPES[kind]):
        rope = {name: value for name, value in ROPES[kind].items() if name != key}
        for values in (rope, {**rope, key: None} if key else rope):
            said = {name: v for name, v in described("Llama").items() if name != "rope_parameters"}
            compare("Llama", {**said, style: values})


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", ["dynamic", "longrope", "yarn with broken pairs"])
def test_logits_of_rotary_scalings(tmp_path, kind):
    config = transformers.LlamaConfig(**SMALL, rope_parameters=ROPES[kind])
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backend = TorchBackend(*read_weights(tmp_path), dtype="fp32")
    ids = np.arange(60, dtype=np.int32)
    backend.reserve(4)
    rows = np.arange(60, dtype=np.int32)
    span = Span(np.arange(4, dtype=np.int32), ids, rows, rows, 0, rows)
    (found,) = backend.forward([span])
    with torch.no_grad():
        wanted = model(torch.from_numpy(ids[None].astype(np.int64))).logits[0].numpy()
    np.testing.assert_allclose(found.logits.values, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.wide
def test_which_of_two_rotary_settings_counts():
    for outer in (
        {"rope_theta": 777.0}, {"rope_theta": 777.0, "rope_scaling": ROPES["linear"]},
        {"rope_scaling": ROPES["yarn"], "rope_parameters": ROPES["linear"]},
        {"rope_parameters": ROPES["yarn"], "original_max_position_embeddings": 32},
        {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 777.0},
        {"rope_parameters": {"full_attention": ROPES["default"]}},
    ):  # fmt: skip
        said = {n: v for n, v in described("Qwen2").items() if n != "rope_parameters"}
        compare("Qwen2", {**said, **outer})


def test_a_factor_that_the_contexts_contradict_is_warned_about():
    values = described("Llama", rope_parameters={**ROPES["yarn"], "factor": 3.0})
    with pytest.warns(UserWarning, match="factor 3 .*64 and 256 have the ratio 4"):
        folder_config(Path(), Metadata(values))


@pytest.mark.wide
def test_two_names_of_an_architecture_that_differ_are_warned_about():
    with pytest.warns(UserWarning, match="LlamaForCausalLM, which is used.*'mistral'"):
        folder_config(Path(), Metadata(described("Llama", model_type="mistral")))


@pytest.mark.wide
@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
@pytest.mark.parametrize("bare", [True, False])
def test_an_architecture_may_be_named_otherwise(family, bare):
    """AutoModel saves the class of the network without its head; the type names a nameless file."""
    names = [f"{family}Model"] if bare else None
    config = folder_config(Path(), Metadata(described(family, architectures=names)))
    assert config.architecture == family.lower()


@pytest.mark.wide
def test_experts_as_transformers_saves_them(tmp_path):
    config = transformers.Qwen3MoeConfig(
        **SMALL, moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, head_dim=16
    )
    transformers.Qwen3MoeForCausalLM(config).save_pretrained(tmp_path)
    read, _ = read_weights(tmp_path)
    assert (read.mixture.experts, read.mixture.chosen, read.mixture.expert_size) == (4, 2, 32)


def saved(folder, rename, **changes):
    """Write a tiny folder whose tensors have other names."""
    write_folder(folder, "llama", **changes)
    found = load_file(folder / "model.safetensors")
    named = {rename(name): value for name, value in found.items()}
    save_file(named, folder / "model.safetensors")
    return folder


def test_names_without_model_are_the_same_weights(tmp_path):
    base, weights = read_weights(write_folder(tmp_path / "a", "llama"))
    folder = saved(tmp_path / "b", lambda name: name.removeprefix("model."))
    config, found = read_weights(folder)
    assert config.tensors() == base.tensors()
    for name, tensor in weights.items():
        np.testing.assert_array_equal(found[name].float32(), tensor.float32())


@pytest.mark.wide
def test_a_network_without_its_lm_head_says_so(tmp_path):
    folder = saved(tmp_path, lambda name: name, tie_word_embeddings=False)
    with pytest.raises(InvalidModel, match=r"lm_head.*without its LM head"):
        read_weights(folder)


@pytest.mark.wide
@pytest.mark.parametrize(
    "name", ["self_attn.k_scale", "self_attn.v_scale", "self_attn.attn.kv_scale",
             "self_attn.k_proj.k_scale", "self_attn.v_proj.output_scale", "self_attn.q_scale",
             "self_attn.prob_scale", "self_attn.rotary_emb.inv_freq"]
)  # fmt: skip
def test_scales_of_caches_are_no_weights(tmp_path, name):
    folder = write_folder(tmp_path, "llama")
    found = load_file(folder / "model.safetensors")
    save_file({**found, f"model.layers.0.{name}": np.ones(1, np.float32)},
              folder / "model.safetensors")  # fmt: skip
    read_weights(folder)


@pytest.mark.wide
def test_a_scale_of_weights_is_refused(tmp_path):
    folder = write_folder(tmp_path, "llama")
    found = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.k_proj.weight_scale"
    save_file({**found, name: np.ones(1, np.float32)}, folder / "model.safetensors")
    with pytest.raises(InvalidModel, match="weight_scale"):
        read_weights(folder)


@pytest.mark.wide
@pytest.mark.parametrize("same", [True, False])
def test_a_tied_flag_beside_a_head(tmp_path, same):
    """A file with an LM head in spite of its tied flag is computed as in transformers."""
    config = transformers.LlamaConfig(**SMALL, tie_word_embeddings=False)
    model = transformers.LlamaForCausalLM(config)
    if same:
        model.lm_head.weight.data.copy_(model.model.embed_tokens.weight.data)
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": True}))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        config, weights = read_weights(tmp_path)
    assert any("tie_word_embeddings" in str(each.message) for each in said) is not same
    head = weights["embed" if config.tied_head else "head"].float32()
    np.testing.assert_array_equal(head, theirs.lm_head.weight.detach().numpy())
