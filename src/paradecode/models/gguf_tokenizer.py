"""Build the tokenizer that a GGUF file describes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from paradecode.core.errors import InvalidModel
from paradecode.models.gguf_header import DAMAGED, Header
from paradecode.models.metadata import Metadata
from paradecode.models.pre_tokenizers import BEGIN, CHARACTERS, COMPOSED, PRE_TOKENIZERS, WHOLE
from paradecode.models.sentencepiece_merges import merges_of
from paradecode.models.tokenizer import Tokenizer
from paradecode.models.tokenizer_library import library_errors

MAX_PIECE = 128
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4

_ENDS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<|end|>",
    "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>", "</s>", "<EOT>", "_<EOT>",
    "[EOT]", "[EOS]", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[",
)  # fmt: skip
"""Tokens that llama.cpp treats as the end of a turn or a text, whatever their type."""
_INFILL = {
    "pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "sep": ("<|file_sep|>",),
}
"""Tokens between files and for infilling, by the key ``fim_..._token_id``. They end a text, too."""
_FILL = (
    "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
    "<|code_prefix|>", "<|prefix|>", "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>",
    "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>", "<|suffix|>", "<|fim_middle|>",
    "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>",
    "<|middle|>",
)  # fmt: skip
_KNOWN = frozenset((*_ENDS, *_FILL)).union(*_INFILL.values())
"""Tokens that llama.cpp treats as control tokens, whatever their type."""
_IF_CONTROL = ("<|role_end|>", "<|dlm_pad|>")
END_OF_TURN = (*_ENDS, *_IF_CONTROL)
"""Control tokens that end a turn or a text of any model, even if its files do not say so."""


def tokenizer_from_header(header: Header) -> Tokenizer:
    """Build the tokenizer of a GGUF file's metadata.

    Raises:
        InvalidModel: the kind or pre-tokenizer is unknown, or the contents contradict each other.
    """
    tokens, ids, types = vocabulary_of(header)
    model = header.fields.text("tokenizer.ggml.model")
    bos, eos = _begin_and_end(header, tokens, types)
    ends = _ends(header, tokens, ids, types)
    types = types.copy()
    known = [ids[name] for name in _KNOWN & ids.keys() if name not in _ENDS or ids[name] in ends]
    types[known] = _CONTROL
    backend = backend_of(header, tokens, ids, types)
    # llama.cpp's default: with a byte-level vocabulary, only some models' prompts begin with BOS.
    usual = model != "gpt2" or header.fields.text("tokenizer.ggml.pre") in BEGIN
    add_bos = header.fields.flag("tokenizer.ggml.add_bos_token", usual) and bos is not None
    if header.fields.get("tokenizer.ggml.add_bos_token") and bos is None:
        said = "tokenizer.ggml.add_bos_token is true, but the file names no BOS; prompts begin"
        warnings.warn(f"{said} without one", stacklevel=2)
    if add_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="BOS $A",
            special_tokens=[{"id": "BOS", "ids": [bos], "tokens": [tokens[bos or 0]]}],
        )
    # As in llama.cpp, if a file's prompts begin with BOS, its chats do, too.
    return Tokenizer(backend, bos, eos, add_bos, sorted(ends), starts_chats=add_bos)


def vocabulary_of(header: Header) -> tuple[list[str], dict[str, int], np.ndarray]:
    """Return the tokens of a file, their ids, and their types; raises InvalidModel."""
    tokens = header.fields.texts("tokenizer.ggml.tokens")
    ids = dict(zip(tokens, range(len(tokens))))
    if not tokens or len(ids) != len(tokens):
        raise InvalidModel("tokenizer.ggml.tokens", len(tokens), "tokens must exist and differ")
    return tokens, ids, _array(header, "tokenizer.ggml.token_type", len(tokens), _NORMAL)


def backend_of(header: Header, tokens: list[str], ids: dict[str, int], types: np.ndarray) -> Any:
    """Build the library's tokenizer of this vocabulary; raises InvalidModel."""
    model = header.fields.text("tokenizer.ggml.model")
    builders = {"gpt2": _byte_level, "llama": _sentencepiece, "gemma4": _gemma}
    if model not in builders:
        raise InvalidModel("tokenizer.ggml.model", model, f"use {' or '.join(builders)}")
    with library_errors("tokenizer.ggml", DAMAGED):
        backend = builders[model](header, ids, types)
        for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
            # An empty token would match everywhere.
            added = [tokens[index] for index in np.flatnonzero(types == kind) if tokens[index]]
            add = backend.add_special_tokens if special else backend.add_tokens
            add([AddedToken(token, special=special, normalized=False) for token in added])
    return backend


def templates_of(header: Header) -> dict[str, str]:
    """Return name -> chat template of a file; the usual one is ``default``."""
    key = "tokenizer.chat_template"
    names = {name[len(key) + 1 :]: name for name in header.fields if name.startswith(f"{key}.")}
    names |= {"default": key} if key in header.fields else {}
    found = {name: header.fields.text(place) for name, place in names.items()}
    return {name: source for name, source in found.items() if source}


def _begin_and_end(
    header: Header, tokens: list[str], types: np.ndarray
) -> tuple[int | None, int | None]:
    """Return the ids of BOS and EOS; in a SentencePiece vocabulary they are 1 and 2 by default."""
    found = []
    for place, name in ((1, "bos"), (2, "eos")):
        index = _token_id(header, name, tokens)
        custom = header.fields.text("tokenizer.ggml.model") == "llama" and place < len(tokens)
        if index is None and custom and types[place] == _CONTROL:
            index = place
        found.append(index)
    return found[0], found[1]


