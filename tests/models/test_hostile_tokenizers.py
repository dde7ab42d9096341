"""Tokenizers of model files are checked before the library, which trusts them, reads them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from paradecode.core.errors import InvalidModel
from paradecode.models.catalogue import find
from paradecode.models.folder_tokenizer import read_tokenizer
from paradecode.models.metadata import Metadata
from paradecode.models.safetensors_dir import read_folder
from paradecode.models.text_stream import byte_in
from paradecode.models.tokenizer import Tokenizer
from paradecode.models.vocabulary import match, spelling

TINY = find("tiny-autoregressive").path
Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    weights = "model.safetensors"
    place = Path(shutil.copytree(TINY, tmp_path / "m", ignore=lambda *_: [weights]))
    (place / weights).symlink_to(TINY / weights)
    return place


def changed(folder: Path, change: Change) -> Path:
    said = json.loads((TINY / "tokenizer.json").read_text())
    change(said)
    (folder / "tokenizer.json").write_text(json.dumps(said))
    return folder


def part(name: str, *steps: dict[str, Any]) -> Change:
    """Return a change that replaces a component by a sequence of steps."""
    key = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}.get(name, "processors")
    return lambda said: said.update({name: {"type": "Sequence", key: list(steps)}})


def replace(old: str, new: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def template(*pieces: dict[str, Any], **tokens: list[int]) -> dict[str, Any]:
    special = {name: {"id": name, "ids": ids, "tokens": ["a"] * len(ids)}
               for name, ids in tokens.items()}  # fmt: skip
    return {"type": "TemplateProcessing", "single": list(pieces), "pair": [],
            "special_tokens": special}  # fmt: skip


TEXT = {"Sequence": {"id": "A", "type_id": 0}}
X = {"SpecialToken": {"id": "X", "type_id": 0}}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


@pytest.mark.parametrize("index", [552, 600, 1 << 20])
def test_ids_beyond_the_embedding(folder, index):
    """Huge ids are refused: the library makes a place for every id, and aborts at 2^31."""
    changed(folder, lambda said: said["model"]["vocab"].update({"ĠSam": index}))
    with pytest.raises(InvalidModel, match=f"ids up to {index}.*vocab_size 552"):
        read_folder(folder)
    changed(folder, lambda said: said.update(post_processor=template(X, TEXT, X=[index])))
    with pytest.raises(InvalidModel, match=f"ids up to {index}.*vocab_size 552"):
        read_folder(folder)


def test_ids_may_have_gaps(folder):
    """A published tokenizer can lack ids below its highest id."""
    changed(folder, lambda said: said["model"]["vocab"].pop("ĠSam"))
    assert read_folder(folder).tokenizer.highest == 551


@pytest.mark.parametrize(
    "change",
    [
        part("normalizer", *[replace("a", "a" * 8)] * 3),
        part("normalizer", replace("", "b" * 64, "Regex")),
        part("normalizer", *[{"type": "ByteLevel"}] * 8),
        part("normalizer", *[{"type": "StripAccents"}] * 33),
        part("normalizer", *[{"type": "Prepend", "prepend": "a" * 3000}]),
        part("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        part("pre_tokenizer", *[BYTES] * 4),
        part("pre_tokenizer", {"type": "FixedLength", "length": 0}),
        part("post_processor", *[template(*[TEXT] * 3)] * 5),
        lambda said: said.update(post_processor=template(X, TEXT)),
        lambda said: said.update(post_processor=template(X, TEXT, X=[1] * 65)),
        lambda said: said["model"].update(merges=[["a", "zz"]]),
    ],
    ids=range(12),
)  # fmt: skip
def test_steps_that_make_much_of_a_text_or_that_the_library_cannot_take(folder, change):
    with pytest.raises(InvalidModel, match="tokenizer"):
        read_tokenizer(changed(folder, change))


@pytest.mark.parametrize(
    "change",
    [
        part("normalizer", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")),
        part("normalizer", {"type": "NFKC"}, replace(" {2,}", " ", "Regex"), replace(" ", " ")),
        part("pre_tokenizer", {"type": "Punctuation", "behavior": "Contiguous"}, BYTES,
             {"type": "Digits", "individual_digits": True},
             {"type": "Split", "pattern": {"Regex": "[0-9]"}, "behavior": "Isolated",
              "invert": False}),
        part("post_processor", BYTES, template(X, TEXT, X=[0])),
        lambda said: said.update(normalizer={"type": "NFC"}, post_processor=template(TEXT)),
    ],
    ids=["llama-2", "t5", "falcon", "llama-3", "qwen"],
)  # fmt: skip
def test_steps_of_published_families(folder, change):
    assert read_tokenizer(changed(folder, change))[0].encode("a b") is not None


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda said: said.update(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"}),
         "hello"),
        (part("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "(a|aa|a?a)+$"},
                                "behavior": "Isolated", "invert": False}), "a" * 40 + "b"),
    ],
    ids=["unknown words", "a slow expression"],
)  # fmt: skip
def test_what_the_library_raises_at_a_text(folder, change, text):
    """The library's errors at a text, bare Exceptions or panics, become InvalidModel."""
    tokenizer = read_tokenizer(changed(folder, change))[0]
    assert tokenizer.encode("a")
    for long in (text, "a" * (1 << 14) + text):
        with pytest.raises(InvalidModel, match=r"tokenizer.*cannot read it"):
            tokenizer.encode(long)


def test_a_tokenizer_that_is_a_pipe_or_a_device(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to("/dev/null")
    with pytest.raises(InvalidModel, match="regular file"):
        read_tokenizer(folder)


@pytest.mark.parametrize(
    "steps",
    [[decoders.Fuse()], [decoders.ByteLevel(), decoders.ByteLevel()],
     [decoders.Replace("▁", "▁" * 9), decoders.ByteFallback(), decoders.Fuse()]],
)  # fmt: skip
def test_decoders_that_are_not_what_streams_read(steps):
    backend = Backend(models.BPE(vocab={"a": 0}, merges=[]))
    backend.decoder = decoders.Sequence(steps)
    with pytest.raises(InvalidModel, match="decoder"):
        Tokenizer(backend)


def fallback(*tokens: str) -> Tokenizer:
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return Tokenizer(backend)


@pytest.mark.parametrize(
    ("piece", "byte"),
    [("<0x0A>", 10), ("<0xfF>", 255), ("<0x+f>", 15), ("<0xzz>", None), ("<0x-1>", None),
     ("<0x f>", None), ("<0x１２>", None), ("<0x0A>\n", None), ("<0x1>", None)],
)  # fmt: skip
def test_which_pieces_are_bytes(piece, byte):
    """The library decides which pieces are bytes; all other pieces are text."""
    tokenizer = fallback("a", "b", piece)
    assert byte_in(piece) == byte
    assert spelling(tokenizer, 2) == (piece.encode() if byte is None else bytes([byte]))
    stream = tokenizer.stream()
    assert stream.push(2) + stream.flush() == tokenizer.decode([2])
    assert match(tokenizer, fallback("a", "b", "c"), 3, 3) is not None


def test_a_list_of_texts_holds_texts_alone() -> None:
    with pytest.raises(InvalidModel, match="list of strings"):
        Metadata(tokens=["a", None, {}]).texts("tokens")
