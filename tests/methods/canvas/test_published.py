"""A published checkpoint of every family opens by its path, without a flag, and decodes."""

import json
import shutil
from pathlib import Path

import pytest
from published import CHECKPOINTS, write_published

from paradecode import LLM
from paradecode.core.errors import InvalidModel
from paradecode.models.catalogue import open_model

BLOCKS_OF_4 = ("block", 4, 151669, False, "threshold(threshold=0.85,cache=prefix)")
FACTS = {
    "LLaDA-8B-Instruct": ("full", 0, 126336, False, "threshold(block_length=32)"),
    "LLaDA-1.5": ("full", 0, 126336, False, "threshold(block_length=32)"),
    "Dream-v0-Instruct-7B": ("full", 0, 151666, True, "threshold(block_length=32)"),
    "DiffuCoder-7B-cpGRPO": ("full", 0, 151666, True, "threshold(block_length=32)"),
    "SDAR-1.7B-Chat": BLOCKS_OF_4, "SDAR-8B-Chat-b16": ("block", 16, *BLOCKS_OF_4[2:]),
    "SDAR-4B-Chat-b64": ("block", 64, *BLOCKS_OF_4[2:]), "SDAR-30B-A3B-Chat": BLOCKS_OF_4,
    "LLaDA-MoE-7B-A1B-Instruct": ("full", 0, 156895, False, "threshold(block_length=32)"),
    "LLaDA2.0-mini": ("block", 32, 156895, False, "threshold(threshold=0.95,cache=prefix)"),
    "LLaDA2.1-mini": ("block", 32, 156895, False, "edit(threshold=0.95,least=0.9,cache=prefix)"),
    "WeDLM-8B-Instruct": ("causal", 0, 151665, False, "wedlm"),
    "WeDLM-7B-Instruct": ("causal", 0, 151665, False, "wedlm"),
    "Qwen3-0.6B-diffusion-mdlm-v0.1": ("full", 0, 151669, False, "threshold(block_length=32)"),
    "Qwen3-0.6B-diffusion-bd3lm-v0.1": ("block", 32, 151669, False, "threshold(cache=prefix)"),
    "Fast_dLLM_v2_1.5B": ("block", 32, 151665, True, "threshold(blocks=lead,cache=prefix)"),
}  # fmt: skip
TURN_ENDS = {126336: 126348, 156895: 156900}
"""Maps a family's mask token to the token that ends its turns; Qwen's is 151645."""


def test_every_checkpoint_has_its_facts() -> None:
    assert FACTS.keys() == CHECKPOINTS.keys()


@pytest.mark.first(4)
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_it_opens_and_decodes_without_a_flag(name: str, tmp_path: Path) -> None:
    with LLM(write_published(name, tmp_path), threads=1) as llm:
        config = llm.config
        facts = (config.attention, config.block_length, config.mask_token, config.shift)
        assert (*facts, str(llm.decoder)) == FACTS[name]
        answer = llm.complete("in the end", max_tokens=12, ignore_eos=True)
        assert len(answer.token_ids) == 12
        assert config.mask_token not in answer.token_ids
        assert TURN_ENDS.get(config.mask_token or 0, 151645) in config.eos_tokens
        assert config.mask_token not in config.eos_tokens


def test_blocks_pay_for_the_prompt_once(tmp_path: Path) -> None:
    with LLM(write_published("SDAR-1.7B-Chat", tmp_path), threads=1) as llm:
        prompt = "the end of it in the middle " * 6
        usual = llm.complete(prompt, max_tokens=16, ignore_eos=True)
        plain = llm.complete(
            prompt, max_tokens=16, ignore_eos=True, decoder="threshold(threshold=0.85)"
        )
        assert usual.token_ids == plain.token_ids
        assert usual.stats.rows < plain.stats.rows / 5


def test_a_block_length_is_never_guessed(tmp_path: Path) -> None:
    known = write_published("SDAR-1.7B-Chat", tmp_path)
    folder = known.rename(tmp_path / "my-own")
    with pytest.raises(InvalidModel, match=r"block_length.*config.json does not say it.*add"):
        open_model(folder)
    raw = json.loads((folder / "config.json").read_text())
    for change, length in (
        ({"block_length": 8}, 8),
        ({"block_size": 16}, 16),
        ({"_name_or_path": "JetLM/SDAR-4B-Chat-b32"}, 32),
    ):
        (folder / "config.json").write_text(json.dumps(raw | change))
        assert open_model(folder).config.block_length == length
    (folder / "config.json").write_text(json.dumps(raw))
    cached = tmp_path / "hub" / "models--JetLM--SDAR-8B-Chat-b64" / "snapshots" / "0123abc"
    shutil.copytree(folder, cached)
    assert open_model(cached).config.block_length == 64


def test_full_or_block_attention_is_never_guessed(tmp_path: Path) -> None:
    folder = write_published("Qwen3-0.6B-diffusion-bd3lm-v0.1", tmp_path)
    folder = folder.rename(tmp_path / "my-own")
    with pytest.raises(InvalidModel, match=r"attention.*mdlm.*bd3lm"):
        open_model(folder)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"attention": "full"}))
    assert open_model(folder).config.attention == "full"


def test_a_mask_that_no_file_names(tmp_path: Path) -> None:
    folder = write_published("Qwen3-0.6B-diffusion-mdlm-v0.1", tmp_path)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["mask_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(InvalidModel, match="mask_token_id"):
        open_model(folder)


TEXTS = (
    "in the end", " the  thing\n\n\tin 123", "caf\u0065\u0301 na\u00efve", "don't THE 'S",
    "\u4f60\u597d", "\U0001f600 x",
)  # fmt: skip


def test_vocab_and_merges_are_the_library_s_tokenizer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = write_published("Dream-v0-Instruct-7B", tmp_path)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    ours = open_model(folder).tokenizer
    (folder / "tokenizer_config.json").write_text(
        json.dumps({**settings, "tokenizer_class": "Qwen2Tokenizer"})
    )
    theirs = transformers.Qwen2Tokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False), text
        assert ours.decode(ids) == theirs.decode(ids), text
    turn = "<|im_start|>user\nthe<|im_end|>"
    ids = ours.encode(turn)
    assert (ids[0], ids[-1]) == (151644, 151645)
    assert ours.decode(ids, skip_special=False) == turn
    assert ours.encode("<|mask|>") == [151666]
    assert ours.encode("<|mask|>", parse_special=False) != [151666]


@pytest.mark.parametrize(("file", "text", "named"), [
    ("tokenizer_config.json", '{"tokenizer_class": "XLNetTokenizer"}', "tokenizer_class"),
    ("merges.txt", "#version: 0.2\nq zz\n", "does not fit vocab.json"),
    ("vocab.json", "[]", "must hold a JSON object"),
    ("tokenizer_config.json", '{"tokenizer_class": "DreamTokenizer", '
     '"added_tokens_decoder": {"x": {}}}', "added_tokens_decoder"),
])  # fmt: skip
def test_damaged_tokenizer_files(file: str, text: str, named: str, tmp_path: Path) -> None:
    folder = write_published("Dream-v0-Instruct-7B", tmp_path)
    (folder / file).write_text(text)
    with pytest.raises(InvalidModel, match=named):
        open_model(folder)
