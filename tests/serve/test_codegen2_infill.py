"""CodeGen2's form of filling a gap: its marks, and the token that ends what was filled in."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from paradecode import LLM
from paradecode.models.text_stream import byte_characters
from paradecode.serve.protocol.completions import between
from paradecode.serve.worker.__main__ import fim_marks

MARKS = ["<|endoftext|>", "<mask_1>", "<sep>", "<eom>"]


def write(folder: Path, marks: list[str]) -> Path:
    """Write a tiny CodeGen whose tokens are bytes and ``marks``."""
    transformers = pytest.importorskip("transformers")
    config = transformers.CodeGenConfig(
        vocab_size=260, n_embd=64, n_layer=1, n_head=4, n_positions=256, rotary_dim=8,
        bos_token_id=256, eos_token_id=256,
    )  # fmt: skip
    transformers.CodeGenForCausalLM(config).save_pretrained(folder)
    letters = {token: index for index, token in enumerate(byte_characters())}
    tokenizer = Tokenizer(models.BPE(letters, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark) for mark in marks])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_a_gap_is_asked_for_and_ends_as_codegen2_was_trained(tmp_path: Path) -> None:
    llm = LLM(write(tmp_path, MARKS), decoder=None)
    text, eom = llm.tokenizer.token_id, llm.tokenizer.token_id("<eom>")
    assert eom is not None
    prompt = between(fim_marks(text), "a = ", "\n", "1").text or ""
    assert prompt == "a = <mask_1>\n<|endoftext|><sep><mask_1>1"
    ids = [*map(text, ["a", "Ġ", "=", "Ġ", "<mask_1>", "Ċ", *MARKS[:1], "<sep>", "<mask_1>", "1"])]
    assert llm.tokenizer.encode(prompt) == ids
    (done,) = llm.complete([prompt], max_tokens=5, logit_bias={eom: 100.0})
    assert (done.finish_reason, done.text) == ("stop", "")
    assert {256, eom} <= {*llm.config.eos_tokens}


def test_a_codegen_without_its_tokens_fills_no_gap(tmp_path: Path) -> None:
    llm = LLM(write(tmp_path, [MARKS[0], "<mask_1>", "<sep>"]), decoder=None)
    assert fim_marks(llm.tokenizer.token_id) == []
    assert llm.config.eos_tokens == (256,)
