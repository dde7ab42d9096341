"""Constraints: which texts an output may be, compiled once and followed along every draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """A set of texts, compiled for one vocabulary. It has no state, so requests share it."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids, as the model's head has them."""

    @property
    def waits(self) -> bool:
        """Whether its matchers may take long, and call :func:`paradecode.core.handoff.wait_for`."""

    def follow(self, ends: Sequence[int]) -> Matcher:
        """A matcher at the start of an output; the token ids ``ends`` end the output."""


class Matcher(Protocol):
    """The state of one output in its constraint.

    ``path`` is a list of draft tokens after the committed ones. A path is *impossible* if the
    constraint forbids it or if it has passed an end; its rows can never be committed. Answers
    depend only on the tokens and never on earlier calls, because verification and plain decoding
    must agree.
    """

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        """The tokens that may follow, bool [V]; None if the path is impossible or all may follow.

        Tokens that end the output are allowed exactly where the text is complete.

        Raises:
            InvalidInput: no token can follow, or a limit of the library was reached.
        """

    def allows(self, path: Sequence[int], token: int) -> bool:
        """``mask(path)[token]``, computed faster; True if there is no mask."""

    def possible(self, path: Sequence[int]) -> int:
        """How many tokens of ``path``, counted from the first, the constraint allows."""

    def forced(self, path: Sequence[int], limit: int) -> list[int]:
        """At most ``limit`` tokens of the only text that may follow.

        They are drafts: the text is certain, but a model may write it with other tokens.
        """

    def complete(self, path: Sequence[int]) -> bool:
        """Whether the text is complete and no token may follow; then the output ends."""

    def advance(self, tokens: Sequence[int]) -> None:
        """Tell the matcher that ``tokens`` were committed; only the last one may end the output.

        Raises:
            DecoderError: the constraint forbids them.
        """
