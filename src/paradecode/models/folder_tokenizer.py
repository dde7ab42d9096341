"""Reads the tokenizer and the chat template of a folder that transformers wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from paradecode.core.errors import InvalidModel
from paradecode.models.metadata import MAX_JSON, Metadata, read_json
from paradecode.models.tokenizer import Tokenizer


def read_tokenizer(folder: Path) -> tuple[Tokenizer, str | None]:
    """The tokenizer, and the source of the chat template or None.

    Raises:
        InvalidModel: tokenizer.json is missing, damaged or of an unknown kind.
    """
    path = folder / "tokenizer.json"
    try:
        if path.stat().st_size > MAX_JSON:
            raise InvalidModel("model", str(path), "the file is too large")
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidModel("model", str(path), f"the file cannot be read: {error}") from None
    try:
        backend: Any = Backend.from_str(text)
    except Exception as error:  # The library raises bare Exceptions.
        raise InvalidModel("model", str(path), f"the file is damaged: {error}") from None
    backend.no_truncation()
    backend.no_padding()
    named = folder / "tokenizer_config.json"
    settings = read_json(named) if named.is_file() else Metadata()
    bos, eos = (_token_id(backend, settings.get(f"{name}_token")) for name in ("bos", "eos"))
    start: list[int] = backend.encode("").ids
    add_bos = bos is not None and start[:1] == [bos]
    return Tokenizer(backend, bos, eos, add_bos), _template(folder, settings)


def _token_id(backend: Any, token: object) -> int | None:
    """The id of a token given as text or as {"content": text}."""
    content = token.get("content") if isinstance(token, dict) else token
    return backend.token_to_id(content) if isinstance(content, str) else None


def _template(folder: Path, settings: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            with path.open("rb") as file:
                return file.read(MAX_JSON).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidModel("model", str(path), f"the file cannot be read: {error}") from None
    template = settings.get("chat_template")
    if isinstance(template, list):  # several by name; the default one is for chatting
        named = [t for t in template if isinstance(t, dict) and t.get("name") == "default"]
        template = named[0].get("template") if named else None
    return template if isinstance(template, str) else None
