"""Mixtures of experts: their sizes, and the names of their tensors in folders.

LLaDA-MoE (arXiv 2509.24389), LLaDA2 (2512.15745) and Qwen3 (2505.09388) replace the MLP of most
layers by a router and many small MLPs; the router sends each token through a few of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from paradecode.core.checks import attributes, listed, number, whole
from paradecode.core.errors import InvalidModel
from paradecode.models.metadata import Metadata, as_model

MOST = 1 << 20
"""Largest value of any count in config.json."""
MOST_LAYERS = 1024
MOST_EXPERTS = 1 << 17
"""Largest number of experts in all layers of a model together; Kimi K2 has 23 thousand."""


@dataclass(frozen=True)
class Mixture:
    """The choice of experts in a layer, and the weights of their results.

    The router's scores are a ``softmax`` or ``sigmoid`` of its logits, or their RMSNorm after a
    ``relu`` (BlockFFN, arXiv 2507.08771), which sends a row only where a logit is above 0. A bias
    may be added for the choice. The experts are in equal ``groups``, ranked by the sum of their two
    best scores; the best ``chosen`` experts of the best ``chosen_groups`` are weighted by their
    scores.

    Attributes:
        experts: number of experts in a layer.
        chosen: number of experts for each token.
        expert_size: inner width of an expert.
        shared_size: inner width of one more MLP for every token; 0 if there is none.
        shared_gated: whether its result is multiplied by ``sigmoid(shared.gain x)``.
        score: ``softmax``, ``sigmoid`` or ``relu``.
        bias: whether the router adds a bias for its choice.
        logit_bias: whether the router's logits have a bias.
        expert_bias: whether the experts' matrices have biases.
        biased_weights: whether the bias also counts in the weights.
        normalised: whether the weights of the chosen experts are divided by their sum.
        scale: factor of the weights.
        scaled: whether the router is Gemma 4's, which reads normed states times a gain, and has a
            factor for each expert.
    """

    experts: int
    chosen: int
    expert_size: int
    shared_size: int = 0
    score: str = "softmax"
    groups: int = 1
    chosen_groups: int = 1
    bias: bool = False
    logit_bias: bool = False
    expert_bias: bool = False
    biased_weights: bool = False
    normalised: bool = False
    scale: float = 1.0
    scaled: bool = False
    shared_gated: bool = False

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
        if self.shared_gated and not self.shared_size:
            raise InvalidModel("mixture.shared_size", 0, "a gated shared MLP needs a width")
        group = self.experts // self.groups
        if self.groups > 1 and (self.experts % self.groups or group < 2):
            raise InvalidModel(
                "mixture.groups", self.groups, f"{self.experts} experts need equal groups of 2 up"
            )
        if self.chosen > group * self.chosen_groups:
            raise InvalidModel(
                "mixture.chosen", self.chosen, f"the chosen groups have {group} experts each"
            )

    def tensors(self, hidden: int, gated: bool = True) -> dict[str, tuple[int, ...]]:
        """Return name in the layer -> shape.

        ``router`` [E, D], ``router.bias`` and ``router.logit_bias`` [E], or ``router.scale`` [D]
        and ``router.gain`` [E]; the gain ``router.norm`` [E] of rectified scores;
        ``experts.K.gate``, ``up`` and ``down`` as in a layer's own MLP, with ``experts.K.up.bias``
        and so on, and ``shared.gate`` and so on, with ``shared.gain`` [1, D].

        Args:
            gated: whether the experts have gates.
        """
        e = (self.experts,)
        shapes: dict[str, tuple[int, ...]] = {"router": (self.experts, hidden)}
        if self.bias:
            shapes["router.bias"] = e
        if self.logit_bias:
            shapes["router.logit_bias"] = e
        if self.score == "relu":
            shapes["router.norm"] = e
        if self.scaled:
            shapes |= {"router.scale": (hidden,), "router.gain": e}
        inner = {f"experts.{index}": self.expert_size for index in range(self.experts)}
        if self.shared_size:
            inner["shared"] = self.shared_size
        for name, size in inner.items():
            own = {f"{name}.gate": (size, hidden)} if gated else {}
            own |= {f"{name}.up": (size, hidden), f"{name}.down": (hidden, size)}
            shapes |= own
            if self.expert_bias:
                shapes |= {f"{matrix}.bias": shape[:1] for matrix, shape in own.items()}
        if self.shared_gated:
            shapes["shared.gain"] = (1, hidden)
        return shapes


def qwen3_moe(values: Metadata) -> dict[str, Any]:
    """Return the fields of a ``ModelConfig`` for the config.json of Qwen3 with experts."""
    layers = values.whole("num_hidden_layers", None, 1, MOST_LAYERS)
    every = values.whole("decoder_sparse_step", 1, 1, MOST)
    dense = _layers(values, "mlp_only_layers")
    mixture = Mixture(
        experts=values.whole("num_experts", None, 1, MOST),
        chosen=values.whole("num_experts_per_tok", None, 1, MOST),
        expert_size=values.whole("moe_intermediate_size", None, 1, MOST),
        normalised=values.flag("norm_topk_prob"),
    )
    plain = frozenset(i for i in range(layers) if i in dense or (i + 1) % every)
    return {"mixture": mixture, "dense": plain}


def _layers(values: Metadata, key: str) -> set[int]:
    """Return indices of layers, given as a list or not at all."""
    given = values.get(key)
    check = listed(whole(0, MOST_LAYERS), MOST_LAYERS)
    return set() if given is None else set(as_model(lambda: check(key, given)))


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
    """Return our name of a layer's tensor, or None if it does not belong to the experts."""
    match = _EXPERT.fullmatch(stored)
    return f"experts.{int(match[1])}.{match[2]}" if match else _NAMES.get(stored)
