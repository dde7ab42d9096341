"""Mixtures of experts: their sizes, and the names and settings of two published families.

LLaDA-MoE (arXiv 2509.24389) and LLaDA2 (2512.15745) replace the MLP of most layers by a router and
many small MLPs; the router sends each token through a few of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from paradecode.core.checks import attributes, number, whole
from paradecode.core.errors import InvalidModel
from paradecode.models.metadata import Metadata

MOST = 1 << 20
"""Largest value of any count in config.json."""


@dataclass(frozen=True)
class Mixture:
    """How a layer chooses experts, and how it weighs them.

    The router's scores are a ``softmax`` or ``sigmoid`` of its logits. A bias may be added for the
    choice. The experts are in equal ``groups``, ranked by the sum of their two best scores; the
    best ``chosen`` experts of the best ``chosen_groups`` are weighed by their scores.

    Attributes:
        experts: number of experts in a layer.
        chosen: number of experts for each token.
        expert_size: inner width of an expert.
        shared_size: inner width of one more MLP for every token; 0 if there is none.
        dense: layers with an ordinary MLP instead.
        score: ``softmax`` or ``sigmoid``.
        bias: whether the router has a bias for its choice.
        biased_weights: whether the bias also counts in the weights.
        normalised: whether the weights of the chosen experts are divided by their sum.
        scale: factor of the weights.
    """

    experts: int
    chosen: int
    expert_size: int
    shared_size: int = 0
    dense: frozenset[int] = frozenset()
    score: str = "softmax"
    groups: int = 1
    chosen_groups: int = 1
    bias: bool = False
    biased_weights: bool = False
    normalised: bool = False
    scale: float = 1.0

    def __post_init__(self) -> None:
        attributes(self, {"experts": whole(1, 4096)}, "mixture.", InvalidModel)
        checks = {
            "chosen": whole(1, self.experts),
            "expert_size": whole(1, 1 << 20),
            "shared_size": whole(0, 1 << 20),
            "groups": whole(1, self.experts),
            "scale": number(0, 1e6, above=True),
        }
        attributes(self, checks, "mixture.", InvalidModel)
        attributes(self, {"chosen_groups": whole(1, self.groups)}, "mixture.", InvalidModel)
        group = self.experts // self.groups
        if self.groups > 1 and (self.experts % self.groups or group < 2):
            raise InvalidModel(
                "mixture.groups", self.groups, f"{self.experts} experts need equal groups of 2 up"
            )
        if self.chosen > group * self.chosen_groups:
            raise InvalidModel(
                "mixture.chosen", self.chosen, f"the chosen groups have {group} experts each"
            )

    def tensors(self, hidden: int) -> dict[str, tuple[int, ...]]:
        """Name in the layer -> shape.

        ``router`` [E, D] and ``router.bias`` [E]; ``experts.K.gate``, ``up`` and ``down`` as in a
        layer's own MLP, and ``shared.gate`` and so on.
        """
        shapes: dict[str, tuple[int, ...]] = {"router": (self.experts, hidden)}
        if self.bias:
            shapes["router.bias"] = (self.experts,)
        inner = {f"experts.{index}": self.expert_size for index in range(self.experts)}
        if self.shared_size:
            inner["shared"] = self.shared_size
        for name, size in inner.items():
            shapes |= {
                f"{name}.gate": (size, hidden),
                f"{name}.up": (size, hidden),
                f"{name}.down": (hidden, size),
            }
        return shapes


def llada_moe(values: Metadata) -> dict[str, Any]:
    """Fields of a ``ModelConfig`` for LLaDA-MoE's config.json.

    Its code never normalises or scales the weights, and its score is always a softmax; settings of
    the file for these are ignored.
    """
    if values.get("clip_qkv") is not None:
        raise InvalidModel("clip_qkv", values["clip_qkv"], "clipped projections are not known")
    kinds = values.get("moe_layer_freq")
    if not isinstance(kinds, list) or len(kinds) != values.get("num_hidden_layers"):
        raise InvalidModel("moe_layer_freq", kinds, "give a 0 or a 1 for each layer")
    biased = bool(values.get("moe_router_enable_expert_bias"))
    mixture = Mixture(
        experts=values.whole("num_experts", None, 1, MOST),
        chosen=values.whole("num_experts_per_tok", None, 1, MOST),
        expert_size=values.whole("expert_intermediate_size", None, 1, MOST),
        shared_size=values.get("shared_expert_intermediate_size") or 0,
        dense=frozenset(index for index, kind in enumerate(kinds) if kind == 0),
        bias=biased,
        biased_weights=biased,
    )
    return {"mixture": mixture, "qk_norm": bool(values.get("qk_layernorm"))}


def llada2(values: Metadata) -> dict[str, Any]:
    """Fields of a ``ModelConfig`` for LLaDA2's config.json."""
    size = values.whole("moe_intermediate_size", None, 1, MOST)
    shared, dense = (
        0 if values.get(key) is None else values.whole(key, None, 0, MOST)
        for key in ("num_shared_experts", "first_k_dense_replace")
    )
    chosen = values.whole("num_experts_per_tok", None, 1, MOST)
    mixture = Mixture(
        experts=values.whole("num_experts", None, 1, MOST),
        chosen=chosen,
        expert_size=size,
        shared_size=size * shared,
        dense=frozenset(range(dense)),
        score="sigmoid",
        groups=values.get("n_group", 8),
        chosen_groups=values.get("topk_group", 4),
        bias=True,
        normalised=chosen > 1,
        scale=values.get("routed_scaling_factor", 2.5),
    )
    return {
        "mixture": mixture,
        "qk_norm": bool(values.get("use_qk_norm", True)),
        "qkv_bias": bool(values.get("use_qkv_bias", False)),
        "output_bias": bool(values.get("use_bias", True)),
    }


_EXPERT = re.compile(r"mlp\.experts\.(\d{1,4})\.(gate|up|down)_proj\.weight")
_NAMES = {
    "mlp.gate.weight": "router", "mlp.expert_bias": "router.bias",
    "mlp.gate.expert_bias": "router.bias",
}  # fmt: skip
for _part in ("gate", "up", "down"):
    _NAMES |= {
        f"shared_expert.{_part}_proj.weight": f"shared.{_part}",
        f"mlp.shared_experts.{_part}_proj.weight": f"shared.{_part}",
    }


def in_layer(stored: str) -> str | None:
    """Our name of a layer's tensor, or None if it does not belong to a mixture."""
    match = _EXPERT.fullmatch(stored)
    return f"experts.{int(match[1])}.{match[2]}" if match else _NAMES.get(stored)
