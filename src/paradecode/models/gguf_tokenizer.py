"""Builds the tokenizer that a GGUF file describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from paradecode.core.errors import InvalidModel
from paradecode.models.gguf_header import DAMAGED, Header
from paradecode.models.metadata import Metadata
from paradecode.models.tokenizer import Tokenizer
from paradecode.models.tokenizer_library import library_errors

MAX_PIECE = 128
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

# Control tokens that end a turn or a text, even if the file's eos_token_id does not name them.
END_OF_TURN = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>", "<|role_end|>",
    "<|dlm_pad|>", "<turn|>", "<|tool_response>",
)  # fmt: skip

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def _split(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _smollm() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "qwen2": lambda: _split(_QWEN2),
    "llama-bpe": lambda: _split(_LLAMA3),
    "llada-moe": lambda: _split(_BAILING),
}
LLAMA3 = ("llama-bpe", "llama3", "llama-v3")
"""llama.cpp's names of one kind of pre-tokenizer."""
PRE_TOKENIZERS |= dict.fromkeys(LLAMA3, PRE_TOKENIZERS["llama-bpe"])
PRE_TOKENIZERS["deepseek-r1-qwen"] = PRE_TOKENIZERS["qwen2"]


def tokenizer_from_header(header: Header) -> Tokenizer:
    """The tokenizer in a GGUF file's metadata.

    Raises:
        InvalidModel: unknown kind or pre-tokenizer, or contents that contradict each other.
    """
    tokens = header.fields.texts("tokenizer.ggml.tokens")
    ids = {token: index for index, token in enumerate(tokens)}
    if not tokens or len(ids) != len(tokens):
        raise InvalidModel("tokenizer.ggml.tokens", len(tokens), "tokens must exist and differ")
    types = _array(header, "tokenizer.ggml.token_type", len(tokens), 1)
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
    bos, eos = _token_id(header, "bos", tokens), _token_id(header, "eos", tokens)
    # llama.cpp's defaults: with a byte-level vocabulary only Llama 3's prompts start so.
    usual = model != "gpt2" or header.fields.text("tokenizer.ggml.pre") in LLAMA3
    add_bos = header.fields.flag("tokenizer.ggml.add_bos_token", usual) and bos is not None
    if add_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="BOS $A",
            special_tokens=[{"id": "BOS", "ids": [bos], "tokens": [tokens[bos or 0]]}],
        )
    named = (_token_id(header, name, tokens) for name in ("eos", "eot", "eom"))
    ends = {index for index in named if index is not None}
    ends |= {ids[token] for token in END_OF_TURN if token in ids and types[ids[token]] == _CONTROL}
    return Tokenizer(backend, bos, eos, add_bos, sorted(ends))


def _byte_level(header: Header, ids: dict[str, int], types: np.ndarray) -> Any:
    pre = header.fields.text("tokenizer.ggml.pre", "default")
    if pre not in PRE_TOKENIZERS:
        raise InvalidModel("tokenizer.ggml.pre", pre, f"use one of {', '.join(PRE_TOKENIZERS)}")
    merges = _listed_merges(header)
    backend = Backend(models.BPE(vocab=ids, merges=merges, ignore_merges=pre in LLAMA3))
    if PRE_TOKENIZERS[pre] is PRE_TOKENIZERS["qwen2"]:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = PRE_TOKENIZERS[pre]()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(header: Header, ids: dict[str, int], types: np.ndarray) -> Any:
    scores = _array(header, "tokenizer.ggml.scores", len(ids), 0)
    if not np.isfinite(scores.astype(np.float64)).all():
        raise InvalidModel("tokenizer.ggml.scores", "NaN or infinity", DAMAGED)
    unknown = next((token for token, index in ids.items() if types[index] == _UNKNOWN), None)
    return _spaced(header, ids, _merges(ids, types, scores), unknown, prefix=True)


def _gemma(header: Header, ids: dict[str, int], types: np.ndarray) -> Any:
    """Gemma 4's tokenizer: merges in the order of the file, over characters and not bytes."""
    unknown = "<unk>" if "<unk>" in ids else None
    return _spaced(header, ids, _listed_merges(header), unknown, prefix=False)


def _spaced(
    header: Header,
    ids: dict[str, int],
    merges: list[tuple[str, str]],
    unknown: str | None,
    prefix: bool,
) -> Any:
    """A tokenizer whose pieces write ``▁`` for a space, and bytes where there is no piece.

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


def _merges(ids: dict[str, int], types: np.ndarray, scores: np.ndarray) -> list[tuple[str, str]]:
    """BPE merges in order of score, because SentencePiece joins the neighbours with the best
    union."""
    normal = {token for token, index in ids.items() if types[index] in (1, _USER_DEFINED)}
    merges = []
    for token in normal:
        if len(token) > MAX_PIECE:
            raise InvalidModel("tokenizer.ggml.tokens", token, f"pieces have up to {MAX_PIECE}")
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in normal and right in normal:
                merges.append((-float(scores[ids[token]]), ids[left], ids[right], left, right))
    return [(left, right) for *_, left, right in sorted(merges)]


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
    """A whole number, or None if the file has no value."""
    return None if fields.get(key) is None else fields.whole(key)
