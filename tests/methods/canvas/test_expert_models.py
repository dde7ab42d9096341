"""LLaDA-MoE and LLaDA2 give the results that the published code computed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from canvases import OneForward, run
from expert_folders import EXPERT_FAMILIES, expert_model, write_expert_folder

from paradecode.backends import open_backend
from paradecode.backends.native.backend import NativeBackend, _mixture
from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.models.diffusion.llada2 import llada2
from paradecode.models.diffusion.llada_moe import llada_moe
from paradecode.models.metadata import Metadata
from paradecode.models.mixture import Mixture
from paradecode.models.safetensors_dir import read_weights


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: tmp_path_factory.mktemp(name) for name in EXPERT_FAMILIES}
    for name, folder in made.items():
        write_expert_folder(name, folder)
    return made


@pytest.mark.parametrize("dtype", ["auto", "q8", "q4", "bf16"])
@pytest.mark.parametrize("family", EXPERT_FAMILIES)
def test_a_row_s_experts_do_not_depend_on_its_neighbours(family: str, dtype: str) -> None:
    """A row has equal bits alone and among up to 100 rows, with 1 and 3 threads."""
    config, weights = expert_model(family)
    tokens = [(7 * i * i + i) % 90 for i in range(100)]
    size = config.block_length or 100
    for threads in (1, 3):
        backend = NativeBackend(config, weights, dtype=dtype, threads=threads)
        whole = OneForward(tokens, list(range(100)))
        run(backend, lambda whole=whole: whole)
        if threads == 1:
            first = whole.logits
        assert np.array_equal(whole.logits, first)
        for count in (1, 3, 17, 64, 65) if config.attention == "block" else ():
            seen = -(-count // size) * size
            part = OneForward(tokens[:seen], list(range(count)))
            run(backend, lambda part=part: part)
            assert np.array_equal(part.logits, first[:count])


def test_a_thread_that_comes_late_changes_nothing() -> None:
    """A thread that starts late changes no bit.

    The model has many layers, so that a late thread often finds the others layers ahead.
    """
    config, weights = expert_model("llada2", layers=16)
    one, two = (NativeBackend(config, weights, dtype="f32", threads=n) for n in (1, 2))
    for number in range(250):
        tokens = [(7 * number + i * i * (number % 5 + 1)) % 90 for i in range(4 + number % 30)]
        alone, shared = (OneForward(tokens, [len(tokens) - 1]) for _ in range(2))
        run(one, lambda alone=alone: alone)
        run(two, lambda shared=shared: shared)
        assert np.array_equal(alone.logits, shared.logits)


def test_a_late_thread_and_rows_that_are_sent_in_lots() -> None:
    """Rows that are sent to their experts in lots have the same bits as alone.

    Here a lot has 384 rows; there are 1 to 3 lots.
    """
    config, weights = expert_model("llada2", layers=4)
    config = replace(config, context_length=2048)
    one, two = (NativeBackend(config, weights, dtype="f32", threads=n) for n in (1, 2))
    for number in range(8):
        tokens = [(7 * number + i * i) % 90 for i in range(376 + 100 * number)]
        whole, shared = (OneForward(tokens, [0, len(tokens) - 1]) for _ in range(2))
        start = OneForward(tokens[:376], [0])
        for backend, asked in ((one, whole), (two, shared), (two, start)):
            run(backend, lambda asked=asked: asked)
        assert np.array_equal(whole.logits, shared.logits)
        assert np.array_equal(whole.logits[:1], start.logits)


def test_more_rows_than_a_prompt_s_forward_has() -> None:
    """A forward of far more rows than usual gives the rows of a shorter text the same bits."""
    pytest.importorskip("torch")
    config, weights = expert_model("llada2")
    config = replace(config, context_length=4096)
    tokens = [(7 * i * i + i) % 90 for i in range(2056)]
    native = NativeBackend(config, weights, dtype="f32", kv_dtype="f32", threads=2)
    rows = [0, 5, 1023, 1024, 1030, 2047, 2048, 2055]
    whole, start, exact = (
        OneForward(tokens[:end], [row for row in rows if row < end]) for end in (2056, 1024, 2056)
    )
    run(native, lambda: whole)
    run(native, lambda: start)
    run(open_backend("torch", config, weights, dtype="fp64", threads=1), lambda: exact)
    assert np.array_equal(whole.logits[:3], start.logits)
    np.testing.assert_allclose(whole.logits, exact.logits, rtol=0, atol=1e-3)


@pytest.mark.parametrize(("place", "value", "named"), [
    (0, 10**6, "experts"), (1, 99, "chosen"), (4, 0, "groups"), (4, 5, "groups"), (2, 0, "size"),
])  # fmt: skip
def test_the_core_checks_what_it_is_given(place, value, named, monkeypatch):
    config, weights = expert_model("llada2")
    fields = _mixture(config.mixture)
    fields[place] = value
    monkeypatch.setattr("paradecode.backends.native.backend._mixture", lambda mixture: fields)
    with pytest.raises(InvalidInput, match=named):
        NativeBackend(config, weights)


@pytest.mark.parametrize("family", EXPERT_FAMILIES)
def test_routing_by_the_book(family: str) -> None:
    """Results equal a NumPy reference that routes row by row and expert by expert."""
    torch = pytest.importorskip("torch")
    from paradecode.backends.torch.model import route

    mixture = expert_model(family)[0].mixture
    random = np.random.default_rng(4)
    logits = random.normal(size=(50, mixture.experts)) * 2
    bias = random.normal(size=mixture.experts) * 0.3
    weights, chosen = route(torch.tensor(logits), torch.tensor(bias), mixture)
    for row in range(50):
        if mixture.score == "softmax":
            scores = np.exp(logits[row]) / np.exp(logits[row]).sum()
        else:
            scores = 1 / (1 + np.exp(-logits[row]))
        ranked = scores + bias
        allowed = list(range(mixture.experts))
        if mixture.groups > 1:
            groups = np.split(np.arange(mixture.experts), mixture.groups)
            worth = [np.sort(ranked[group])[-2:].sum() for group in groups]
            best = np.argsort(worth)[-mixture.chosen_groups :]
            allowed = [expert for index in best for expert in groups[index]]
        wanted = sorted(allowed, key=lambda e: -ranked[e])[: mixture.chosen]
        assert chosen[row].tolist() == wanted
        weigh = (ranked if mixture.biased_weights else scores)[wanted]
        if mixture.normalised:
            weigh = weigh / weigh.sum()
        np.testing.assert_allclose(weights[row].numpy(), weigh * mixture.scale, rtol=1e-12)


MOE: dict[str, Any] = {
    "num_hidden_layers": 2, "moe_layer_freq": [1, 1], "num_experts": 8, "num_experts_per_tok": 2,
    "expert_intermediate_size": 32,
}  # fmt: skip
SECOND: dict[str, Any] = {
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 2,
    "topk_group": 1,
}  # fmt: skip


@pytest.mark.parametrize(("change", "named"), [
    ({"moe_layer_freq": [1]}, "moe_layer_freq"), ({"moe_layer_freq": None}, "moe_layer_freq"),
    ({"num_experts": 10**9}, "num_experts"), ({"num_experts": "8"}, "num_experts"),
    ({"num_experts_per_tok": 9}, "mixture.chosen"),
    ({"expert_intermediate_size": 0}, "expert_intermediate_size"),
    ({"shared_expert_intermediate_size": "wide"}, "shared_size"), ({"clip_qkv": 8.0}, "clip_qkv"),
])  # fmt: skip
def test_llada_moe_refuses(change: dict[str, Any], named: str) -> None:
    assert llada_moe(Metadata(MOE))["mixture"] == Mixture(8, 2, 32)
    with pytest.raises(InvalidModel, match=named):
        llada_moe(Metadata(MOE | change))


@pytest.mark.parametrize(("change", "named"), [
    ({"n_group": 3}, "mixture.groups"), ({"n_group": 8}, "mixture.groups"),
    ({"n_group": None}, "mixture.groups"), ({"topk_group": 3}, "mixture.chosen_groups"),
    ({"num_experts_per_tok": 5}, "mixture.chosen"),
    ({"num_shared_experts": -1}, "num_shared_experts"),
    ({"num_shared_experts": 10**6}, "mixture.shared_size"),
    ({"first_k_dense_replace": 1.5}, "first_k_dense_replace"),
    ({"first_k_dense_replace": 10**12}, "first_k_dense_replace"),
    ({"routed_scaling_factor": "2"}, "mixture.scale"),
    ({"routed_scaling_factor": float("nan")}, "mixture.scale"),
])  # fmt: skip
def test_llada2_refuses(change: dict[str, Any], named: str) -> None:
    assert llada2(Metadata(SECOND))["mixture"].scale == 2.5
    with pytest.raises(InvalidModel, match=named):
        llada2(Metadata(SECOND | change))


def test_damaged_folders(folders: Any, tmp_path: Path) -> None:
    for family, change in (
        ("llada2", {"num_attention_heads": 2}),  # The one tensor of queries, keys and values.
        ("llada2", {"num_experts": 8, "n_group": 2, "topk_group": 1}),  # More experts than said.
        ("llada-moe", {"num_experts": 16}),  # Fewer.
        ("llada-moe", {"moe_layer_freq": [1, 1, 1]}),
    ):
        folder = tmp_path / f"{family}-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        raw = json.loads((folders[family] / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(raw | change))
        (folder / "model.safetensors").symlink_to(folders[family] / "model.safetensors")
        with pytest.raises(InvalidModel):
            read_weights(folder)
