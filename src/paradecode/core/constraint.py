"""What an output may be: compiled once, then followed along every path of a draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """A set of texts, compiled for one vocabulary. It has no state: requests share it."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below it; the model's own size."""
        ...

    def follow(self, ends: Sequence[int]) -> Matcher:
        """A matcher at the start of an output that the token ids ``ends`` end."""
        ...


class Matcher(Protocol):
    """Where one output stands in its constraint.

    ``path`` are draft tokens behind the committed ones. A path that the constraint forbids, or that
    has reached an end, is *impossible*: no row behind it can ever be committed. What is said of
    a path depends on the tokens only, never on what was asked before: verification and plain
    decoding must agree.
    """

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        """bool [V]: which tokens may follow; None when the path is impossible, or anything may.

        Ending tokens are allowed exactly where the text is complete.

        Raises:
            InvalidInput: nothing can follow, or a limit of the library was reached.
        """
        ...

    def allows(self, path: Sequence[int], token: int) -> bool:
        """``mask(path)[token]``, for less; True where there is no mask."""
        ...

    def possible(self, path: Sequence[int]) -> int:
        """How many tokens of ``path`` the constraint allows, from the first on."""
        ...

    def forced(self, path: Sequence[int], limit: int) -> list[int]:
        """At most ``limit`` tokens that will follow with near certainty, whatever the model says.

        They are drafts: the text they spell is the only one possible, but a model may spell it in
        other tokens where the constraint leaves a choice.
        """
        ...

    def complete(self, path: Sequence[int]) -> bool:
        """Whether the text is complete and nothing may be added: the output ends here."""
        ...

    def advance(self, tokens: Sequence[int]) -> None:
        """Tell the matcher that ``tokens`` were committed; an ending one comes last if at all.

        Raises:
            DecoderError: the constraint forbids them.
        """
        ...
