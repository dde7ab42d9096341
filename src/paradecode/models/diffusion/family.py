"""Facts about a family of masked diffusion models that are missing from its config.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paradecode.models.metadata import Metadata

More = Callable[[Metadata, Sequence[str]], dict[str, Any]]
"""(config.json, names of the model) -> fields of a ``ModelConfig``."""


def nothing(values: Metadata, names: Sequence[str]) -> dict[str, Any]:
    """Return no further fields, for families whose facts are all in :class:`MaskedFamily`."""
    return {}


@dataclass(frozen=True)
class MaskedFamily:
    """One published family: a causal architecture with another attention.

    Attributes:
        like: transformers' name of the causal architecture.
        attention, block_length, shift, decoder: see :class:`paradecode.models.config.ModelConfig`.
        mask_token: the mask token if config.json does not name it; None: the tokenizer's files name
            it.
        eos_tokens: token ids that end a text, beside those in the files.
        settings: keys of its config.json -> our keys.
        defaults: values for missing keys, where they differ from the causal architecture's.
        more: returns further fields, which replace the fields above.
        stored: name of a stored tensor -> its name in the causal architecture, or None if the
            tensor is not used.
    """

    like: str
    attention: str
    mask_token: int | None
    decoder: str
    block_length: int = 0
    shift: bool = False
    eos_tokens: tuple[int, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    more: More = nothing
    stored: Callable[[str], str | None] = lambda name: None


def published(names: Sequence[str], pattern: str) -> re.Match[str] | None:
    """Return the match of the first name that matches the whole ``pattern``, ignoring case."""
    matches = (re.fullmatch(pattern, name, re.IGNORECASE) for name in names)
    return next((match for match in matches if match), None)
