"""Read the tokenizer and the chat templates of a folder, from all files that transformers reads."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, processors
from tokenizers import Tokenizer as Backend

from paradecode.core.checks import text_in
from paradecode.core.errors import InvalidModel
from paradecode.models.gguf_tokenizer import backend_of, vocabulary_of
from paradecode.models.metadata import (
    MAX_CONFIG,
    MAX_JSON,
    MAX_LISTING,
    Metadata,
    as_model,
    read_json,
)
from paradecode.models.pre_tokenizers import PRE_TOKENIZERS
from paradecode.models.sentencepiece_file import sentencepiece_header
from paradecode.models.tokenizer import Tokenizer
from paradecode.models.tokenizer_library import check_steps, library_errors

BY_MERGES = ("DreamTokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast")
"""Tokenizer classes whose files may be vocab.json and merges.txt: byte-level BPE with Qwen2's
pre-tokenizer."""
MOST_ADDED = 64
"""Largest number of tokens that a post-processor may add to a prompt."""
MOST_TEMPLATES = 64
"""Largest number of chat templates of a model."""
NAMED = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
"""Settings that name special tokens; tokens that no other file has get their ids in this order."""
FOLDERS = ("chat_templates", "additional_chat_templates")
"""Folders of named chat templates. Transformers knows the second one, whose templates win."""
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def read_tokenizer(
    folder: Path, rows: int | None = None
) -> tuple[Tokenizer, dict[str, str], int | None]:
    """Return the tokenizer, the chat templates' sources by name, and the mask token or None.

    Args:
        rows: number of rows of the embedding; an added token beyond them is left out, with a
            warning.

    Raises:
        InvalidModel: a file of the tokenizer is missing, damaged or of an unknown kind.
    """
    settings = _settings(folder)
    added = _added(folder, settings)
    path = folder / "tokenizer.json"
    if not path.is_file() and (folder / "merges.txt").is_file():
        backend = _merged(folder, settings, added)
    elif not path.is_file() and (folder / "tokenizer.model").is_file():
        backend = _sentencepiece(folder / "tokenizer.model", settings)
    else:
        backend = _loaded(path, rows)
    _add(backend, [added[index] for index in sorted(added)], rows)
    _add(backend, list(_special(settings, added)), rows)
    bos, eos, mask = (
        _token_id(backend, settings.get(f"{name}_token")) for name in ("bos", "eos", "mask")
    )
    with library_errors(str(folder), "the post-processor of its tokenizer is damaged"):
        start: list[int] = backend.encode("").ids
    if len(start) > MOST_ADDED:
        fix = f"give a post-processor that adds at most {MOST_ADDED}"
        raise InvalidModel("tokenizer", f"{len(start)} tokens around each prompt", fix)
    add_bos = bos is not None and start[:1] == [bos]
    return Tokenizer(backend, bos, eos, add_bos), _templates(folder, settings), mask


def _settings(folder: Path) -> Metadata:
    """Read tokenizer_config.json.

    Without ``added_tokens_decoder``, special_tokens_map.json replaces its settings of tokens.
    """
    path, older = folder / "tokenizer_config.json", folder / "special_tokens_map.json"
    settings = read_json(path) if path.is_file() else Metadata()
    if "added_tokens_decoder" not in settings and older.is_file():
        about = read_json(older).items()
        settings |= {key: value for key, value in about if key.endswith(("_token", "_tokens"))}
    return settings


def _add(backend: Any, tokens: list[AddedToken], rows: int | None) -> None:
    """Add tokens, or set the flags of known tokens; leave out tokens without an embedding row."""
    known = {repr(token) for token in backend.get_added_tokens_decoder().values()}
    size = backend.get_vocab_size(with_added_tokens=True)
    kept = []
    for token in {token.content: token for token in tokens if repr(token) not in known}.values():
        fresh = backend.token_to_id(token.content) is None
        if fresh and rows is not None and size >= rows:
            _say_beyond(token.content, rows)
            continue
        kept.append(token)
        size += fresh
    with library_errors("added tokens", "one of them is damaged"):
        # All at once: each call rebuilds the library's search for tokens.
        for special, group in groupby(kept, lambda token: token.special):
            (backend.add_special_tokens if special else backend.add_tokens)([*group])


def _say_beyond(token: str, rows: int | None) -> None:
    warnings.warn(
        f"the token {token[:80]!r} is left out: the model has only {rows} tokens", stacklevel=2
    )


def _special(settings: Metadata, added: Mapping[int, AddedToken]) -> Iterator[AddedToken]:
    """Yield tokens that a setting such as ``eos_token`` names, or that are listed as special."""
    known = {token.content: token for token in added.values()}
    listed = settings.get("extra_special_tokens") or settings.get("additional_special_tokens")
    more = [*listed.values()] if isinstance(listed, dict) else listed
    keys = [*NAMED, *(key for key in settings if key.endswith("_token") and key not in NAMED)]
    named = [settings.get(key) for key in keys]
    for value in [*named, *(more if isinstance(more, list) else ())]:
        content = value.get("content") if isinstance(value, dict) else value
        if not isinstance(content, str) or not content:
            continue
        about = value if isinstance(value, dict) else {}
        flags = {key: bool(about.get(key, False)) for key in _FLAGS if key != "special"}
        if content in known:
            flags = {key: getattr(known[content], key) for key in flags}
        yield AddedToken(content, special=True, **flags)


def _loaded(path: Path, rows: int | None) -> Any:
    source = _text(path, MAX_JSON)
    with library_errors(str(path), "the file is damaged"):
        backend: Any = Backend.from_str(source)
        known = backend.get_added_tokens_decoder()
        beyond = [index for index in sorted(known) if rows is not None and index >= rows]
        if beyond:
            said = json.loads(source)
            said["added_tokens"] = [each for each in said["added_tokens"] if each["id"] < rows]
            backend = Backend.from_str(json.dumps(said))
        backend.no_truncation()
        backend.no_padding()
        check_steps(backend)
    for index in beyond:
        _say_beyond(known[index].content, rows)
    return backend


def _text(path: Path, most: int) -> str:
    return str(as_model(lambda: text_in(path, "model", most)))


def _merged(folder: Path, settings: Metadata, added: Mapping[int, AddedToken]) -> Any:
    """Build the tokenizer of vocab.json and merges.txt; other files have the added tokens' ids."""
    kind = settings.get("tokenizer_class")
    if kind not in BY_MERGES:
        usable = ", ".join(BY_MERGES)
        raise InvalidModel("tokenizer_class", kind, f"give tokenizer.json; without: {usable}")
    ids = dict(read_json(folder / "vocab.json", MAX_LISTING))
    ids |= {token.content: index for index, token in added.items()}
    lines = _text(folder / "merges.txt", MAX_LISTING).split("\n")
    merges = [line.partition(" ") for line in lines if line and not line.startswith("#version:")]
    pairs = [(left, right) for left, _, right in merges]
    with library_errors(str(folder / "merges.txt"), "it does not fit vocab.json"):
        backend: Any = Backend(models.BPE(vocab=ids, merges=pairs))
        backend.normalizer = normalizers.NFC()
        backend.pre_tokenizer = PRE_TOKENIZERS["qwen2"]()
        backend.decoder = decoders.ByteLevel()
        return backend


