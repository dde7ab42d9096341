"""Experts in GGUF files: one tensor holds a matrix for all experts of a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from paradecode.core.errors import InvalidModel
from paradecode.models.mixture import MOST, Mixture
from paradecode.models.weights import Tensor

NORMALISED = {"llama": True, "llada-moe": False, "qwen3moe": True, "rnd1": True}
"""Architecture -> whether the weights of the chosen experts are divided by their sum.

llama.cpp has this in its code, not in the files.
"""
NAMES = {
    "ffn_gate_inp.weight": "router", "ffn_gate_exps.weight": "experts.gate",
    "ffn_up_exps.weight": "experts.up", "ffn_down_exps.weight": "experts.down",
}  # fmt: skip
"""Name in a layer of the file -> our name, without the index of the expert."""


def mixture_of(architecture: str, need: Callable[[str, int | None], int]) -> Mixture | None:
    """Return the mixture of experts that a file's fields describe; None for dense models.

    Args:
        need: reads a whole number of the architecture, or its default.
    """
    experts = need("expert_count", 0)
    if not experts:
        return None
    if architecture not in NORMALISED:
        fix = f"experts are known in {', '.join(NORMALISED)}"
        raise InvalidModel(f"{architecture}.expert_count", experts, fix)
    chosen = need("expert_used_count", None)
    usual = need("feed_forward_length", 0) // max(chosen, 1)
    return Mixture(
        experts=min(experts, MOST), chosen=chosen,
        expert_size=need("expert_feed_forward_length", usual), normalised=NORMALISED[architecture],
    )  # fmt: skip


def single(name: str, tensor: Tensor, mixture: Mixture | None) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensor itself, or a view of it for each expert.

    Args:
        mixture: the configuration's mixture of experts, which says how many experts a tensor has.
    """
    place, _, part = name.partition("experts.")
    if not part:
        yield name, tensor
        return
    experts = 0 if mixture is None else mixture.experts
    if part.endswith(".bias") and tensor.shape[:1] == (experts,):
        for expert in range(experts):
            row = tensor.data[expert]
            yield f"{place}experts.{expert}.{part}", Tensor(row, row.shape, tensor.kind)
        return
    if len(tensor.shape) != 3 or tensor.shape[0] != experts:
        raise InvalidModel(name, tensor.shape, f"give a matrix for each of {experts} experts")
    count, rows, columns = tensor.shape
    if part == "gate_up" and rows % 2:
        raise InvalidModel(name, tensor.shape, "gate and up have as many rows")
    # Gate and up may be stored one after the other.
    parts = part.split("_")
    data = tensor.data.reshape(count, len(parts), rows // len(parts), -1)
    for expert in range(count):
        for half, own in zip(data[expert], parts):
            shape = (len(half), columns)
            yield f"{place}experts.{expert}.{own}", Tensor(half, shape, tensor.kind)
