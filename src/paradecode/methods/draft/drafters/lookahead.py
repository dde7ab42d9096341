"""Lookahead decoding: a Jacobi window makes n-grams, a pool of them makes drafts."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from paradecode.core.noise import Purpose, uniform
from paradecode.core.request import Reply
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import EMPTY, ROOT, TokenTree
from paradecode.methods.draft.growth import Exploration, Trie
from paradecode.methods.draft.loop import Drafter, Proposal
from paradecode.methods.draft.method import drafter
from paradecode.methods.draft.needs import Needs
from paradecode.methods.draft.odds import Odds
from paradecode.methods.parameters import choice, parameter

KINDS = (0.04, 0.23, 0.11, 0.08)
"""Chance of a window node, and of guesses by rank (measured, 135M)."""


class _Pool(OrderedDict[tuple[int, ...], None]):
    """N-grams that begin with one token, the one seen last at the end."""


@drafter(
    "lookahead",
    paper="Break the Sequential Dependency of LLM Inference Using Lookahead Decoding",
    arxiv="2402.02057",
    aliases=("lade", "lookahead-decoding"),
    names={
        "LEVEL": "level",
        "WINDOW_SIZE": "window",
        "GUESS_SET_SIZE": "guesses",
        "max_ngram_size": "level",
        "max_window_size": "window",
        "max_verification_set_size": "guesses",
    },
)
@dataclass
class Lookahead(Drafter):
    """Collect n-grams from a window of Jacobi trajectories, and draft those that fit (Fu 2024).

    All of it is one tree under the last token: level 0 of the window is a chain; the level-j token
    of column i hangs under the level j - 1 token of that column, and so sees just what the paper's
    mask shows it; pooled n-grams that begin with the last token are branches of their own. What the
    model says at the window's last level becomes the new last level, and each column an n-gram for
    the pool. Where num_speculative_tokens is too small for all of it, window and guesses share it;
    the paper wants 56 nodes: ``level=5, window=7, guesses=7``.

    When: rows cost next to nothing, as on a GPU that serves one request. On a few cores the window
    costs more than it finds.
    """

    needs = Needs(all_rows=True)

    level: int = parameter(3, 2, 8, "tokens of an n-gram")
    window: int = parameter(5, 1, 32, "columns of the window")
    guesses: int = parameter(3, 0, 32, "n-grams kept for a token and verified at once")
    explore: str = choice("auto", ("auto", "always"), "auto stops where the rows cost too much")
    _levels: list[list[int]] = field(default_factory=list, repr=False)
    _columns: list[int] = field(default_factory=list, repr=False)
    _pool: dict[int, _Pool] = field(default_factory=dict, repr=False)
    _gain: Exploration = field(default_factory=Exploration, repr=False)
    _odds: Odds = field(default_factory=lambda: Odds(KINDS), repr=False)
    _draft: Trie = field(default_factory=Trie, repr=False)

    def propose(self, seq: Sequence, limit: int) -> Proposal:
        self._draft, self._columns = Trie(), []
        step = self.level - 1
        # A width that depends on the limit only: a window that shrinks does not grow again.
        spare = max((limit + 1) // (2 * step), (limit + 1) // step - self.guesses)
        width = min(self.window, spare)
        window = self._nodes(width) if width > 0 else 0
        self.whole = width > 0 and (self.explore == "always" or self._gain.pays(seq, limit))
        room = (limit - window if self.whole else limit) // step
        pool = list(reversed(self._pool.get(int(seq.tokens[-1]), _Pool())))
        for rank, ngram in enumerate(pool[: min(self.guesses, room)]):
            kind = min(rank + 1, len(KINDS) - 1)
            self._draft.chain(ngram, [kind] * step, self._odds)
        if self.whole:
            self._plant(seq, width)
        return self._draft.tree() if len(self._draft) else EMPTY
        yield  # A generator, though this drafter needs nothing from the engine.

    def observe(self, seq: Sequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        self._draft.book(self._odds, tree, verdict)
        if not self.whole:
            return
        self._gain.book(len(verdict.tokens) - 1)
        rows = {mine: node + 1 for node, mine in self._draft.locate(tree).items()}
        if not all(node in rows for node in self._columns):
            return  # The end is near and the tree was clipped: this window leads no further.
        said = reply.logits.argmax()
        new = [int(said[rows[node]]) for node in self._columns]
        if len(self._levels) < self.level - 1:
            self._levels.append(new)  # The window is still being filled.
            return
        last = int(seq.tokens[-1])
        for column, token in enumerate(new):
            first = last if column == 0 else self._levels[0][column - 1]
            above = [row[column] for row in self._levels[1:]]
            self._remember(first, (*above, token))
        # One position on, whatever was accepted: level 0 begins one token later.
        following = [*self._levels[1:], new]
        self._levels = [following[0][1:], *following[1:]]

    def _nodes(self, width: int) -> int:
        """Size of a full window: its first level shares column 0 with the root."""
        return width * (self.level - 1) - 1

    def _plant(self, seq: Sequence, width: int) -> None:
        """Put the window into the draft; remembers the nodes of its last level, by column."""
        if not self._levels:
            where = uniform(seq.sampler.noise_key(0, Purpose.DRAFT), np.arange(width - 1))
            places = (where * len(seq.tokens)).astype(np.int64)
            self._levels = [seq.tokens[places].tolist()]
        width = min(width, len(self._levels[0]) + 1)
        self._levels = [self._levels[0][: width - 1], *(row[:width] for row in self._levels[1:])]
        estimate, column = self._odds.of(0), [ROOT]
        for token in self._levels[0]:
            column.append(self._draft.add(column[-1], token, estimate))
        for row in self._levels[1:]:
            column = [
                self._draft.add(node, token, estimate)
                for node, token in zip(column, row, strict=True)
            ]
        self._columns = column

    def _remember(self, first: int, ngram: tuple[int, ...]) -> None:
        """Pool an n-gram under its first token; the one used longest ago makes room."""
        ngrams = self._pool.setdefault(first, _Pool())
        ngrams[ngram] = None
        ngrams.move_to_end(ngram)
        if len(ngrams) > max(self.guesses, 1):
            ngrams.popitem(last=False)
