"""Convert between text and token ids with the ``tokenizers`` library."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from tokenizers import Tokenizer as Backend

from paradecode.core.errors import InvalidInput
from paradecode.models.text_stream import ByteLevelPieces, Detokeniser, pieces_of
from paradecode.models.tokenizer_library import library_errors

MAX_TEXT = 1 << 24
LONG = 1 << 14
"""Number of characters above which the library encodes a text without holding Python's lock."""


class Tokenizer:
    """A tokenizer that can read control tokens as plain text, for text from users.

    Args:
        backend: the library's tokenizer.
        bos, eos: ids or None.
        add_bos: whether prompts start with ``bos``.
        eos_tokens: every id that ends a text; ``(eos,)`` when not given.
        starts_chats: whether chats start with ``bos`` even if their template does not write it.

    Attributes:
        vocab_size: number of ids, including added tokens.
        bos, eos, add_bos, eos_tokens, starts_chats: as given.
        added: text -> id of every token that is searched for before a text is split into words.
        control: text -> id of the added tokens that are not visible in an output.
        byte_level: whether tokens are written with GPT-2's character for each byte.

    Raises:
        InvalidModel: the kind of decoder is not supported.
    """

    def __init__(
        self,
        backend: Backend,
        bos: int | None = None,
        eos: int | None = None,
        add_bos: bool = False,
        eos_tokens: Sequence[int] | None = None,
        starts_chats: bool = False,
    ) -> None:
        self._backend: Any = backend
        self._literal: dict[frozenset[str], Any] = {}
        self._lock = threading.Lock()
        self.bos, self.eos, self.add_bos, self.starts_chats = bos, eos, add_bos, starts_chats
        self.eos_tokens = tuple(eos_tokens or (() if eos is None else (eos,)))
        added = backend.get_added_tokens_decoder()
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        special = {index: token for index, token in added.items() if token.special}
        self.added = {token.content: index for index, token in added.items()}
        self.control = {token.content: index for index, token in special.items()}
        self._as_written = not any(token.normalized for token in added.values())
        self._control_ids = frozenset(self.control.values())
        self._pieces = pieces_of(backend)
        self.byte_level = self._pieces is ByteLevelPieces

    def encode(
        self,
        text: str,
        special: bool = True,
        parse_special: bool = True,
        barred: Collection[str] = (),
    ) -> list[int]:
        """Return the token ids of ``text``.

        Args:
            text: at most MAX_TEXT characters.
            special: whether to add the tokens that the model expects around a prompt (bos).
            parse_special: whether to read "<|im_end|>" and the like as control tokens. Switch it
                off for text from users; otherwise they could end their turn and write another one.
            barred: texts of further added tokens that are then read as text.

        Raises:
            InvalidInput: the text is too long, or not valid Unicode (lone surrogates).
            InvalidModel: the tokenizer has no token for some of the text.
        """
        if not isinstance(text, str):
            raise InvalidInput("text", text, "give a string")
        if len(text) > MAX_TEXT:
            raise InvalidInput("text", f"{len(text)} characters", f"give at most {MAX_TEXT}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidInput(
                "text", text[error.start : error.end], "remove the lone surrogate"
            ) from None
        with library_errors(text, "this model's tokenizer cannot read it"):
            backend: Any = self._backend
            if not (parse_special or (self._as_written and self._without(text, barred))):
                backend = self._literal_backend(frozenset(barred))
            # A batch is encoded without Python's global lock, but by the library's own threads.
            if len(text) > LONG:
                (found,) = backend.encode_batch_fast([text], add_special_tokens=special)
            else:
                found = backend.encode(text, add_special_tokens=special)
            ids: list[int] = found.ids
            return ids

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """Return the text of token ids; invalid UTF-8 becomes U+FFFD, unknown ids are left out."""
        known = [index for index in ids if 0 <= index < 1 << 32]
        with library_errors(f"{len(known)} ids", "this model's tokenizer cannot write them"):
            text: str = self._backend.decode(known, skip_special_tokens=skip_special)
            return text

    def token(self, index: int) -> str:
        """Return the token in the vocabulary's spelling; empty for an unused id."""
        if not 0 <= index < 1 << 32:
            return ""
        return self._backend.id_to_token(index) or ""

    def token_id(self, token: str) -> int | None:
        """Return the id of a token in the vocabulary's spelling, or None."""
        index: int | None = self._backend.token_to_id(token)
        return index

    @property
    def highest(self) -> int:
        """The highest id of a token, including tokens added to a prompt; -1 without tokens."""
        ids = self._backend.get_vocab(with_added_tokens=True).values()
        return max([*ids, *self.encode("")], default=-1)

    @property
    def longest(self) -> int:
        """Number of characters of the longest token."""
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)), default=1)

    def is_control(self, index: int) -> bool:
        """Return whether the id is a control token (bos, end of turn, ...), which is not text."""
        return index in self._control_ids

    def json(self) -> str:
        """Return the tokenizer in the format of tokenizer.json."""
        text: str = self._backend.to_str()
        return text

    def stream(self, skip_special: bool = True) -> Detokeniser:
        """Return a detokeniser for tokens that come one at a time."""
        hidden = self._control_ids if skip_special else frozenset()
        return Detokeniser(self._pieces, self._backend.id_to_token, hidden)

    def _without(self, text: str, barred: Collection[str]) -> bool:
        return not any(name in text for names in (self.control, barred) for name in names)

    def _literal_backend(self, barred: frozenset[str]) -> Any:
        # A second tokenizer, because the first one's setting cannot change while threads use it.
        with self._lock:
            if barred not in self._literal:
                made = self._literal[barred] = _beside(self._backend, barred)
                made.encode_special_tokens = True
            return self._literal[barred]


def _beside(backend: Any, special: Collection[str]) -> Any:
    """Return a tokenizer with the same tables and behaviour, but separate settings.

    A copy of the tables would take as much time as reading the rest of a model, and twice the
    memory.

    Args:
        special: texts of added tokens that are special in the new tokenizer.
    """
    made: Any = Backend(backend.model)
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if getattr(backend, part) is not None:
            setattr(made, part, getattr(backend, part))
    for _, token in sorted(backend.get_added_tokens_decoder().items()):  # So they get their ids.
        (made.add_special_tokens if token.special or token.content in special
         else made.add_tokens)([token])  # fmt: skip
    return made
