"""llguidance's view of a model's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.models.tokenizer import Tokenizer
from paradecode.models.vocabulary import spelling


class _Tokens:
    """What ``llguidance.TokenizerWrapper`` asks for."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, eos: int) -> None:
        self._tokenizer, self.eos_token_id = tokenizer, eos
        ids = range(tokenizer.vocab_size)
        self.special_token_ids = [i for i in ids if tokenizer.is_control(i)]
        self.tokens = [
            tokenizer.token(i).encode() if tokenizer.is_control(i) else spelling(tokenizer, i)
            for i in ids
        ]

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, special=False, parse_special=False)


def not_byte_level() -> InvalidInput:
    fix = "use a model whose tokenizer is byte-level BPE: only there bytes and tokens agree"
    return InvalidInput("constraint", "this model's tokenizer", fix)


def library_tokenizer(tokenizer: Tokenizer, eos_tokens: Sequence[int]) -> Any:
    """An ``llguidance.LLTokenizer`` that knows the bytes of every token.

    Raises:
        InvalidInput: the library is missing, or the tokenizer is not byte-level.
    """
    try:
        from llguidance import LLTokenizer, TokenizerWrapper
    except ImportError:
        fix = "install what it needs: pip install 'paradecode[constraints]'"
        raise InvalidInput("constraint", "llguidance", fix) from None
    if not tokenizer.byte_level:
        raise not_byte_level()
    if not eos_tokens:
        raise InvalidInput("constraint", "this model", "use a model with an EOS token")
    wrapper = TokenizerWrapper(_Tokens(tokenizer, eos_tokens[0]))
    return LLTokenizer(wrapper, eos_token=list(eos_tokens))