def _ends(header: Header, tokens: list[str], ids: dict[str, int], types: np.ndarray) -> set[int]:
    """Return the ids that end a text: those that a field of the file names, and known names."""
    _, eos = _begin_and_end(header, tokens, types)
    named = [eos, *(_token_id(header, name, tokens) for name in ("eot", "eom"))]
    ends = {index for index in named if index is not None}
    ends |= {ids[name] for name in _ENDS if name in ids}
    for use, names in _INFILL.items():
        index = _token_id(header, f"fim_{use}", tokens)
        ends |= {ids[name] for name in names if name in ids} if index is None else {index}
    ends |= {ids[name] for name in _IF_CONTROL if name in ids and types[ids[name]] == _CONTROL}
    # As in llama.cpp: <|end|> separates the channels of gpt-oss and Solar; </s> is text for Gemma
    # 4.
    calls = "<|call|>" in ids or "<|calls|>" in ids
    parts = calls and ("<|return|>" in ids or "<|flush|>" in ids)
    none = {"<|end|>" if parts else "", "</s>" if "<|tool_response>" in ids else ""}
    return ends - {ids[name] for name in none if name in ids}


def _byte_level(header: Header, ids: dict[str, int], types: np.ndarray) -> Any:
    pre = str(header.fields.text("tokenizer.ggml.pre", "default"))
    if pre in CHARACTERS:
        return _characters(header, ids, pre)
    if pre not in PRE_TOKENIZERS:
        fix = f"use one of {', '.join(sorted({*PRE_TOKENIZERS, *CHARACTERS}))}"
        raise InvalidModel("tokenizer.ggml.pre", pre, fix)
    if pre == "default":
        said = header.fields.text("tokenizer.ggml.pre")
        warnings.warn(
            f"tokenizer.ggml.pre is {said!r}: the file does not say how the model cuts texts into "
            "words. They are cut as llama.cpp does, which may give other tokens than the model was "
            "trained on; get a file of a newer converter",
            stacklevel=2,
        )
    merges = _listed_merges(header)
    backend = Backend(models.BPE(vocab=ids, merges=merges, ignore_merges=pre in WHOLE))
    if pre in COMPOSED:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = PRE_TOKENIZERS[pre]()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(header: Header, ids: dict[str, int], types: np.ndarray) -> Any:
    scores = _array(header, "tokenizer.ggml.scores", len(ids), 0)
    if not np.isfinite(scores.astype(np.float64)).all():
        raise InvalidModel("tokenizer.ggml.scores", "NaN or infinity", DAMAGED)
    tokens = [*ids]
    unknown = next((tokens[index] for index in np.flatnonzero(types == _UNKNOWN)), None)
    normal = np.flatnonzero(np.isin(types, (_NORMAL, _USER_DEFINED)))
    kept = [index for index in normal.tolist() if tokens[index]]
    pieces = [tokens[index] for index in kept]
    longest = max(pieces, key=len, default="")
    if len(longest) > MAX_PIECE:
        raise InvalidModel("tokenizer.ggml.tokens", longest, f"pieces have up to {MAX_PIECE}")
    merges = merges_of(pieces, scores[kept].astype(np.float64))
    return _spaced(header, ids, merges, unknown, prefix=True)


def _gemma(header: Header, ids: dict[str, int], types: np.ndarray) -> Any:
    """Build Gemma 4's tokenizer: merges in the order of the file, over characters, not bytes."""
    unknown = "<unk>" if "<unk>" in ids else None
    return _spaced(header, ids, _listed_merges(header), unknown, prefix=False)


def _characters(header: Header, ids: dict[str, int], pre: str) -> Any:
    """Build a tokenizer whose merges are over characters, after the cuts of a pre-tokenizer."""
    backend = _spaced(header, ids, _listed_merges(header), None, prefix=False)
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(CHARACTERS[pre]), "isolated")
    if pre == "whitespace":
        backend.normalizer = None
        if not {" ", "<0x20>"} & ids.keys():
            said = "the vocabulary has no token for a space, so texts lose the spaces between words"
            warnings.warn(f"tokenizer.ggml.pre is {pre!r}: {said}", stacklevel=2)
    return backend


def _spaced(
    header: Header,
    ids: dict[str, int],
    merges: list[tuple[str, str]],
    unknown: str | None,
    prefix: bool,
) -> Any:
    """Build a tokenizer that writes ``▁`` for a space, and bytes for characters without a piece.

    Args:
        prefix: whether a text begins with a space, if the file does not say so.
    """
    backend = Backend(
        models.BPE(vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefix = header.fields.flag("tokenizer.ggml.add_space_prefix", prefix)
    steps = [normalizers.Prepend("▁")] if prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def _listed_merges(header: Header) -> list[tuple[str, str]]:
    pairs = [merge.partition(" ") for merge in header.fields.texts("tokenizer.ggml.merges")]
    return [(left, right) for left, _, right in pairs]


def _array(header: Header, key: str, length: int, default: int) -> np.ndarray:
    value = header.fields.get(key)
    if value is None:
        return np.full(length, default)
    if not isinstance(value, np.ndarray) or len(value) != length:
        raise InvalidModel(key, value, f"the file must hold {length} numbers here")
    return value


def _token_id(header: Header, name: str, tokens: list[str]) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    index = optional(header.fields, key)
    # Files write -1 (as unsigned, 2**32 - 1) for "none".
    if index is None or index in (-1, (1 << 32) - 1):
        return None
    if not 0 <= index < len(tokens):
        raise InvalidModel(key, index, f"the vocabulary has {len(tokens)} tokens")
    return index


def optional(fields: Metadata, key: str) -> int | None:
    """Return a whole number, or None if the file has no value."""
    return None if fields.get(key) is None else fields.whole(key)
