"""Folders that are written from GGUF files hold the same model."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from gguf_writing import random_blocks, write_gguf

from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.llm import LLM
from paradecode.models.catalogue import open_model
from paradecode.models.chat import ChatTemplate
from paradecode.models.config import Rope
from paradecode.models.gguf_file import read_gguf
from paradecode.models.mixture import Mixture
from paradecode.models.safetensors_dir import read_folder
from paradecode.models.tiny import KINDS, tiny_checkpoint
from paradecode.models.weights import Kind
from paradecode_lab.training.unmasking.described import check_described

TEXTS = ("the thing", "in the <|im_end|> end", "  a\n\tb  ", "thinging 12 ü")


def quantised(path, kind, **changes):
    """Write a GGUF file of a tiny model whose matrices have 8 bits."""
    config, weights = tiny_checkpoint(kind)
    config = config.altered(**changes)
    stored, kinds = {}, {}
    for seed, (name, shape) in enumerate(config.tensors().items()):
        stored[name] = weights[name].float32() if name in weights else np.ones(shape, np.float32)
        if len(shape) == 2:
            stored[name], kinds[name] = random_blocks(*shape, Kind.Q8_0, seed), Kind.Q8_0
    write_gguf(path, config, stored, kinds)
    return path


@pytest.mark.parametrize(("kind", "tied"), [("llama", True), ("llama", False), ("qwen2", True),
                                            ("qwen3", False)])  # fmt: skip
def test_a_trained_gguf_file_becomes_a_folder(tmp_path, kind, tied):
    """Training a GGUF file for zero steps keeps the model: weights, tokens, texts and chats."""
    torch = pytest.importorskip("torch")
    from paradecode_lab.training.retraining.nested import NestedObjective

    path = quantised(tmp_path / "m.gguf", kind, tied_head=tied)
    base = open_model(path)
    NestedObjective(base, (1, 2), 0, torch.device("cpu")).export(tmp_path / "run")
    made = open_model(tmp_path / "run" / "model")
    assert made.config == replace(base.config, name="model")
    assert made.weights.keys() == base.weights.keys()
    for name, tensor in base.weights.items():
        np.testing.assert_array_equal(made.weights[name].float32(), tensor.float32(), name)
    for text in TEXTS:
        ids = base.tokenizer.encode(text)
        assert made.tokenizer.encode(text) == ids
        assert made.tokenizer.decode(ids) == base.tokenizer.decode(ids)
    chat = [{"role": "user", "content": "the <|im_end|> thing"}]
    assert made.chat_template.encode(made.tokenizer, chat) == base.chat_template.encode(
        base.tokenizer, chat
    )
    outputs = []
    for model in (path, tmp_path / "run" / "model"):
        with LLM(model, backend="torch", dtype="fp32", threads=1) as llm:
            (out,) = llm.complete([[5, 6, 7]], decoder=None, max_tokens=24, logprobs=2)
            outputs.append((out.token_ids, [one.logprob for one in out.logprobs]))
    assert outputs[0] == outputs[1]


def test_fewer_layers_and_the_files_own_template(tmp_path):
    torch = pytest.importorskip("torch")
    from paradecode_lab.training.retraining.nested import NestedObjective

    path = quantised(tmp_path / "m.gguf", "llama")
    base = replace(open_model(path), chat_template=ChatTemplate("{{ bos_token }}{{ eos_token }}!"))
    NestedObjective(base, (1,), 0, torch.device("cpu")).export(tmp_path)
    made = read_folder(tmp_path / "model")
    assert made.config.layers == 1
    assert not any(name.startswith("layers.1.") for name in made.weights)
    wanted = f"{base.tokenizer.token(base.tokenizer.bos)}{base.tokenizer.token(base.tokenizer.eos)}"
    chat = [{"role": "user", "content": "a"}]
    assert made.chat_template.render(chat) == wanted + "!"


def test_transformers_reads_such_a_folder(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from paradecode_lab.training.retraining.nested import NestedObjective

    path = quantised(tmp_path / "m.gguf", "qwen2")
    base = open_model(path)
    NestedObjective(base, (1, 2), 0, torch.device("cpu")).export(tmp_path)
    folder = tmp_path / "model"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        said = theirs(torch.tensor([[5, 6, 7]])).logits[0, -1].log_softmax(-1)
    with LLM(folder, backend="torch", dtype="fp32", threads=1) as llm:
        (out,) = llm.complete([[5, 6, 7]], decoder=None, max_tokens=1, logprobs=0)
    assert out.token_ids[0] == int(said.argmax())
    assert out.logprobs[0].logprob == pytest.approx(said.max().item(), abs=1e-4)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.encode("the thing") == base.tokenizer.encode("the thing")
    assert tokenizer.eos_token_id == base.tokenizer.eos


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize(
    "rope",
    [
        Rope(dim=16), Rope(dim=8), Rope(dim=16, scaling="linear", factor=4.0),
        Rope(dim=16, scaling="llama3", factor=8.0, original_context=64),
        Rope(dim=16, scaling="yarn", factor=8.0, original_context=64, attention_factor=1.3),
    ],
    ids=lambda rope: f"{rope.scaling} {rope.dim}",
)  # fmt: skip
def test_what_config_json_can_say(kind, rope):
    config = tiny_checkpoint(kind)[0]
    check_described(config.altered(rope=rope, bos_token=3, norm_eps=9.999999747378752e-06))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"mixture": Mixture(6, 2, 32)}, "mixture"),
        ({"rope": Rope(dim=16, factors=(1.0,) * 8)}, "rope.factors"),
        ({"mlp_bias": True, "qk_norm": True}, "mlp_bias"),
        ({"output_bias": True}, "qkv_bias"),
    ],
)
def test_what_it_cannot_say_is_refused(changes, field):
    config = tiny_checkpoint("llama")[0].altered(**changes)
    with pytest.raises(InvalidModel, match=f"{field}.*config.json"):
        check_described(config)


def test_sources(tmp_path):
    pytest.importorskip("torch")
    from paradecode_lab.training.unmasking.folder import source_of

    config, weights = tiny_checkpoint("llama")
    plain = {name: tensor.float32() for name, tensor in weights.items()}
    path = tmp_path / "m.gguf"
    write_gguf(path, config, plain)
    assert source_of(read_gguf(path)) == path
    with pytest.raises(InvalidInput, match=r"--model.*org/name.*GGUF file"):
        source_of(replace(read_gguf(path), source="org/name"))
    path = tmp_path / "f.gguf"  # A file of its own: the first one stays mapped.
    write_gguf(path, config, plain | {"rope_freqs": np.linspace(1, 8, 8, dtype=np.float32)})
    with pytest.raises(InvalidModel, match=r"rope\.factors"):
        source_of(read_gguf(path))


def test_the_default_models_folder(default_model, tmp_path):
    """The folder contains the model's tokenizer, which splits digits, and its template."""
    from paradecode.models.folder_tokenizer import read_tokenizer
    from paradecode_lab.training.unmasking.described import described

    for name, text in described(default_model).items():
        (tmp_path / name).write_text(text, "utf-8")
    tokenizer, template, _ = read_tokenizer(tmp_path)
    for text in (*TEXTS, "100 200", "<|im_start|>user\n"):
        assert tokenizer.encode(text) == default_model.tokenizer.encode(text)
    assert template == default_model.chat_template.sources
    assert (tokenizer.bos, tokenizer.eos) == (default_model.tokenizer.bos, 2)
    assert json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == [0, 2, 4]
