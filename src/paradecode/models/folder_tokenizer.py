"""Reads the tokenizer and the chat template of a folder that transformers wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Backend

from paradecode.core.checks import text_in
from paradecode.core.errors import InvalidModel
from paradecode.models.gguf_tokenizer import PRE_TOKENIZERS
from paradecode.models.metadata import (
    MAX_CONFIG,
    MAX_JSON,
    MAX_LISTING,
    Metadata,
    as_model,
    read_json,
)
from paradecode.models.tokenizer import Tokenizer
from paradecode.models.tokenizer_library import check_steps, library_errors

BY_MERGES = ("DreamTokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast")
"""Tokenizer classes whose files may be vocab.json and merges.txt: byte-level BPE with Qwen2's
pieces."""
MOST_ADDED = 64
"""The most tokens that a post-processor may add to a prompt."""


def read_tokenizer(folder: Path) -> tuple[Tokenizer, str | None, int | None]:
    """The tokenizer, the source of the chat template or None, and the mask token if it is named.

    Raises:
        InvalidModel: a file of the tokenizer is missing, damaged or of an unknown kind.
    """
    named = folder / "tokenizer_config.json"
    settings = read_json(named) if named.is_file() else Metadata()
    path = folder / "tokenizer.json"
    if path.is_file() or not (folder / "merges.txt").is_file():
        backend = _loaded(path)
    else:
        backend = _merged(folder, settings)
    bos, eos, mask = (
        _token_id(backend, settings.get(f"{name}_token")) for name in ("bos", "eos", "mask")
    )
    with library_errors(str(folder), "the post-processor of its tokenizer is damaged"):
        start: list[int] = backend.encode("").ids
    if len(start) > MOST_ADDED:
        fix = f"give a post-processor that adds at most {MOST_ADDED}"
        raise InvalidModel("tokenizer", f"{len(start)} tokens around each prompt", fix)
    add_bos = bos is not None and start[:1] == [bos]
    return Tokenizer(backend, bos, eos, add_bos), _template(folder, settings), mask


def _loaded(path: Path) -> Any:
    with library_errors(str(path), "the file is damaged"):
        backend: Any = Backend.from_str(_text(path, MAX_JSON))
        backend.no_truncation()
        backend.no_padding()
        check_steps(backend)
        return backend


def _text(path: Path, most: int) -> str:
    return str(as_model(lambda: text_in(path, "model", most)))


def _merged(folder: Path, settings: Metadata) -> Any:
    """The tokenizer of vocab.json and merges.txt; the ids of added tokens are in other files."""
    kind = settings.get("tokenizer_class")
    if kind not in BY_MERGES:
        usable = ", ".join(BY_MERGES)
        raise InvalidModel("tokenizer_class", kind, f"give tokenizer.json; without: {usable}")
    ids = dict(read_json(folder / "vocab.json", MAX_LISTING))
    added = _added(folder, settings)
    ids |= {token.content: index for index, token in added.items()}
    lines = _text(folder / "merges.txt", MAX_LISTING).split("\n")
    merges = [line.partition(" ") for line in lines if line and not line.startswith("#version:")]
    pairs = [(left, right) for left, _, right in merges]
    with library_errors(str(folder / "merges.txt"), "it does not fit vocab.json"):
        backend: Any = Backend(models.BPE(vocab=ids, merges=pairs))
        backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = PRE_TOKENIZERS["qwen2"]()
        backend.decoder = decoders.ByteLevel()
        for index in sorted(added):
            add = backend.add_special_tokens if added[index].special else backend.add_tokens
            add([added[index]])
        return backend


def _added(folder: Path, settings: Metadata) -> dict[int, AddedToken]:
    """Id -> added token, from ``added_tokens_decoder`` or from added_tokens.json."""
    known = settings.get("added_tokens_decoder")
    if known is None and (folder / "added_tokens.json").is_file():
        texts = read_json(folder / "added_tokens.json", MAX_LISTING)
        known = {index: {"content": text, "special": True} for text, index in texts.items()}
    found: dict[int, AddedToken] = {}
    try:
        for index, about in (known or {}).items():
            keys = ("single_word", "lstrip", "rstrip", "special")
            flags = {key: bool(about.get(key, False)) for key in keys}
            found[int(index)] = AddedToken(about["content"], normalized=False, **flags)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        fix = f"give {{id: {{content: text}}}} ({error})"
        raise InvalidModel("added_tokens_decoder", "damaged", fix) from None
    return found


def _token_id(backend: Any, token: object) -> int | None:
    """The id of a token given as text or as {"content": text}."""
    content = token.get("content") if isinstance(token, dict) else token
    return backend.token_to_id(content) if isinstance(content, str) else None


def _template(folder: Path, settings: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return _text(path, MAX_CONFIG)
    template = settings.get("chat_template")
    if isinstance(template, list):  # several by name; the default one is for chatting
        named = [t for t in template if isinstance(t, dict) and t.get("name") == "default"]
        template = named[0].get("template") if named else None
    return template if isinstance(template, str) else None
