"""Constraints: sets of allowed output texts, compiled once, and matched along every draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """A set of allowed texts, compiled for a vocabulary. It is stateless: requests can share it."""

    @property
    def vocab_size(self) -> int:
        """The number of token ids in the model's output vocabulary."""

    @property
    def waits(self) -> bool:
        """True if a matcher may be slow and then call :func:`paradecode.core.handoff.wait_for`."""

    def follow(self, ends: Sequence[int]) -> Matcher:
        """Return a matcher at the start of an output; the token ids ``ends`` end the output."""


class Matcher(Protocol):
    """The state of one output in its constraint.

    ``path`` is a list of draft tokens that follow the committed tokens. A path is *impossible* if
    the constraint forbids it or if the output ends before its last token. An impossible path can
    never be committed. Results depend only on the tokens, and never on earlier calls, because
    verification and plain decoding must agree.
    """

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        """Return bool [V], True for tokens that may follow ``path``.

        The result is None if the path is impossible, or if every token may follow. Tokens that end
        the output are allowed exactly where the text is complete.

        Raises:
            InvalidInput: if no token can follow, or the constraint library reached one of its
                limits.
        """

    def allows(self, path: Sequence[int], token: int) -> bool:
        """Return ``mask(path)[token]`` without computing the mask; True if there is no mask."""

    def possible(self, path: Sequence[int]) -> int:
        """Return the number of leading tokens of ``path`` that the constraint allows."""

    def forced(self, path: Sequence[int], limit: int) -> list[int]:
        """Return up to ``limit`` tokens of the text that must follow, if only one text may follow.

        These tokens are only a draft: the text is certain, but the model may split it into other
        tokens.
        """

    def complete(self, path: Sequence[int]) -> bool:
        """Return whether the text after ``path`` is complete and no token may follow it."""

    def advance(self, tokens: Sequence[int]) -> None:
        """Move the state past committed ``tokens``; only the last one may end the output.

        Raises:
            DecoderError: if the constraint forbids one of the tokens.
        """
