"""What a published head is: which method's, with which sizes, under which names of tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidModel
from paradecode.models.config import Rope
from paradecode.models.metadata import Metadata
from paradecode.models.safetensors_dir import rope_of

Tensors = Mapping[str, NDArray[Any]]

SPECULATORS = {"eagle3": "eagle3", "peagle": "p-eagle", "mtp": "mtp", "eagle": "eagle"}
"""``speculators_model_type`` -> kind."""

_MTP = {
    # DeepSeek: layers behind the target's own.
    r"model\.layers\.\d+\.(enorm|hnorm|eh_proj)\.": r"\1.",
    r"model\.layers\.\d+\.shared_head\.norm\.": "norm.",
    r"model\.layers\.\d+\.shared_head\.head\.": "lm_head.",
    r"model\.layers\.\d+\.embed_tokens\.": "embed_tokens.",
    r"model\.layers\.\d+\.": "layers.0.",
    # Qwen3-Next.
    r"mtp\.pre_fc_norm_embedding\.": "enorm.", r"mtp\.pre_fc_norm_hidden\.": "hnorm.",
    r"mtp\.fc\.": "eh_proj.", r"mtp\.norm\.": "norm.", r"mtp\.layers\.0\.": "layers.0.",
    # speculators.
    r"mtp_layers\.0\.input_proj\.": "eh_proj.", r"mtp_layers\.0\.token_layernorm\.": "enorm.",
    r"mtp_layers\.0\.hidden_layernorm\.": "hnorm.", r"mtp_layers\.0\.final_layernorm\.": "norm.",
    r"mtp_layers\.0\.": "layers.0.",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class HeadFile:
    """A head as it is stored.

    Attributes:
        kind: ``eagle``, ``eagle3``, ``medusa``, ``mtp`` or ``p-eagle``.
        tensors: under the names of the EAGLE folders, with ``layers.N`` for every layer; Medusa's
            under its own (``0.0.linear.weight``), MTP's as ``enorm``, ``hnorm``, ``eh_proj``,
            ``layers.0`` and ``norm``.
        taps: layers of the target whose outputs are the features; empty: the usual ones.
        heads, kv_heads, head_dim: of the attention; 0 where there is none.
        epsilon: of the norms.
        rope: of the attention.
        normed_residual: EAGLE-3 goes on with the normed state.
        feeds_normed: a draft's next row is given the normed state.
        normed_features: the features are the target's last layer behind its final norm.
        mask_token: of P-EAGLE.
        verifier: name of the target, if the file says it.
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


def recognise(config: Metadata, tensors: Tensors) -> HeadFile:
    """What a folder holds: told by ``speculators_model_type``, else by the names of its tensors.

    Raises:
        InvalidModel: if it is no head that is known, or a size is wrong.
    """
    said = config.get("speculators_model_type")
    if said is not None and said not in SPECULATORS:
        raise InvalidModel("speculators_model_type", said, f"use one of {', '.join(SPECULATORS)}")
    tensors = {re.sub(r"^(medusa_head|medusa_heads)\.", "", n): t for n, t in tensors.items()}
    if any(re.fullmatch(r"\d+\.\d+\.linear\.weight", name) for name in tensors):
        return HeadFile("medusa", tensors, (-1,))
    nested = config.get("transformer_layer_config")
    sizes = Metadata(nested) if isinstance(nested, dict) else config
    renamed = {_renamed(name): values for name, values in tensors.items()}
    kind = SPECULATORS.get(said or "", "eagle3" if "layers.0.hidden_norm.weight" in renamed else "")
    if not kind:
        kind = "mtp" if "eh_proj.weight" in renamed else "eagle"
    if kind == "eagle3" and "mask_hidden" in renamed:
        kind = "p-eagle"
    needed = "eh_proj.weight" if kind == "mtp" else "fc.weight"
    if needed not in renamed or "layers.0.self_attn.q_proj.weight" not in renamed:
        known = "EAGLE-1, 2 or 3, P-EAGLE, Medusa or MTP"
        raise InvalidModel("tensors", sorted(tensors)[:3], f"give a folder of {known}")
    heads = sizes.whole("num_attention_heads", None, 1, 1024)
    width = sizes.whole("hidden_size", None, 1, 1 << 16)
    head_dim = sizes.whole("head_dim", width // heads, 1, 1024)
    rope = rope_of(sizes, head_dim)
    if rope.dim != head_dim or rope.attention_factor != 1.0 or rope.scaling == "yarn":
        raise InvalidModel("rope", rope, "heads with partial or yarn rotations are not supported")
    verifier = config.get("speculators_config", {})
    named = verifier.get("verifier", {}) if isinstance(verifier, dict) else {}
    return HeadFile(
        kind,
        renamed,
        _taps(kind, config),
        heads,
        sizes.whole("num_key_value_heads", heads, 1, 1024),
        head_dim,
        sizes.number("rms_norm_eps", 1e-6),
        rope,
        normed_residual=config.flag("norm_before_residual"),
        # SpecForge means something else by it where there is no norm of each layer's features.
        feeds_normed=(
            said == "mtp"
            or any(name.startswith("mtp.") for name in tensors)
            or (config.flag("norm_output") and (said is not None or "fc_norm.0.weight" in renamed))
        ),
        normed_features=said != "mtp",
        mask_token=config.whole("mask_token_id", config.whole("ptd_token_id", 0)),
        verifier=str((named or {}).get("name_or_path") or ""),
    )


def _renamed(name: str) -> str:
    name = re.sub(r"^midlayer\.", "layers.0.", name)
    for pattern, ours in _MTP.items():
        changed = re.sub(f"^{pattern}", ours, name)
        if changed != name:
            return changed
    return name


def _taps(kind: str, config: Metadata) -> tuple[int, ...]:
    """Layers whose outputs are tapped; files name the layers that these outputs enter."""
    if kind in ("eagle", "mtp"):
        return (-1,)
    own = config.get("eagle_config", {})
    ids = config.get("eagle_aux_hidden_state_layer_ids")
    ids = ids or (own.get("eagle_aux_hidden_state_layer_ids") if isinstance(own, dict) else None)
    if ids is None:
        return ()
    if not isinstance(ids, list) or not all(type(i) is int and i > 0 for i in ids):
        raise InvalidModel("eagle_aux_hidden_state_layer_ids", ids, "give a list of layers above 0")
    return tuple(i - 1 for i in ids)


def d2t_of(tensors: Tensors) -> NDArray[np.int32] | None:
    """int32 [V], the target's ids of a head's tokens; None if they are the same."""
    offsets = tensors.get("d2t")
    if offsets is None:
        return None
    ids = np.arange(len(offsets)) + offsets.astype(np.int64)
    if len(ids) == 0 or ids[0] < 0 or (np.diff(ids) <= 0).any():
        raise InvalidModel("d2t", offsets[:4].tolist(), "its ids must ascend: get a sound file")
    return ids.astype(np.int32)
