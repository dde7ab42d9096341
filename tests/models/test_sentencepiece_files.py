"""tokenizer.model of a folder gives the same ids as the sentencepiece package."""

from __future__ import annotations

import io
import json

import pytest
from tokenizer_strings import strings

from paradecode.core.errors import InvalidModel
from paradecode.models.folder_tokenizer import read_tokenizer

sentencepiece = pytest.importorskip("sentencepiece")


def trained(**changes):
    """Train a small vocabulary in Llama's form, and return it as bytes."""
    usual = {
        "model_type": "bpe", "vocab_size": 700, "byte_fallback": True, "num_threads": 1,
        "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
        "character_coverage": 0.98, "minloglevel": 9, "hard_vocab_limit": False,
        "user_defined_symbols": ["<tool>"], "allow_whitespace_only_pieces": True,
    }  # fmt: skip
    model = io.BytesIO()
    texts = [text for text in strings(400) if "\x00" not in text]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, **{**usual, **changes}
    )
    return model.getvalue()


@pytest.mark.parametrize("prefix", [True, False])
def test_ids_of_sentencepiece(tmp_path, prefix):
    data = trained(add_dummy_prefix=prefix)
    (tmp_path / "tokenizer.model").write_bytes(data)
    here, *_ = read_tokenizer(tmp_path)
    there = sentencepiece.SentencePieceProcessor(model_proto=data)
    for text in strings(300):
        if text and "<" not in text and "\x00" not in text:
            ids = here.encode(text, special=False)
            assert ids == there.encode(text), text
            assert here.decode(ids) == there.decode(ids)
    assert here.encode("a") == [there.bos_id(), *there.encode("a")]
    assert here.vocab_size == there.get_piece_size()


@pytest.mark.wide
def test_settings_beside_it(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(trained())
    said = {"add_bos_token": False, "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(said))
    here, *_ = read_tokenizer(tmp_path)
    assert (here.bos, here.eos, here.add_bos) == (1, 2, False)
    assert here.encode("a<tool>")[-1] == here.added["<tool>"]


@pytest.mark.wide
@pytest.mark.parametrize(
    "changes",
    [{"model_type": "unigram"}, {"remove_extra_whitespaces": True},
     {"normalization_rule_name": "nmt_nfkc"}],
)  # fmt: skip
def test_other_kinds_are_refused(tmp_path, changes):
    (tmp_path / "tokenizer.model").write_bytes(trained(**changes))
    with pytest.raises(InvalidModel, match="only BPE without normalization"):
        read_tokenizer(tmp_path)


@pytest.mark.wide
@pytest.mark.parametrize("cut", [0, 1, 7, 100, 1000, 3001])
def test_damaged_files(tmp_path, cut):
    (tmp_path / "tokenizer.model").write_bytes(trained()[:cut])
    with pytest.raises(InvalidModel):
        read_tokenizer(tmp_path)


@pytest.mark.wide
@pytest.mark.parametrize(
    "data",
    [
        b"\x0b", b"\x0a" + b"\xff" * 9 + b"\x01", b"\x0d\0", b"\x80" * 20, b"\x08\x01",
        b"\x0a\x02\x10\x05", b"\x0a\x0a\x08" + b"\xff" * 8 + b"\x01", b"\x0a\x02\x18\x63",
    ],
)  # fmt: skip
def test_bytes_that_are_no_vocabulary(tmp_path, data):
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(InvalidModel):
        read_tokenizer(tmp_path)
