"""Make draft heads with random or chosen weights, for targets without a trained head."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from paradecode.models.config import ModelConfig
from paradecode.models.heads.files import write_head
from paradecode.models.heads.layouts import HeadFile
from paradecode.testing.clover_heads import CELLS, clover_tensors
from paradecode.testing.toy import successor

KINDS = ("eagle", "eagle3", "p-eagle", "medusa", "medusa-own", "mtp", "dflash", "dspark", "dflash2",
         "clover", "clover-2", "falcon", "chimera", "kangaroo", "m2r2", "longspec",
         "dovetail")  # fmt: skip
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a head's layers.

    Attributes:
        size, inner: widths of an attention head, and of the MLP's inner layer.
        taps: layers of the target that EAGLE-3 and P-EAGLE read; empty means two layers.
        vocabulary: number of tokens that EAGLE-3 and P-EAGLE may draft; 0 means half of the
            target's.
    """

    heads: int = 2
    kv_heads: int = 1
    size: int = 4
    inner: int = 12
    taps: tuple[int, ...] = ()
    vocabulary: int = 0

    def config(self, d: int) -> dict[str, Any]:
        return {
            "hidden_size": d, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "head_dim": self.size, "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
        }  # fmt: skip

    def layer(self, name: str, d: int, into: int, make: Any) -> Arrays:
        """Return the tensors of a layer, whose attention takes inputs of ``into`` numbers."""
        wide, narrow = self.heads * self.size, self.kv_heads * self.size
        shapes = {
            "self_attn.q_proj": (wide, into), "self_attn.k_proj": (narrow, into),
            "self_attn.v_proj": (narrow, into), "self_attn.o_proj": (d, wide),
            "mlp.gate_proj": (self.inner, d), "mlp.up_proj": (self.inner, d),
            "mlp.down_proj": (d, self.inner),
        }  # fmt: skip
        return {f"{name}{part}.weight": make(*shape) for part, shape in shapes.items()}


SMALL = Sizes()


