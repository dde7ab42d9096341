"""What one tenant's requests have written, as they write it."""

from __future__ import annotations

from dataclasses import dataclass, field

from paradecode.methods.draft.suffix_automaton import START, SuffixAutomaton

MOST_BYTES = 16 << 20
"""Kept for one tenant: some 100,000 tokens of outputs that are nothing alike, more of others."""

OUTPUT_BYTES = 110
"""What the end of an output takes in CPython."""


@dataclass
class KnownOutputs:
    """Outputs that are forgotten together, and where each ends so far."""

    texts: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    ends: dict[int, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return self.texts.nbytes + OUTPUT_BYTES * len(self.ends)

    def extend(self, output: int, tokens: list[int]) -> None:
        self.ends[output] = self.texts.extend(self.ends.get(output, START), tokens)


class PastOutputs:
    """The latest outputs of one tenant: of all its requests, those that still run included.

    Substrings cannot be taken out of an automaton. So where the oldest outputs must go, a younger
    automaton takes over, which has been given everything since the first one was half full. Both
    together take at most ``most_bytes``, but for what is written in one call.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self._old, self._young = KnownOutputs(), KnownOutputs()
        self._opened = 0

    def __len__(self) -> int:
        """Outputs that are known."""
        return len(self._old.ends)

    @property
    def nbytes(self) -> int:
        return self._old.nbytes + self._young.nbytes

    @property
    def texts(self) -> SuffixAutomaton:
        """All that is known."""
        return self._old.texts

    def open(self) -> int:
        """The key of one more output, for :meth:`extend`."""
        self._opened += 1
        return self._opened

    def extend(self, output: int, tokens: list[int], most_outputs: int) -> None:
        """Append to an output. Of an older one that was forgotten only what comes now is known."""
        self._old.extend(output, tokens)
        # What is old has two thirds of the bytes at most, and what is young half as much.
        filled = max(
            self._old.nbytes / (self.most_bytes * 2 / 3), len(self._old.ends) / (most_outputs + 1)
        )
        if filled > 0.5:
            self._young.extend(output, tokens)
        if filled >= 1.0:
            self._old, self._young = self._young, KnownOutputs()
