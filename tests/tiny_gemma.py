"""Writes a tiny DiffusionGemma with random weights, with the hub's keys and names."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from paradecode.core.decoder import Denoise
from paradecode.models.text_stream import byte_characters
from spans import span

D, HEADS, SIZE, GROUPS, WIDE, INNER, EXPERTS, EXPERT = 32, 4, 8, 2, 16, 24, 4, 12
LAYERS, CANVAS, VOCABULARY, END = 3, 8, 96, 1
ROPE = {
    "full_attention": {
        "partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional",
    },
    "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
}  # fmt: skip
TEXT: dict[str, Any] = {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 2, "eos_token_id": END,
    "global_head_dim": WIDE, "head_dim": SIZE, "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": D, "initializer_range": 0.02, "intermediate_size": INNER,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "max_position_embeddings": 256, "model_type": "diffusion_gemma_text",
    "moe_intermediate_size": EXPERT, "num_attention_heads": HEADS, "num_experts": EXPERTS,
    "num_global_key_value_heads": 1, "num_hidden_layers": LAYERS, "num_key_value_heads": GROUPS,
    "pad_token_id": 0, "rms_norm_eps": 1e-6, "rope_parameters": ROPE, "sliding_window": 6,
    "tie_word_embeddings": True, "top_k_experts": 2, "use_bidirectional_attention": "vision",
    "vocab_size": VOCABULARY,
}  # fmt: skip
CONFIG: dict[str, Any] = {
    "architectures": ["DiffusionGemmaForBlockDiffusion"], "boi_token_id": 255999,
    "canvas_length": CANVAS, "dtype": "float32", "eoi_token_id": 258882, "image_token_id": 258880,
    "initializer_range": 0.02, "model_type": "diffusion_gemma", "text_config": TEXT,
    "tie_word_embeddings": True,
    "vision_config": {
        "model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 16, "head_dim": 8,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
    },
}  # fmt: skip


def stored_shapes() -> dict[str, tuple[int, ...]]:
    """Return the published name -> the shape, for all tensors but those that read images."""
    top = "model.decoder."
    shapes: dict[str, tuple[int, ...]] = {
        f"{top}embed_tokens.weight": (VOCABULARY, D), f"{top}norm.weight": (D,),
        f"{top}self_conditioning.pre_norm.weight": (D,),
        f"{top}self_conditioning.gate_proj.weight": (INNER, D),
        f"{top}self_conditioning.up_proj.weight": (INNER, D),
        f"{top}self_conditioning.down_proj.weight": (D, INNER),
        "model.encoder.embed_vision.embedding_projection.weight": (D, 16),
    }  # fmt: skip
    for layer in range(LAYERS):
        name, last = f"{top}layers.{layer}.", layer == LAYERS - 1
        size, groups = (WIDE, 1) if last else (SIZE, GROUPS)
        norms = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                 "post_feedforward_layernorm", "post_feedforward_layernorm_1",
                 "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")  # fmt: skip
        shapes |= {f"{name}{norm}.weight": (D,) for norm in norms}
        shapes |= {
            f"{name}self_attn.q_proj.weight": (HEADS * size, D),
            f"{name}self_attn.k_proj.weight": (groups * size, D),
            f"{name}self_attn.o_proj.weight": (D, HEADS * size),
            f"{name}self_attn.q_norm.weight": (size,), f"{name}self_attn.k_norm.weight": (size,),
            f"{name}mlp.gate_proj.weight": (INNER, D), f"{name}mlp.up_proj.weight": (INNER, D),
            f"{name}mlp.down_proj.weight": (D, INNER), f"{name}layer_scalar": (1,),
            f"{name}router.proj.weight": (EXPERTS, D), f"{name}router.scale": (D,),
            f"{name}router.per_expert_scale": (EXPERTS,),
            f"{name}experts.gate_up_proj": (EXPERTS, 2 * EXPERT, D),
            f"{name}experts.down_proj": (EXPERTS, D, EXPERT),
            f"model.encoder.language_model.layers.{layer}.layer_scalar": (1,),
        }  # fmt: skip
        if not last:
            shapes[f"{name}self_attn.v_proj.weight"] = (groups * size, D)
    return shapes


def write_gemma(folder: Path, changes: dict[str, Any] | None = None, **text: Any) -> Path:
    """Write the model, and return the folder.

    Args:
        changes: entries that replace those of ``config.json``.
        text: entries that replace those of its ``text_config``; None removes an entry.
    """
    folder.mkdir(parents=True, exist_ok=True)
    random, tensors = np.random.default_rng(4), {}
    for name, shape in stored_shapes().items():
        noise = random.standard_normal(shape)
        small = len(shape) == 1
        values = 1 + 0.2 * noise if small else noise * 0.8 / np.sqrt(shape[-1])
        if "embed_tokens" in name:
            values = noise * 0.6
        tensors[name] = values.astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    own = {key: value for key, value in {**TEXT, **text}.items() if value is not None}
    config = {**CONFIG, "text_config": own, **(changes or {})}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [END, 3]}))
    letters = ["<pad>", "<eos>", "<bos>", "<turn|>", *[*byte_characters()][: VOCABULARY - 4]]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token) for token in letters[:4]])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def gemma_span(
    tokens: list[int], start: int, denoise: Denoise | None = None, first: int = 0, **more
):
    """Return rows after ``start`` slots; the K/V pages begin with number ``first``.

    The rows of a canvas see each other, and are not stored.
    """
    if denoise is not None:
        count = len(tokens)
        more |= {"slots": np.full(count, -1, np.int32), "mask": np.ones((count, count), bool)}
    return span(range(first, first + 4), tokens, start, denoise=denoise, **more)
