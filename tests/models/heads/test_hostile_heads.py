"""Damaged heads, and heads with unsupported settings, give an error that names the cause."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
from gguf import GGUFWriter
from safetensors.numpy import load_file, save_file

from paradecode.core.errors import InvalidModel
from paradecode.core.head import Head
from paradecode.models.config import Rope, uniform
from paradecode.models.heads import build_head, read_head
from paradecode.testing.draft_heads import KINDS, random_head

CONFIG = uniform("t", "llama", 40, 16, 8, 2, 1, 8, 8, rope=Rope(dim=8))
Change = Callable[[dict[str, np.ndarray], dict[str, Any]], Any]


def nothing(name: str) -> np.ndarray:
    raise InvalidModel(name, None, "this head needs nothing of the target")


def opened(folder: Path) -> Head:
    return build_head(read_head(folder), CONFIG, nothing)


def changed(kind: str, folder: Path, change: Change) -> Path:
    random_head(kind, CONFIG, folder)
    tensors = load_file(folder / "model.safetensors")
    said = json.loads((folder / "config.json").read_text())
    change(tensors, said)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(said))
    return folder


def sizes(said: dict[str, Any]) -> dict[str, Any]:
    return said.get("transformer_layer_config", said)


@pytest.mark.first(6)
@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_is_missed_by_name_or_not_needed(kind: str, tmp_path: Path) -> None:
    random_head(kind, CONFIG, tmp_path)
    names = list(load_file(tmp_path / "model.safetensors"))
    refused = 0
    for name in names:
        changed(kind, tmp_path, lambda t, said, name=name: t.pop(name))
        try:
            opened(tmp_path)
        except InvalidModel:
            refused += 1
    assert refused > len(names) / 3


@pytest.mark.first(6)
@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_of_another_shape_is_refused(kind: str, tmp_path: Path) -> None:
    random_head(kind, CONFIG, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name, tensor in tensors.items():
        if name.startswith("verifier_"):
            continue  # Some heads do without.
        if name == "d2t" and "lm_head.weight" not in tensors:
            continue  # Any choice of the target's rows is one.
        fewer = tensor[:0] if name.endswith(".1.weight") else tensor[:-1]  # Medusa may guess fewer.
        for other in (fewer, tensor[..., None], tensor.repeat(2, axis=-1), tensor[:0]):
            changed(kind, tmp_path, lambda t, said, n=name, o=other: t.update({n: o.copy()}))
            with pytest.raises(InvalidModel):
                opened(tmp_path)


@pytest.mark.first(6)
@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_is_checked(kind: str, tmp_path: Path) -> None:
    random_head(kind, CONFIG, tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    for name in {*said, *sizes(said)}:
        for value in (0, -1, 1 << 40, 1e300, "x", [], [1, 2], {}, {"rope_type": "x"}, [[]], True):

            def change(t: Any, config: Any, name: str = name, value: Any = value) -> None:
                (config if name in config else sizes(config))[name] = value

            changed(kind, tmp_path, change)
            with suppress(InvalidModel):  # Nothing else is raised.
                opened(tmp_path)


def test_files_that_end_early(tmp_path: Path) -> None:
    random_head("eagle3", CONFIG, tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    for length in (0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "model.safetensors").write_bytes(whole[:length])
        with pytest.raises(InvalidModel, match="damaged"):
            opened(tmp_path)


def test_shards_outside_of_the_folder_are_refused(tmp_path: Path) -> None:
    random_head("mtp", CONFIG, tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "a.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"mtp.fc.weight": "a.safetensors"}}))
    assert opened(tmp_path).kind == "mtp"
    index.write_text(json.dumps({"weight_map": {"mtp.fc.weight": "../a.safetensors"}}))
    with pytest.raises(InvalidModel, match="shards"):
        opened(tmp_path)


def other(name: str, *shape: int, dtype: str = "f4") -> Change:
    return lambda t, said: t.update({name: np.zeros(shape, dtype)})


def setting(**values: Any) -> Change:
    return lambda t, said: said.update(values)


def sight(**values: Any) -> Change:
    return lambda t, said: sizes(said).update(values)


SINK = "layers.0.self_attn.sinks"


@pytest.mark.parametrize(("kind", "change", "named"), [
    ("eagle", other(SINK, 2), SINK),
    ("eagle3", other("layers.3.self_attn.q_proj.weight", 8, 16), "layers.3"),
    ("eagle", other("layers.0.mlp.experts.0.up_proj.weight", 8, 16), "experts"),
    ("mtp", other("mtp.layers.0.self_attn.kv_a_proj_with_mqa.weight", 8, 16), "kv_a_proj"),
    ("mtp", setting(model_type="qwen3_next"), "q_proj"),
    ("eagle3", lambda t, said: t.pop("d2t"), None),
    ("eagle3", lambda t, said: (t.pop("d2t"), other("lm_head.weight", 41, 16)(t, said)),
     "lm_head.weight"),
    ("eagle3", lambda t, said: t.update({"d2t": t["d2t"] - (1 << 62)}), "d2t"),
    ("eagle3", lambda t, said: t.update({"d2t": t["d2t"].astype("f4")}), "d2t"),
    ("eagle3", lambda t, said: t.update({"d2t": np.zeros_like(t["d2t"]) + 21}), "d2t"),
    ("eagle3", lambda t, said: t.update({"embed_tokens.weight": t["embed_tokens.weight"][:39]}),
     "embed_tokens.weight"),
    ("eagle3", setting(fc_norm=True), "fc_norm"),
    ("eagle3", setting(norm_before_fc=True), "input_norm"),
    ("eagle3", setting(hidden_act="gelu"), "hidden_act"),
    ("eagle3", setting(layer_types=["sliding_attention"]), "layer_types"),
    ("eagle3", setting(num_key_value_heads=3, num_attention_heads=4), "num_key_value_heads"),
    ("eagle3", setting(rope_scaling={"rope_type": "spiral"}), "rope_type"),
    ("eagle3", setting(rope_scaling={"rope_type": "llama3", "factor": 8.0}), "max_position"),
    ("eagle3", setting(rope_scaling={"rope_type": "yarn", "factor": -1.0,
                                     "original_max_position_embeddings": 32},
                       max_position_embeddings=64), "factor"),
    ("p-eagle", lambda t, said: said.pop("mask_token_id"), "mask_token_id"),
    ("p-eagle", setting(mask_token_id=40), "embed_tokens.weight"),
    ("dflash", setting(mask_token_id=40), "embed_tokens.weight"),
    ("dflash", setting(block_size=1), "block_size"),
    ("dflash", setting(block_size=1 << 20), "block_size"),
    ("dflash", lambda t, said: said.pop("aux_hidden_state_layer_ids"), "layer_ids"),
    ("dflash", setting(aux_hidden_state_layer_ids=[1, 1 << 70]), "layer_ids"),
    ("dflash", setting(aux_hidden_state_layer_ids=[1] * 65), "layer_ids"),
    ("dflash", sight(layer_types=["sliding_attention"] * 2), "sliding_window"),
    ("dflash", sight(layer_types=["sliding_attention"], sliding_window=9), "layer_types"),
    ("dflash", sight(layer_types=["full_attention", "chunked"]), "layer_types"),
    ("dflash", sight(layer_types=["sliding_attention"] * 2, sliding_window=4), "sliding_window"),
    ("dflash", setting(dflash_config={"use_swa": True}), "sliding_window"),
    ("dflash", setting(dflash_config={"attention_sink_bias": True}), "attention_sink_bias"),
    ("dflash", setting(final_logit_softcapping=20.0), "final_logit_softcapping"),
    ("dspark", setting(markov_head_type="rnn"), "markov_head_type"),
    ("dspark", other("markov_head.joint_proj.weight", 9, 22), "joint_proj"),
    ("dspark", setting(speculators_config={"verifier": {"name_or_path": 3}}), "name_or_path"),
    ("clover", lambda t, said: said["clover"].update(num_heads=4), "clover.num_heads"),
    ("clover-2", lambda t, said: said["clover"].update(num_layers=3), "clover.num_layers"),
    ("clover-2", setting(clover=[]), "clover"),
    ("chimera", lambda t, said: said["chimera"].update(num_heads=4), "chimera.num_heads"),
    ("chimera", lambda t, said: said.pop("chimera"), "num_heads"),
    ("falcon", lambda t, said: t.pop("lstm.weight_ih_l1"), "lstm.weight_ih_l1"),
    ("falcon", lambda t, said: said.pop("k_mask"), "k_mask"),
    ("falcon", setting(k_mask=17), "k_mask"),
    ("medusa", other("0.2.linear.weight", 16, 16), "0.2.linear"),
])  # fmt: skip
def test_what_is_not_known_is_named(
    kind: str, change: Change, named: str | None, tmp_path: Path
) -> None:
    folder = changed(kind, tmp_path, change)
    if named is None:
        assert opened(folder).to_target is None
        return
    with pytest.raises(InvalidModel) as error:
        opened(folder)
    assert named in error.value.field


def holds(folder: Path, settings: dict[str, Any], **tensors: np.ndarray) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(("name", "tensors"), [
    ("prompt_embeddings", {"prompt_embeddings": np.zeros((), "f4")}),
    ("a_scale", {"a": np.zeros((), "i1"), "a_scale": np.ones((1, 1), "f4")}),
    ("a_scale", {"a": np.zeros(3, "i1"), "a_scale": np.ones((3, 1), "f4")}),
])  # fmt: skip
def test_numbers_in_the_place_of_matrices(name: str, tensors: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidModel) as error:
        read_head(holds(tmp_path, {}, **tensors))
    assert error.value.field == name


def test_a_tensor_has_numbers(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=r"fc\.weight.*must have numbers"):
        read_head(holds(tmp_path, {}, **{"fc.weight": np.zeros((9, 0), "f4")}))


def pickled(folder: Path, value: object) -> Path:
    torch = pytest.importorskip("torch")
    (folder / "config.json").write_text("{}")
    torch.save(value, folder / "pytorch_model.bin")
    return folder


def test_pickled_tensors_that_are_larger_than_their_file(tmp_path: Path) -> None:
    """Pickled tensors that are larger than their file are refused.

    A pickled tensor may repeat one stored number any number of times.
    """
    torch = pytest.importorskip("torch")
    with pytest.raises(InvalidModel, match="larger than the file"):
        read_head(pickled(tmp_path, {"x": torch.zeros(1).expand(1 << 16)}))
    one = torch.zeros(1 << 12)
    with pytest.raises(InvalidModel, match="larger than the file"):
        read_head(pickled(tmp_path, {str(n): one[:] for n in range(9)}))


@pytest.mark.parametrize("many", [1, 2])
def test_pickled_tensors_may_share_their_numbers(many: int, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    one = torch.zeros(1 << 12)
    with pytest.raises(InvalidModel, match="folder of EAGLE"):  # Read, but no head.
        read_head(pickled(tmp_path, {str(n): one for n in range(many)}))


def test_pickled_parts_that_are_compressed(tmp_path: Path) -> None:
    """Compressed parts of a pickled file are refused.

    PyTorch would decompress such a file to a thousand times its size.
    """
    torch = pytest.importorskip("torch")
    file = pickled(tmp_path, {"x": torch.zeros(1 << 12)}) / "pytorch_model.bin"
    with ZipFile(file) as parts:
        every = {part.filename: parts.read(part) for part in parts.infolist()}
    with ZipFile(file, "w", ZIP_DEFLATED) as parts:
        for name, data in every.items():
            parts.writestr(name, data)
    with pytest.raises(InvalidModel, match="compressed"):
        read_head(tmp_path)


def test_pickles_of_something_else(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    for value in ([torch.zeros(1)], {0: torch.zeros(1)}, {"x": 1}, {"x": torch.zeros(1).cfloat()}):
        with pytest.raises(InvalidModel, match="give a sound file"):
            read_head(pickled(tmp_path, value))


def draft(file: Path, **tensors: np.ndarray) -> Path:
    """Write an EAGLE-3 GGUF draft with these tensors."""
    writer = GGUFWriter(file, "eagle3")
    writer.add_embedding_length(16)
    writer.add_head_count(2)
    writer.add_array("eagle3.target_layers", [1, 8])
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize(("name", "tensors"), [
    ("d2t", {"d2t": np.zeros((2, 4), "i8")}),
    ("layers.0.self_attn.q_proj.weight", {"fc.weight": np.zeros((16, 32), "f4")}),
])  # fmt: skip
def test_gguf_drafts_that_lack_a_tensor_or_have_an_odd_one(
    name: str, tensors: Any, tmp_path: Path
) -> None:
    with pytest.raises(InvalidModel) as error:
        read_head(draft(tmp_path / "a.gguf", **tensors))
    assert error.value.field == name
