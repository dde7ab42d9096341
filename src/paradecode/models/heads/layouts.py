"""Recognise a published head: its method, its sizes, and the names of its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidModel
from paradecode.models.config import Rope
from paradecode.models.folder_rope import rope_of
from paradecode.models.metadata import Metadata

Tensors = Mapping[str, NDArray[Any]]

SPECULATORS = {"eagle3": "eagle3", "peagle": "p-eagle", "mtp": "mtp", "dflash": "dflash",
               "dspark": "dspark", "dflash2": "dflash2"}  # fmt: skip
"""``speculators_model_type`` -> kind."""
MASKED = ("dflash", "dspark", "dflash2")

_KNOWN = (
    "EAGLE-1, 2 or 3, P-EAGLE, Medusa, MTP, DFlash, DFlash2, DSpark, Clover, Falcon, Chimera, "
    "LongSpec, Dovetail, Kangaroo, M2R2, PPD, Hidden Transfer or FlexDraft"
)
_CELL = "clover_head_mlp_rnn.q.weight"
_NEEDED = {
    "mtp": "eh_proj.weight",
    "medusa": "0.0.linear.weight",
    "clover": _CELL,
    "clover-2": _CELL,
    "kangaroo": "norm.weight",
    "falcon": "lstm.weight_hh_l0",
    "chimera": "chimera_head.0.0.weight",
    "ppd": "prompt_embeddings",
    "flexdraft": "mask_embedding",
    "longspec": "cross.self_attn.q_proj.weight",
    "dovetail": "W_z",
}
_LAYERS = {"clover.num_layers": "layers.0.self_attn.q_proj.weight"}
_COUNTED = {
    "clover": {**_LAYERS, "clover.num_heads": "clover_head_mlp.0.0.linear.weight"},
    "clover-2": _LAYERS,
    "chimera": {"chimera.num_heads": "chimera_head.0.0.weight"},
}
"""Settings that count repeated modules -> the tensor of the first module."""
_OF_TARGET = ("embed_tokens.weight", "lm_head.weight", "d2t")
_WITHOUT_USE = ("t2d", "rotary_emb.inv_freq")
_LONGSPEC = "cross_attn.q_proj.weight"
LONGSPEC = {
    "input_layernorm.": "layers.0.input_layernorm.", "self_attn.": "layers.0.self_attn.",
    "post_self_attention_layernorm.": "cross.input_layernorm.", "cross_attn.": "cross.self_attn.",
    "post_cross_attention_layernorm.": "cross.post_attention_layernorm.", "mlp.": "cross.mlp.",
}  # fmt: skip
"""Prefixes of names in LongSpec's layer -> our prefixes, with a layer for each attention."""
_MOST_ROWS = 256
_MOST_LAYERS = 64

