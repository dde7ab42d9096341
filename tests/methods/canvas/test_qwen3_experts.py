"""Qwen3 with experts, causal or in SDAR's blocks, has the logits of transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from canvases import BACKENDS, OneForward, backend_of, run
from safetensors.numpy import save_file

from paradecode.core.errors import InvalidModel
from paradecode.models.metadata import Metadata
from paradecode.models.mixture import Mixture, qwen3_moe

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TOKENS = [(11 * i * i + 3 * i) % 60 for i in range(21)]
BLOCK = 4
SHAPES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 80, "moe_intermediate_size": 24,
    "num_experts": 7, "num_experts_per_tok": 3, "norm_topk_prob": True, "decoder_sparse_step": 1,
    "mlp_only_layers": [1], "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    "max_position_embeddings": 128,
}  # fmt: skip


@pytest.fixture(scope="module", params=["causal", "block"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the folder of a random model, and transformers' logits [tokens, V]."""
    torch.manual_seed(3)
    config = transformers.Qwen3MoeConfig(
        **SHAPES, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}
    )
    config._attn_implementation = config._experts_implementation = "eager"
    model = transformers.Qwen3MoeForCausalLM(config).eval().double()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            scale = 2.0 / weight.shape[-1] ** 0.5 if weight.ndim > 1 else 0.2
            noise = torch.randn(weight.shape).double().float().double()
            weight.copy_((scale * noise + ("norm" in name)).float().double())
    folder = tmp_path_factory.mktemp(request.param)
    _save(model, folder, request.param)
    at = torch.arange(len(TOKENS))
    if request.param == "block":
        at = at // BLOCK
    unseen = at[None, :] > at[:, None]
    mask = torch.zeros(unseen.shape, dtype=torch.float64).masked_fill(unseen, -torch.inf)
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS]), attention_mask=mask[None, None]).logits[0]
    return folder, logits.numpy()


def _save(model: Any, folder: Path, kind: str) -> None:
    """Save the model as the hub has such models: a tensor for each expert."""
    tensors: dict[str, Any] = {}
    for name, weight in model.state_dict().items():
        values, (place, _, part) = weight.numpy().astype(np.float32), name.partition("experts.")
        if part in ("gate_up_proj", "down_proj"):
            for expert, rows in enumerate(values):
                whole = {"down_proj": rows} if part == "down_proj" else dict(
                    zip(("gate_proj", "up_proj"), np.split(rows, 2), strict=True)
                )  # fmt: skip
                for own, matrix in whole.items():
                    tensors[f"{place}experts.{expert}.{own}.weight"] = np.ascontiguousarray(matrix)
        else:
            tensors[name] = values
    save_file(tensors, folder / "model.safetensors")
    arch = "SDARMoeForCausalLM" if kind == "block" else "Qwen3MoeForCausalLM"
    more = {"mask_token_id": 63, "block_size": BLOCK} if kind == "block" else {}
    about = {**SHAPES, "architectures": [arch], "rope_theta": 10000.0, "eos_token_id": 62, **more}
    (folder / "config.json").write_text(json.dumps(about))


@pytest.mark.parametrize("kind", BACKENDS)
def test_logits(kind: str, made: Any) -> None:
    folder, wanted = made
    asked = OneForward(TOKENS, list(range(len(TOKENS))))
    run(backend_of(kind, folder), lambda: asked)
    assert wanted.std() > 1
    # transformers computes norms, angles and the router's softmax in float32.
    np.testing.assert_allclose(asked.logits, wanted, rtol=0, atol=3e-4)


@pytest.mark.parametrize(("change", "named"), [
    ({"num_experts": 10**9}, "num_experts"), ({"num_experts_per_tok": 9}, "mixture.chosen"),
    ({"moe_intermediate_size": None}, "moe_intermediate_size"),
    ({"decoder_sparse_step": 0}, "decoder_sparse_step"),
    ({"norm_topk_prob": "yes"}, "norm_topk_prob"),
])  # fmt: skip
def test_refusals(change: dict[str, Any], named: str) -> None:
    read = qwen3_moe(Metadata(SHAPES))
    assert read == {"mixture": Mixture(7, 3, 24, normalised=True), "dense": frozenset({1})}
    with pytest.raises(InvalidModel, match=named):
        qwen3_moe(Metadata(SHAPES | change))