def _sentencepiece(path: Path, settings: Metadata) -> Any:
    """Build the tokenizer of a SentencePiece vocabulary.

    Prompts begin with BOS unless the settings say otherwise.
    """
    header = sentencepiece_header(path)
    backend = backend_of(header, *vocabulary_of(header))
    named = settings.get("bos_token", "<s>")
    index = _token_id(backend, named)
    if settings.flag("add_bos_token", True) and index is not None:
        backend.post_processor = processors.TemplateProcessing(
            single="BOS $A",
            special_tokens=[{"id": "BOS", "ids": [index], "tokens": [backend.id_to_token(index)]}],
        )
    return backend


def _added(folder: Path, settings: Metadata) -> dict[int, AddedToken]:
    """Return id -> added token, from ``added_tokens_decoder`` or from added_tokens.json.

    The file has no flags: its tokens are special if the settings name them.
    """
    if "added_tokens_decoder" not in settings and (folder / "added_tokens.json").is_file():
        texts = read_json(folder / "added_tokens.json", MAX_LISTING)
        special = {token.content for token in _special(settings, {})}
        known: Any = {
            index: {"content": text, "special": text in special, "normalized": text not in special}
            for text, index in texts.items()
        }
    else:
        known = settings.get("added_tokens_decoder")
    found: dict[int, AddedToken] = {}
    try:
        for index, about in (known or {}).items():
            flags = {key: bool(about.get(key, False)) for key in _FLAGS}
            found[int(index)] = AddedToken(about["content"], **flags)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        fix = f"give {{id: {{content: text}}}} ({error})"
        raise InvalidModel("added_tokens_decoder", "damaged", fix) from None
    return found


def _token_id(backend: Any, token: object) -> int | None:
    """Return the id of a token that is given as text or as {"content": text}."""
    content = token.get("content") if isinstance(token, dict) else token
    return backend.token_to_id(content) if isinstance(content, str) else None


def _templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return name -> chat template; the usual one is ``default``.

    As in transformers, templates in separate files replace those of tokenizer_config.json.
    chat_template.json, which image processors have, is read last.
    """
    found: dict[str, str] = {}
    path = folder / "chat_template.jinja"
    if path.is_file():
        found["default"] = _text(path, MAX_CONFIG)
    for place in FOLDERS:
        for path in sorted((folder / place).glob("*.jinja"))[:MOST_TEMPLATES]:
            found[path.name.removesuffix(".jinja")] = _text(path, MAX_CONFIG)
    path = folder / "chat_template.json"
    places: list[Any] = [settings]
    if path.is_file() and not found and settings.get("chat_template") is None:
        places.append(read_json(path))
    given = next((v for place in places if (v := place.get("chat_template")) is not None), None)
    if found or given is None:
        return found
    if isinstance(given, list):
        given = {t.get("name"): t.get("template") for t in given if isinstance(t, dict)}
    given = given if isinstance(given, dict) else {"default": given}
    return {name: text for name, text in given.items()
            if isinstance(name, str) and isinstance(text, str)}  # fmt: skip
