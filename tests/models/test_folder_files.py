"""Tokens, ends and templates of a folder come from every file that transformers reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from letters import FLAGS, letters

from paradecode.models.folder_tokenizer import read_tokenizer
from paradecode.models.safetensors_dir import read_folder
from paradecode.models.tiny import tiny_checkpoint
from tiny_folder import write_folder

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

ROWS = tiny_checkpoint("llama")[0].vocab_size
CHAT = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
USUAL = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"


TOOL = {**FLAGS, "content": "<tool>"}
CASES = {
    "added_tokens_decoder": {"tokenizer_config": {"added_tokens_decoder": {"36": TOOL}}},
    "special in added_tokens_decoder": {
        "tokenizer_config": {"added_tokens_decoder": {"36": {**TOOL, "special": True}}}},
    "strips": {"tokenizer_config": {"added_tokens_decoder": {
        "36": {**TOOL, "lstrip": True, "rstrip": True}}}},
    "several in another order": {"tokenizer_config": {"added_tokens_decoder": {
        "37": {**TOOL, "content": "<b>"}, "36": TOOL}}},
    "added_tokens": {"added_tokens": {"<tool>": 36, "<b>": 37}},
    "added_tokens and special_tokens_map": {
        "added_tokens": {"<tool>": 36}, "special_tokens_map": {"eos_token": "<tool>"}},
    "special_tokens_map": {"special_tokens_map": {
        "eos_token": {**FLAGS, "content": "</s>"}, "bos_token": "<s>"}},
    "special_tokens_map beside added_tokens_decoder": {
        "tokenizer_config": {"added_tokens_decoder": {"36": TOOL}, "eos_token": "<tool>"},
        "special_tokens_map": {"eos_token": "</s>"}},
    "the map replaces the config": {
        "tokenizer_config": {"eos_token": "<a>"}, "special_tokens_map": {"eos_token": "</s>"}},
    "additional_special_tokens": {
        "tokenizer_config": {"additional_special_tokens": ["<tool>", "<b>"]}},
    "extra_special_tokens": {
        "tokenizer_config": {"extra_special_tokens": {"image_token": "<tool>"}}},
    "a token by its own use": {"tokenizer_config": {"image_token": "<tool>", "eos_token": "</s>"}},
    "null tokens": {"tokenizer_config": {"eos_token": None, "bos_token": None, "pad_token": None}},
    "flags of a known token": {
        "tokenizer_config": {"eos_token": "<old>", "added_tokens_decoder": {
            "36": {**FLAGS, "content": "<old>", "special": True}}},
        "tokenizer": [{"id": 36, "content": "<old>"}]},
}  # fmt: skip
TEXTS = ("a<tool>b", "<s>a</s>", "x <tool> <b>y", "<a><old>b", "abc")


def folder_of(path: Path, said: dict) -> Path:
    write_folder(path, "llama")
    letters(path / "tokenizer.json", *said.get("tokenizer", ()))
    for name in ("tokenizer_config", "special_tokens_map", "added_tokens", "chat_template"):
        if name in said:
            (path / f"{name}.json").write_text(json.dumps(said[name]))
    for name, text in said.get("jinja", {}).items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text)
    return path


@pytest.mark.first(1)
@pytest.mark.parametrize("case", CASES)
def test_tokens_of_all_files(tmp_path, case):
    folder = folder_of(tmp_path, CASES[case])
    here, *_ = read_tokenizer(folder, ROWS)
    there = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    for text in TEXTS:
        ids = there.encode(text, add_special_tokens=False)
        assert here.encode(text, special=False) == ids, text
        plain = there.decode(ids, skip_special_tokens=True)
        assert here.decode(ids) == plain, text
    assert (here.bos, here.eos) == (there.bos_token_id, there.eos_token_id)
    special = {text for text, token in there.added_tokens_encoder.items()
               if there.added_tokens_decoder[token].special}  # fmt: skip
    assert here.control.keys() == special


TEMPLATES = {
    "in the settings": {"tokenizer_config": {"chat_template": "S" + USUAL}},
    "several in the settings": {"tokenizer_config": {"chat_template": [
        {"name": "default", "template": "D" + USUAL},
        {"name": "tool_use", "template": "T{{ tools | length }}" + USUAL},
        {"name": "rag", "template": "R" + USUAL}]}},
    "a file": {"jinja": {"chat_template.jinja": "F" + USUAL},
               "tokenizer_config": {"chat_template": "S" + USUAL}},
    "a file before several": {
        "jinja": {"chat_template.jinja": "F" + USUAL},
        "tokenizer_config": {"chat_template": [{"name": "default", "template": "D" + USUAL},
                                               {"name": "tool_use", "template": "T" + USUAL}]}},
    "a folder": {"jinja": {"chat_template.jinja": "F" + USUAL,
                           "additional_chat_templates/tool_use.jinja": "T" + USUAL,
                           "additional_chat_templates/rag.jinja": "R" + USUAL}},
}  # fmt: skip


@pytest.mark.first(1)
@pytest.mark.parametrize("case", TEMPLATES)
def test_templates_of_all_files(tmp_path, case):
    said = TEMPLATES[case]
    settings = {"eos_token": "</s>", **said.get("tokenizer_config", {})}
    folder = folder_of(tmp_path, {**said, "tokenizer_config": settings})
    here = read_folder(folder).chat_template
    there = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    for tools in (None, TOOLS):
        expected = there.apply_chat_template(CHAT, tools=tools, tokenize=False)
        assert here.render(CHAT, False, tools=tools) == expected
    for name in ("tool_use", "rag"):
        if isinstance(there.chat_template, dict) and name in there.chat_template:
            expected = there.apply_chat_template(
                CHAT, tools=TOOLS, chat_template=name, tokenize=False
            )
            assert here.named[name].render(CHAT, False, tools=TOOLS) == expected
    if "rag" in here.named:
        assert here.render(CHAT, False, documents=[{"text": "x"}]).startswith("R")


@pytest.mark.wide
def test_the_template_of_a_processor_comes_last(tmp_path):
    said = {
        "chat_template": {"chat_template": "P" + USUAL},
        "tokenizer_config": {"eos_token": "</s>"},
    }
    folder = folder_of(tmp_path, said)
    assert read_folder(folder).chat_template.render(CHAT).startswith("P")
    said["tokenizer_config"]["chat_template"] = "S" + USUAL
    assert read_folder(folder_of(tmp_path, said)).chat_template.render(CHAT).startswith("S")


@pytest.mark.parametrize("where", ["tokenizer.json", "the settings"])
def test_a_token_without_a_row_is_left_out(tmp_path, where):
    """An added token without an embedding row stays text, such as a fine-tune's [PAD]."""
    pad = {**FLAGS, "content": "<pad>", "special": True}
    said = {"tokenizer_config": {"eos_token": "a", "pad_token": "<pad>"}}
    if where == "tokenizer.json":
        said["tokenizer"] = [{**pad, "id": 36}]
    folder = folder_of(tmp_path, said)
    with pytest.warns(UserWarning, match=r"'<pad>' is left out: the model has only 36"):
        tokenizer, *_ = read_tokenizer(folder, 36)
    assert len(tokenizer.encode("<pad>", special=False)) == 5
    assert tokenizer.highest == 35


ENDS = [None, {}, {"eos_token_id": None}, {"eos_token_id": 7}, {"eos_token_id": [7, 5]},
        {"eos_token_id": 7, "temperature": 0.6, "top_p": 0.9, "do_sample": True,
         "repetition_penalty": 1.5, "max_new_tokens": 3, "bos_token_id": 9}]  # fmt: skip


@pytest.mark.first(1)
@pytest.mark.parametrize("config", [5, [5, 6], None])
@pytest.mark.parametrize("generation", ENDS)
def test_ends_are_those_of_generate(tmp_path, config, generation):
    """If transformers would never end a text, the next file that names an end is read."""
    folder = folder_of(tmp_path, {"tokenizer_config": {"eos_token": "<e>"}})
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**about, "model_type": "llama", "eos_token_id": config})
    )
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    said, read = model.generation_config.eos_token_id, read_folder(folder)
    said = said or config or read.tokenizer.eos
    assert {*read.config.eos_tokens} == {*(said if isinstance(said, list) else [said])}
    assert read.tokenizer.eos_tokens == read.config.eos_tokens