_MODULES = {
    # The tensor that tells a module for multi-token prediction -> the names of its parts.
    r"(model\.layers\.\d+\.)eh_proj\.weight": {  # DeepSeek: layers behind the target's own.
        "shared_head.norm.": "norm.", "shared_head.head.": "lm_head.",
        "embed_tokens.": "embed_tokens.", "enorm.": "enorm.", "hnorm.": "hnorm.",
        "eh_proj.": "eh_proj.",
    },
    r"(mtp\.)fc\.weight": {  # Qwen3-Next and Qwen3.5.
        "pre_fc_norm_embedding.": "enorm.", "pre_fc_norm_hidden.": "hnorm.", "fc.": "eh_proj.",
        "norm.": "norm.", "layers.0.": "layers.0.",
    },
    r"((?:model\.)?mtp_layers\.\d+\.)input_proj\.weight": {  # MiMo; speculators without "model.".
        "input_proj.": "eh_proj.", "token_layernorm.": "enorm.", "hidden_layernorm.": "hnorm.",
        "final_layernorm.": "norm.",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Sight:
    """The rows to which mask rows attend in one layer; see ``Block``."""

    window: int = 0
    trails: bool = False
    causal: bool = False


@dataclass(frozen=True, eq=False)
class HeadFile:
    """A stored head.

    Attributes:
        kind: see ``Head.kind``.
        tensors: the tensors under the names of the EAGLE folders, with ``layers.N`` for every
            layer. Medusa's keep their own names (``0.0.linear.weight``), and so do Clover's, except
            ``embed_tokens``. MTP's are ``enorm``, ``hnorm``, ``eh_proj``, ``layers.0`` and
            ``norm``. LongSpec's second attention is ``cross``. The tensors that M2R2 adds to layer
            N of its stream are ``stream.N``.
        taps: layers of the target whose outputs are the features; empty means the default ones. For
            Hidden Transfer, the layers after which the row of each level enters.
        heads, kv_heads, head_dim: sizes of the attention; 0 if there is none.
        epsilon: epsilon of the norms.
        rope: rotary positions of the attention.
        normed_residual: whether EAGLE-3's residual stream starts with the normed state.
        feeds_normed: whether a draft's next row gets the normed state.
        normed_features: whether the features are the target's last layer after its final norm.
        mask_token: mask token of P-EAGLE, DFlash and DSpark.
        verifier: name of the target, if the file has it.
        hidden_first: whether an MTP module joins state and token in this order; otherwise the token
            comes first.
        gated: whether the layer is one of Qwen3-Next: a gate of the attention's result comes with
            the queries, and norms store their gain minus 1.
        block_size: number of rows of a DFlash or FlexDraft draft, including the last token's row;
            for Falcon, the number of rows that see one another.
        first_guess: index of the draft's row that guesses the first token.
        sights: for each layer of a DFlash or DSpark head, what its mask rows see. Empty means that
            all see all.
        taps_behind, group: for DFlash2, the numbers of rows that its convolutions mix, and of the
            columns that share a kernel; 0 if there are none.
        candidates: for DFlash2, the number of likeliest tokens between which its selector chooses.
    """

    kind: str
    tensors: Tensors
    taps: tuple[int, ...] = ()
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    epsilon: float = 1e-6
    rope: Rope = field(default_factory=Rope)
    normed_residual: bool = False
    feeds_normed: bool = False
    normed_features: bool = True
    mask_token: int = 0
    verifier: str = ""
    hidden_first: bool = False
    gated: bool = False
    block_size: int = 0
    first_guess: int = 0
    sights: tuple[Sight, ...] = ()
    taps_behind: int = 0
    group: int = 0
    candidates: int = 0


def recognise(config: Metadata, tensors: Tensors) -> HeadFile:
    """Recognise the head in a folder by ``speculators_model_type`` or by its tensors' names.

    Raises:
        InvalidModel: the head is unknown, a size is wrong, or a setting is not supported.
    """
    said = config.text("speculators_model_type")
    if said is not None and said not in SPECULATORS:
        raise InvalidModel("speculators_model_type", said, f"use one of {', '.join(SPECULATORS)}")
    tensors, module = _named(tensors)
    kind = "mtp" if module else SPECULATORS.get(said or "") or _kind(config, tensors)
    if kind == "medusa":
        return HeadFile("medusa", tensors, (-1,))
    if kind == "ppd":
        return _prompts(config, tensors)
    if kind == "hidden-transfer":
        return HeadFile(kind, tensors, _transfer_layers(config))
    if kind == "m2r2":
        ids = config.get("stream_layers")
        return HeadFile(kind, tensors, _in_a_row("stream_layers", ids, "the stream passes"))
    if _NEEDED.get(kind, "fc.weight") not in tensors:
        raise InvalidModel("tensors", sorted(tensors)[:3], f"give a folder of {_KNOWN}")
    config = Metadata({**config, **_object(config, "text_config")})
    sizes = Metadata(_object(config, "transformer_layer_config") or config)
    _refuse_unknown(kind, config, sizes, tensors)
    own = _object(config, "dflash_config")
    heads = sizes.whole("num_attention_heads", None, 1, 1024)
    kv_heads = sizes.whole("num_key_value_heads", heads, 1, 1024)
    if heads % kv_heads:
        raise InvalidModel("num_key_value_heads", kv_heads, f"it must divide {heads} heads")
    head_dim = sizes.whole("head_dim", sizes.whole("hidden_size", None, 1, 1 << 16) // heads, 2,
                           1024)  # fmt: skip
    rope = rope_of(sizes, head_dim)
    if rope.dim < 2 or (head_dim - rope.dim) % 2 or rope.dim % 2:
        raise InvalidModel("partial_rotary_factor", rope.dim, f"turn an even part of {head_dim}")
    rope.check()
    verifier = _object(_object(config, "speculators_config"), "verifier")
    model = sizes.text("model_type", "") or ""
    block = config.whole("k_mask", None, 1, 16) if kind == "falcon" else 0
    if kind in (*MASKED, "flexdraft"):
        given = config if config.get("block_size") is not None else own
        block = given.whole("block_size", None, 2, _MOST_ROWS)
    if kind == "flexdraft":
        tensors = _calibrated(config, tensors)
    return HeadFile(
        kind,
        tensors,
        _taps(kind, config, own),
        heads,
        kv_heads,
        head_dim,
        sizes.number("rms_norm_eps", 1e-6),
        rope,
        normed_residual=config.flag("norm_before_residual"),
        # Without a norm for each layer's features, SpecForge means something else by this setting.
        feeds_normed=module in ("mtp.", "mtp_layers.", "model.mtp_layers.")
        or (config.flag("norm_output") and (said is not None or "fc_norm.0.weight" in tensors)),
        normed_features=module != "mtp_layers.",
        mask_token=_mask_token(kind, config, own),
        verifier=verifier.text("name_or_path", "") or "",
        hidden_first=module == "model.mtp_layers.",
        gated=kind == "mtp" and model.startswith(("qwen3_next", "qwen3_5")),
        block_size=block,
        first_guess=0 if config.flag("sample_from_anchor", kind == "dspark") else 1,
        sights=_sights(kind, config, sizes, own, block) if kind in MASKED else (),
        **_convolved(config, own, block) if kind == "dflash2" else {},
    )


def _convolved(config: Metadata, own: Metadata, block: int) -> dict[str, int]:
    """Return the sizes of DFlash2's convolutions and of its selector."""
    said = Metadata({**config, **own})
    if said.flag("sample_from_anchor"):
        raise InvalidModel("sample_from_anchor", True, "a DFlash2 block begins with a known token")
    return {
        "taps_behind": said.whole("conv_kernel_size", 2, 1, block),
        "group": said.whole("conv_group_size", 16, 1, 1 << 16),
        "candidates": said.whole("selector_top_k", 16, 1, 1 << 10),
    }


def _sights(
    kind: str, config: Metadata, sizes: Metadata, own: Metadata, block: int
) -> tuple[Sight, ...]:
    """Return what the mask rows see in each layer.

    A folder of speculators has one window for a block, which ends where the block begins; in other
    folders each row has its own.
    """
    types = sizes.get("layer_types")
    known = "full_attention", "sliding_attention"
    if types is None:
        types = [known[0]] * sizes.whole("num_hidden_layers", 1, 1, _MOST_LAYERS)
    if not isinstance(types, list) or not 1 <= len(types) <= _MOST_LAYERS:
        raise InvalidModel("layer_types", types, f"give 1 to {_MOST_LAYERS} layers")
    for each in types:
        if each not in known:
            raise InvalidModel("layer_types", each, f"use {' or '.join(known)}")
    together = config.get("speculators_model_type") is not None
    everywhere = own.flag("use_swa") and known[1] not in types
    causal = [each == known[1] for each in types]
    if together:
        causal = [
            each and not config.flag("sliding_window_non_causal", kind == "dflash2")
            for each in causal
        ]
    for where, name in ((config, "is_causal"), (own, "causal")):
        if not together and where.get(name) is not None:
            causal = [where.flag(name)] * len(types)
    if not everywhere and known[1] not in types:
        return tuple(Sight(causal=each) for each in causal) if any(causal) else ()
    given = own if own.get("swa_window_size") is not None else sizes
    name = "swa_window_size" if given is own else "sliding_window"
    window = given.whole(name, None, block, 1 << 24) - (not together)
    return tuple(
        Sight(window, not together, alone)
        if everywhere or each == known[1]
        else Sight(causal=alone)
        for each, alone in zip(types, causal)
    )


def _calibrated(config: Metadata, tensors: Tensors) -> Tensors:
    """Return a FlexDraft head's tensors; those of its calibration only if a setting enables it."""
    flag, start = "enable_anchor_bias_logits", "anchor_bias_mlp."
    stored = any(name.startswith(start) for name in tensors)
    wanted = _object(config, "flexdraft_config").flag(flag, stored)
    if wanted and not stored:
        raise InvalidModel(flag, True, f"the file has no {start}0.weight: get a complete one")
    kept = {name: rows for name, rows in tensors.items() if not name.startswith(start)}
    return tensors if wanted else kept


def _prompts(config: Metadata, tensors: Tensors) -> HeadFile:
    """Return the prompt tokens of PPD, in the form in which PEFT stores them."""
    prompts = tensors["prompt_embeddings"]
    if prompts.ndim != 2:
        raise InvalidModel("prompt_embeddings", prompts.shape, "give a row for each token")
    count = len(prompts)
    plain = {"virtual_tokens_per_special_token": 1, "num_exits": 1, "use_custom_lm_head": False,
             "use_prefix_tuning": False, "num_special_tokens": count}  # fmt: skip
    for name, wanted in plain.items():
        if config.get(name, wanted) != wanted:
            raise InvalidModel(name, config[name], f"only {wanted} is known for this file")
    return HeadFile("ppd", tensors)


def _transfer_layers(config: Metadata) -> tuple[int, ...]:
    """Return the layers after which the rows of Hidden Transfer enter.

    Files name the next layer, which the rows enter.
    """
    layers = config.get("transfer_layers")
    if not isinstance(layers, list) or not 1 <= len(layers) <= 16:
        fix = "list the layer, from 0, that the row of each matrix enters: 1 to 16"
        raise InvalidModel("transfer_layers", layers, fix)
    if not all(type(layer) is int and 1 <= layer < 1 << 12 for layer in layers):
        raise InvalidModel("transfer_layers", layers, "rows enter layers from 1 on")
    return tuple(layer - 1 for layer in layers)


def _object(config: Metadata, name: str) -> Metadata:
    """Return an object in a config, without its null entries; empty if there is none."""
    found = config.get(name)
    if found is not None and not isinstance(found, dict):
        raise InvalidModel(name, found, "it must be a JSON object")
    return Metadata({key: value for key, value in (found or {}).items() if value is not None})


def module_start(names: Iterable[str]) -> str:
    """Return the prefix of the names of a multi-token prediction module; empty if there is none.

    If there are several modules, the first one's prefix is returned.
    """
    for pattern in _MODULES:
        found = [m[1] for m in (re.fullmatch(pattern, name) for name in names) if m]
        if found:
            return min(found, key=lambda start: (len(start), start))
    return ""


def _named(tensors: Tensors) -> tuple[dict[str, NDArray[Any]], str]:
    """Return the tensors under our names, and the prefix of a multi-token prediction module.

    From a whole model with such a module, only the module is kept.
    """
    start = module_start(tensors)
    made: dict[str, NDArray[Any]] = {}
    if start:
        parts = next(p for key, p in _MODULES.items() if any(re.fullmatch(key, n) for n in tensors))
        kept = {n for n in tensors if n.startswith("verifier_") or n in _OF_TARGET}
        made = {name: tensors[name] for name in kept}
        for name, values in tensors.items():
            if name.startswith(start):
                rest = name[len(start) :]
                theirs = next((part for part in parts if rest.startswith(part)), "")
                made[parts.get(theirs, "layers.0.") + rest[len(theirs) :]] = values
    elif _LONGSPEC in tensors:
        # Nothing reads the published layer's own keys and values after its second norm.
        used = {n: v for n, v in tensors.items() if not re.match(r"cross_attn\.[kv]_proj\.", n)}
        for name, values in used.items():
            theirs = next((part for part in LONGSPEC if name.startswith(part)), "")
            made[LONGSPEC.get(theirs, "") + name[len(theirs) :]] = values
    else:
        for name, values in tensors.items():
            name = re.sub(r"^(medusa_heads?\.|clover_(?=embed))", "", name)
            name = re.sub(r"(_codebook)$", r"\1.weight", name)
            made[re.sub(r"^(midlayer|fast_layer1\.0)\.", "layers.0.", name)] = values
    made = {name: values for name, values in made.items() if not name.endswith(_WITHOUT_USE)}
    return made, re.sub(r"\d+\.", "", start)


def _kind(config: Metadata, tensors: Tensors) -> str:
    if any(re.fullmatch(r"\d+\.\d+\.linear\.weight", name) for name in tensors):
        return "medusa"
    for kind in ("longspec", "dovetail"):
        if _NEEDED[kind] in tensors:
            return kind
    if "trimlp.1.weight" in tensors:
        return "chimera"
    if "lstm.weight_ih_l0" in tensors:
        return "falcon"
    if "prompt_embeddings" in tensors:
        return "ppd"
    if "mask_embedding" in tensors:
        return "flexdraft"
    if "transfer.0.weight" in tensors:
        return "hidden-transfer"
    if "stream.0.query.down.weight" in tensors:
        return "m2r2"
    if _object(config, "clover"):
        return "clover-2" if "clover_head_mlp_rnn2.q.weight" in tensors else "clover"
    if "candidate_selector.hidden_projection.weight" in tensors:
        return "dflash2"
    if _object(config, "dflash_config"):
        return "dspark" if "markov_head.markov_w1.weight" in tensors else "dflash"
    if "layers.0.hidden_norm.weight" in tensors:
        return "p-eagle" if "mask_hidden" in tensors else "eagle3"
    # EAGLE-1 has no norm before its attention.
    alone = "layers.0.input_layernorm.weight" in tensors and "fc.weight" not in tensors
    return "kangaroo" if alone else "eagle"


def _refuse_unknown(kind: str, config: Metadata, sizes: Metadata, tensors: Tensors) -> None:
    """Raise InvalidModel for a setting that would change a head's results and is not supported."""
    act = sizes.get("hidden_act")
    if act not in (None, "silu"):
        raise InvalidModel("hidden_act", act, "heads with silu are known")
    types = sizes.get("layer_types")
    masked = kind in ("mtp", *MASKED)
    if not masked and isinstance(types, list) and set(map(str, types)) - {"full_attention"}:
        raise InvalidModel("layer_types", types, "heads with full attention are known")
    own = _object(config, "dflash_config")
    for place in (own, sizes):
        if place.get("attention_sink_bias"):
            raise InvalidModel("attention_sink_bias", True, "not known: use another head")
    for name, plain in (("input_embedding_scale", 1), ("output_multiplier", 1),
                        ("final_logit_softcapping", 0)):  # fmt: skip
        for place in (own, config):
            if kind in MASKED and place.get(name) not in (None, plain):
                raise InvalidModel(name, place[name], f"only {plain} is known for this head")
    if config.get("markov_head_type", "vanilla") not in ("vanilla", "gated"):
        raise InvalidModel("markov_head_type", config["markov_head_type"], "use vanilla or gated")
    for name, first in _COUNTED.get(kind, {}).items():
        where, key = name.split(".")
        count = _object(config, where).whole(key, None, 1, 64)
        if first.replace("0", str(count - 1), 1) not in tensors:
            raise InvalidModel(name, count, "it has fewer: get a complete file")
    for name in tensors:
        if ".experts." in name or name.endswith(("mlp.gate.weight", "experts.gate_up_proj")):
            raise InvalidModel(name, "experts", "heads without experts are known")
        if ".kv_a_proj" in name:
            raise InvalidModel(name, "latent attention", "heads with q_proj, k_proj are known")
    for flag, name in (("fc_norm", "fc_norm.0.weight"), ("norm_before_fc", "input_norm.weight")):
        if kind in ("eagle3", "p-eagle") and config.flag(flag) and name not in tensors:
            raise InvalidModel(name, None, f"{flag} is set: get a complete file")


def _mask_token(kind: str, config: Metadata, own: Metadata) -> int:
    if kind not in ("p-eagle", *MASKED):
        return 0
    names = "mask_token_id", "ptd_token_id", "pard_token"
    for name, where in ((n, w) for n in names for w in (config, own)):
        if where.get(name) is not None:
            return where.whole(name, None, 0, 1 << 24)
    raise InvalidModel("mask_token_id", None, "the head was trained with one: name it")


def _taps(kind: str, config: Metadata, own: Metadata) -> tuple[int, ...]:
    """Return the layers whose outputs are tapped; files name the next layers."""
    if kind in ("eagle", "mtp", "clover", "clover-2", "falcon", "chimera", "dovetail"):
        return (-1,)
    if kind == "kangaroo":
        if config.get("exit_layer") is None:
            fix = "write into config.json behind how many layers of the target the adapter drafts"
            raise InvalidModel("exit_layer", None, fix)
        return (config.whole("exit_layer", None, 1, 1 << 12) - 1,)
    if kind == "flexdraft":
        name = "flexdraft_config.target_layer_ids"
        ids = _object(config, "flexdraft_config").get("target_layer_ids")
        return _in_a_row(name, ids, "the masks pass")
    places = [
        (config, "eagle_aux_hidden_state_layer_ids", 1), (config, "aux_hidden_state_layer_ids", 1),
        (_object(config, "eagle_config"), "eagle_aux_hidden_state_layer_ids", 1),
        (own, "target_layer_ids", 0),  # z-lab names the layers themselves.
    ]  # fmt: skip
    for where, name, ahead in places:
        ids = where.get(name)
        if ids is None:
            continue
        if not isinstance(ids, list) or not all(type(i) is int and i >= ahead for i in ids):
            raise InvalidModel(name, ids, "give a list of layers")
        if not 1 <= len(ids) <= 64:
            raise InvalidModel(name, len(ids), "give 1 to 64 layers")
        return tuple(i - ahead for i in ids)
    if kind in MASKED:
        raise InvalidModel("aux_hidden_state_layer_ids", None, "name the layers that are tapped")
    return ()


def _in_a_row(name: str, ids: object, who: str) -> tuple[int, ...]:
    """Return the layers before those in ``ids``, counted from 0; ``ids`` must be consecutive."""
    if not isinstance(ids, list) or not 1 <= len(ids) <= 64 or type(ids[0]) is not int:
        raise InvalidModel(name, ids, f"list the layers that {who}")
    entered = range(ids[0], ids[0] + len(ids))
    if ids != list(entered) or not 1 <= ids[0] < 1 << 12:
        raise InvalidModel(name, ids, f"{who} layers in a row, from the second on")
    return tuple(layer - 1 for layer in entered)


def d2t_of(offsets: NDArray[Any]) -> NDArray[np.int32]:
    """Return the target's ids of a head's tokens, int32 [V], from the offsets in files."""
    if offsets.dtype.kind not in "iu" or not 0 <= offsets.min(initial=0) <= offsets.max(
        initial=0
    ) < (1 << 24):
        raise InvalidModel("d2t", offsets[:4].tolist(), "its offsets must be whole, from 0 on")
    ids = np.arange(len(offsets)) + offsets.astype(np.int64)
    if len(ids) == 0 or (np.diff(ids) <= 0).any():
        raise InvalidModel("d2t", offsets[:4].tolist(), "its ids must ascend: get a sound file")
    return ids.astype(np.int32)
