"""Lookahead decoding: a Jacobi window makes n-grams, a pool of them makes drafts.

The pool holds n-grams by their first token, and keeps those used last.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from paradecode.core.decoder import Reply, TokenSequence, Verdict
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.exploration import Exploration, random_tokens
from paradecode.methods.draft.loop import drafter
from paradecode.methods.draft.model_free import ModelFree, RatedTree
from paradecode.methods.draft.needs import Needs
from paradecode.methods.parts import choice, parameter

Ngram = tuple[int, ...]
"""The tokens of an n-gram behind its first token."""

NODE, LAST_RANK = 0, 3
"""Kinds of evidence: 0 is a node of the window, 1 to LAST_RANK are guesses by rank."""


class NgramPool:
    """At most ``most`` n-grams for each first token; a new one replaces the one unused longest."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._after: dict[int, OrderedDict[Ngram, None]] = {}

    def of(self, first: int) -> list[Ngram]:
        """The n-grams that begin with a token; the one used last comes first."""
        return list(reversed(self._after.get(first, ())))

    def remember(self, first: int, ngram: Ngram) -> None:
        """Add an n-gram, or make a known one the last used."""
        known = self._after.setdefault(first, OrderedDict())
        known[ngram] = None
        known.move_to_end(ngram)
        if len(known) > self.most:
            known.popitem(last=False)


@drafter(
    "lookahead",
    paper="Break the Sequential Dependency of LLM Inference Using Lookahead Decoding",
    arxiv="2402.02057",
    aliases=("lade", "lookahead-decoding"),
    names={"LEVEL": "level", "WINDOW_SIZE": "window", "GUESS_SET_SIZE": "guesses",
           "max_ngram_size": "level", "max_window_size": "window",
           "max_verification_set_size": "guesses"},
)  # fmt: skip
@dataclass
class Lookahead(ModelFree):
    """Collect n-grams from a window of Jacobi trajectories, and draft those that fit (Fu 2024).

    All of it is one tree: level 0 of the window is a chain; the level-j token of column i hangs
    under the level j - 1 token of that column, and so sees what the paper's mask shows it; pooled
    n-grams that begin with the last token are branches. What the model says at the last level
    becomes the new last level, and each column an n-gram for the pool. Window and guesses share
    num_speculative_tokens; the paper wants 56 nodes: ``level=5, window=7, guesses=7``.

    When: rows cost next to nothing, as on a GPU that serves one request. On a few cores the window
    costs more than it finds.
    """

    needs = Needs(all_rows=True)
    group = "lookahead"

    level: int = parameter(3, 2, 8, "tokens of an n-gram")
    window: int = parameter(5, 1, 32, "columns of the window")
    guesses: int = parameter(3, 0, 32, "n-grams kept for a token and verified at once")
    explore: str = choice("auto", ("auto", "always"), "auto stops where the rows cost too much")
    _levels: list[list[int]] = field(default_factory=list, repr=False)
    _columns: list[int] = field(default_factory=list, repr=False)
    _gain: Exploration = field(default_factory=Exploration, repr=False)

    def __post_init__(self) -> None:
        self._pool = NgramPool(max(self.guesses, 1))

    def fill(self, seq: TokenSequence, draft: RatedTree, limit: int) -> None:
        step = self.level - 1
        # A width that depends on the limit only: a window that shrinks does not grow again.
        width = min(self.window, max((limit + 1) // (2 * step), (limit + 1) // step - self.guesses))
        self.whole = width > 0 and self._gain.pays(seq, self.offer.budget, limit, self.explore)
        # A full window: its first level shares column 0 with the root.
        room = (limit + 1 - width * step if self.whole else limit) // step
        pool = self._pool.of(int(seq.tokens[-1]))[: min(self.guesses, room)]
        for rank, ngram in enumerate(pool, 1):
            draft.rate_chain(ngram, [min(rank, LAST_RANK)] * step)
        self._columns = self._planted(seq, draft, width) if self.whole else []

    def learn(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        if not self.whole or self._rated is None:
            return
        self._gain.book(len(verdict.tokens) - 1)
        rows = {mine: node + 1 for node, mine in tree.locate(self._rated.child).items()}
        if not all(node in rows for node in self._columns):
            return  # The end is near and the tree was clipped: this window leads no further.
        new = reply.logits.argmax()[[rows[node] for node in self._columns]].tolist()
        if len(self._levels) < self.level - 1:
            self._levels.append(new)  # The window is still being filled.
            return
        firsts = [int(seq.tokens[-1]), *self._levels[0]]
        for column, token in enumerate(new):
            above = (row[column] for row in self._levels[1:])
            self._pool.remember(firsts[column], (*above, token))
        # One position on, whatever was accepted: level 0 begins one token later.
        first, *later = [*self._levels[1:], new]
        self._levels = [first[1:], *later]

    def _planted(self, seq: TokenSequence, draft: RatedTree, width: int) -> list[int]:
        """Add the window to the draft; returns the nodes of its last level, by column."""
        if not self._levels:
            self._levels = [random_tokens(seq, width - 1)]
        first, *later = self._levels
        self._levels = [first[: width - 1], *(row[:width] for row in later)]
        column = [ROOT]
        for token in first[: width - 1]:
            column.append(draft.rate(column[-1], token, NODE))
        for row in later:
            column = [draft.rate(node, token, NODE) for node, token in zip(column, row)]
        return column