def random_head(
    kind: str, config: ModelConfig, folder: Path, seed: int = 0, sizes: Sizes = SMALL
) -> str:
    """Write a head with random weights that needs no tensors of the target. Return its folder.

    Args:
        kind: one of KINDS; ``medusa-own`` has LM heads of its own.
    """
    random = np.random.default_rng(seed)
    d, vocabulary = config.hidden_size, config.vocab_size

    def normal(*shape: int) -> NDArray[np.float32]:
        return (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    def gain() -> NDArray[np.float32]:
        return (1 + 0.1 * random.standard_normal(d)).astype(np.float32)

    tensors: Arrays = {
        "verifier_norm.weight": gain(),
        "verifier_lm_head.weight": normal(vocabulary, d),
    }
    settings: dict[str, Any] = {}
    if kind.startswith("medusa"):
        for head in range(3):
            tensors[f"{head}.0.linear.weight"] = normal(d, d)
            tensors[f"{head}.0.linear.bias"] = normal(d)
            if kind == "medusa-own":
                tensors[f"{head}.1.weight"] = normal(vocabulary, d)
        return _write(folder, tensors, {"medusa_num_heads": 3, "medusa_num_layers": 1})
    if kind in ("dflash", "dspark", "dflash2"):
        return _masked(kind, config, folder, tensors, normal, gain, sizes)
    if kind in CELLS:
        if d % sizes.heads:  # The toy's width is odd, so a cell has one head.
            sizes = replace(sizes, heads=1, kv_heads=1)
        tensors |= {"clover_embed_tokens.weight": normal(vocabulary, d)}
        tensors |= clover_tensors(kind, d, normal)
        for number in range(len(CELLS[kind])):
            tensors |= sizes.layer(f"layers.{number}.", d, d, normal)
            for norm in ("input_layernorm", "post_attention_layernorm"):
                tensors[f"layers.{number}.{norm}.weight"] = gain()
        settings = {"clover": {"num_heads": 3, "num_layers": len(CELLS[kind])}}
        return _write(folder, tensors, {**sizes.config(d), **settings})
    if kind == "ppd":  # Integers are valid states of the toy.
        folder.mkdir(parents=True, exist_ok=True)
        prompts = random.integers(0, vocabulary, (3, d)).astype(np.float32)
        write_head(HeadFile("ppd", {"prompt_embeddings": prompts}), folder, {})
        return str(folder)
    if kind == "hidden-transfer":  # Permutations keep the toy's states valid.
        for level in range(3):
            order = [*random.permutation(d - 1), d - 1]
            tensors[f"transfer.{level}.weight"] = np.eye(d, dtype=np.float32)[order]
        enters = [(config.layers + 1) // 2, config.layers - 1, config.layers - 1]
        return _write(folder, tensors, {"transfer_layers": enters})
    if kind == "longspec":
        return _longspec(config, folder, tensors, normal, gain, sizes)
    if kind == "m2r2":
        return _streamed(config, folder, tensors, normal)
    if kind == "kangaroo":
        made = sizes.layer("layers.0.", d, d, normal)
        tensors |= {name: values for name, values in made.items() if ".mlp." not in name}
        tensors |= {"layers.0.input_layernorm.weight": gain(), "norm.weight": gain()}
        drafted = np.arange(0, vocabulary, 2)
        tensors["d2t"] = drafted - np.arange(len(drafted))
        return _write(folder, tensors, {**sizes.config(d), "exit_layer": (config.layers + 1) // 2})
    three = kind in ("eagle3", "p-eagle")
    layer = "mtp.layers.0" if kind == "mtp" else "layers.0"
    tensors |= {
        "embed_tokens.weight": normal(vocabulary, d),
        **sizes.layer(f"{layer}.", d, 2 * d if three else d, normal),
        f"{layer}.post_attention_layernorm.weight": gain(),
    }
    if kind == "chimera":
        tensors |= {
            "trimlp.0.linear.weight": normal(3 * d, 3 * d), "trimlp.0.linear.bias": normal(3 * d),
            "trimlp.1.weight": 3 * normal(d, 3 * d), "layers.0.input_layernorm.weight": gain(),
        }  # fmt: skip
        settings["chimera"] = {"num_heads": 3}
        for head in range(3):
            tensors[f"chimera_head.{head}.0.weight"] = normal(vocabulary, 2 * d)
    elif kind == "falcon":
        for number, entering in enumerate((2 * d, d)):
            shapes = {"weight_ih": (4 * d, entering), "weight_hh": (4 * d, d), "bias_ih": (4 * d,),
                      "bias_hh": (4 * d,)}  # fmt: skip
            tensors |= {f"lstm.{n}_l{number}": 2 * normal(*each) for n, each in shapes.items()}
        settings["k_mask"] = 2
    elif kind == "dovetail":
        tensors |= {
            "input_layernorm.weight": gain(), "W_1": normal(d, d), "W_2": 2 * normal(d, d),
            "W_z": 2 * normal(2 * d, d), **sizes.layer("layers.1.", d, d, normal),
        }  # fmt: skip
        for norm in ("input", "post_attention"):
            tensors[f"layers.1.{norm}_layernorm.weight"] = gain()
    elif kind == "eagle":
        tensors |= {"fc.weight": normal(d, 2 * d), "fc.bias": normal(d)}
    elif kind == "mtp":
        tensors |= {f"{layer}.input_layernorm.weight": gain(), "mtp.fc.weight": normal(d, 2 * d)}
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            tensors[f"mtp.{name}.weight"] = gain()
    else:
        drafted = np.sort(random.permutation(vocabulary)[: sizes.vocabulary or vocabulary // 2])
        taps = sizes.taps or (0, config.layers - 1)
        tensors |= {
            "fc.weight": normal(d, len(taps) * d), "norm.weight": gain(),
            "layers.0.input_layernorm.weight": gain(), "layers.0.hidden_norm.weight": gain(),
            "lm_head.weight": normal(len(drafted), d), "d2t": drafted - np.arange(len(drafted)),
        }  # fmt: skip
        settings["eagle_aux_hidden_state_layer_ids"] = [tap + 1 for tap in taps]
    if kind == "p-eagle":
        tensors |= {"mask_hidden": normal(1, 1, len(taps) * d)}
        tensors |= sizes.layer("layers.1.", d, d, normal)
        tensors["layers.1.post_attention_layernorm.weight"] = gain()
        tensors["layers.1.input_layernorm.weight"] = gain()
        settings["mask_token_id"] = 1
    return _write(folder, tensors, {**sizes.config(d), **settings})


def _longspec(
    config: ModelConfig, folder: Path, tensors: Arrays, normal: Any, gain: Any, sizes: Sizes
) -> str:
    """Write a LongSpec head under its published names, with the target's last keys and values."""
    d, rows = config.hidden_size, config.kv_heads * config.head_dim
    last = f"verifier_layers.{config.layers - 1}."
    sizes = replace(sizes, heads=config.heads, kv_heads=config.kv_heads, size=config.head_dim)
    tensors |= {
        "embed_tokens.weight": normal(config.vocab_size, d), **sizes.layer("", d, d, normal),
        "cross_attn.q_proj.weight": 3 * normal(config.heads * config.head_dim, d),
        "cross_attn.q_proj.bias": normal(config.heads * config.head_dim),
        "cross_attn.o_proj.weight": 3 * normal(d, config.heads * config.head_dim),
        f"{last}attn_norm": gain(), f"{last}k": normal(rows, d),
        f"{last}v": normal(rows, d), f"{last}k.bias": normal(rows),
        f"{last}v.bias": normal(rows),
        f"{last}k_norm": 1 + 0.1 * normal(config.head_dim),
    }  # fmt: skip
    for norm in ("input", "post_self_attention", "post_cross_attention"):
        tensors[f"{norm}_layernorm.weight"] = gain()
    for part, count in (("q", config.heads), ("k", config.kv_heads), ("v", config.kv_heads)):
        tensors[f"self_attn.{part}_proj.bias"] = normal(count * config.head_dim)
    return _write(folder, tensors, sizes.config(d))


def _streamed(config: ModelConfig, folder: Path, tensors: Arrays, normal: Any) -> str:
    """Write a residual stream that runs beside layers of the target, with these layers."""
    d, asked, rank = config.hidden_size, config.heads * config.head_dim, 3
    layers, shapes = range(1, (config.layers + 1) // 2 + 1), config.tensors()
    for number, layer in enumerate(layers):
        start, own = f"stream.{number}.", f"layers.{layer}."
        tensors |= {f"verifier_{name}": normal(*shape) + name.endswith("norm")
                    for name, shape in shapes.items() if name.startswith(own)}  # fmt: skip
        added = {"query.down": (rank, d), "query.up": (asked, rank), "mlp.gate_proj": (rank, d),
                 "mlp.up_proj": (rank, d), "mlp.down_proj": (d, rank)}  # fmt: skip
        tensors |= {f"{start}{part}.weight": normal(*shape) for part, shape in added.items()}
    return _write(folder, tensors, {"stream_layers": [*layers]})


def _masked(
    kind: str, config: ModelConfig, folder: Path, tensors: Arrays, normal: Any, gain: Any,
    sizes: Sizes,
) -> str:  # fmt: skip
    """Write a head that drafts on mask tokens."""
    d, vocabulary = config.hidden_size, config.vocab_size
    taps = sizes.taps or (0, config.layers - 1)
    tensors |= {
        "embed_tokens.weight": normal(vocabulary, d), "fc.weight": normal(d, len(taps) * d),
        "hidden_norm.weight": gain(), "norm.weight": gain(),
    }  # fmt: skip
    for layer in range(2):
        tensors |= sizes.layer(f"layers.{layer}.", d, d, normal)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"layers.{layer}.{norm}.weight"] = gain()
        for norm in ("q_norm", "k_norm"):
            tensors[f"layers.{layer}.self_attn.{norm}.weight"] = np.resize(gain(), sizes.size)
    settings = {
        "speculators_model_type": kind, "block_size": 5, "mask_token_id": 1,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in taps],
        "transformer_layer_config": sizes.config(d),
    }  # fmt: skip
    if kind == "dspark":
        drafted = np.arange(0, vocabulary, 2)
        tensors |= {
            "lm_head.weight": normal(len(drafted), d), "d2t": drafted - np.arange(len(drafted)),
            "markov_head.markov_w1.weight": normal(vocabulary, 3),
            "markov_head.markov_w2.weight": 3 * normal(len(drafted), 3),
        }  # fmt: skip
    if kind == "dflash2":
        group = 4 if d % 4 == 0 else 1
        for part in ("attention_conv", "mlp_conv"):
            for layer in range(2):
                name = f"layers.{layer}.{part}"
                tensors[f"{name}.base_kernel"] = normal(2, 2, d) + np.float32(0.5)
                tensors[f"{name}.kernel_projection.weight"] = normal(4 * d // group, d)
        tensors |= {
            "candidate_selector.predecessor_codebook": 2 * normal(vocabulary, 3),
            "candidate_selector.successor_codebook": 2 * normal(vocabulary, 3),
            "candidate_selector.hidden_projection.weight": normal(3, d),
        }
        settings |= {"conv_kernel_size": 2, "conv_group_size": group, "selector_top_k": 6}
    return _write(folder, tensors, settings)


def knowing_head(config: ModelConfig, folder: Path) -> str:
    """Write an EAGLE-1 head that predicts the usual successor of each token of the toy."""
    d, vocabulary = config.hidden_size, config.vocab_size
    angles = 2 * np.pi * np.arange(vocabulary) / vocabulary
    embedding = np.zeros((vocabulary, d), np.float32)
    embedding[:, 0], embedding[:, 1] = np.cos(angles), np.sin(angles)
    head = np.zeros_like(embedding)
    head[successor(np.arange(vocabulary), vocabulary)] = 400 * embedding
    tensors: Arrays = {
        "embed_tokens.weight": embedding,
        "verifier_norm.weight": np.ones(d, np.float32),
        "verifier_lm_head.weight": head,
        "fc.weight": np.eye(d, 2 * d, dtype=np.float32),
        **SMALL.layer("layers.0.", d, d, lambda *shape: np.zeros(shape, np.float32)),
        "layers.0.post_attention_layernorm.weight": np.ones(d, np.float32),
    }
    return _write(folder, tensors, SMALL.config(d))


def _write(folder: Path, tensors: Arrays, config: Mapping[str, Any]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: np.ascontiguousarray(t) for name, t in tensors.items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)
