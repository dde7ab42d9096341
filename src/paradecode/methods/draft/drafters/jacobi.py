"""Jacobi decoding and lookahead decoding: the model corrects many guesses in parallel."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from paradecode.core.decoder import Reply, TokenSequence, Verdict
from paradecode.core.noise import Purpose, uniform
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.history import Recent
from paradecode.methods.draft.loop import Budget, Needs, drafter
from paradecode.methods.draft.model_free import ModelFree, RatedTree
from paradecode.methods.parts import choice, parameter


def random_tokens(seq: TokenSequence, count: int) -> list[int]:
    """Return tokens from random positions of the text, fixed by the request's seed."""
    where = uniform(seq.sampler.noise_key(0, Purpose.DRAFT), np.arange(count))
    return seq.tokens[(where * len(seq.tokens)).astype(np.int64)].tolist()


@dataclass
class Exploration:
    """Decides whether exploring rows (Jacobi guesses, lookahead windows) are worth their cost.

    A budget that weighs single nodes would refuse each exploring row. Therefore the number of
    tokens that recent drafts gained per step is compared with the cost of all these rows. If they
    are not worth their cost, nothing new is learned, and the rest of the request has no such rows.
    """

    gain: float = 1.0

    def pays(self, seq: TokenSequence, budget: Budget, nodes: int, explore: str) -> bool:
        """Return whether to draft the rows; True if nothing was measured or costs do not count.

        Args:
            explore: ``always`` drafts the rows whatever they cost, ``auto`` weighs cost and gain.
        """
        base = budget.step_seconds(seq, 1)
        if base is None or explore == "always":
            return True
        alone = 1 + seq.neighbours
        return (alone + self.gain) * base > alone * (budget.step_seconds(seq, 1 + nodes) or base)

    def book(self, accepted: int) -> None:
        """Record the number of draft tokens that a step accepted."""
        self.gain += 0.1 * (accepted - self.gain)


KINDS = 6
"""Number of kinds of evidence: guesses that were corrected 0, 1, ... times."""


class RejectedDrafts:
    """Stores the latest ``most`` drafts that were not accepted to their end."""

    def __init__(self, most: int) -> None:
        self._kept = deque[list[int]](maxlen=most)

    def keep(self, tokens: list[int]) -> None:
        """Store a draft as the latest one, also if it is stored already."""
        if tokens in self._kept:
            self._kept.remove(tokens)
        self._kept.append(tokens)

    def after(self, token: int, most: int) -> list[list[int]]:
        """Return the tokens after the first ``token`` of each draft, latest draft first.

        Equal continuations are returned once.

        Args:
            most: the most tokens from each draft.
        """
        found: list[list[int]] = []
        for draft in reversed(self._kept):
            if token in draft:
                tail = draft[draft.index(token) + 1 :][:most]
                if tail and tail not in found:
                    found.append(tail)
        return found


@drafter(
    "jacobi",
    paper="Accelerating Transformer Inference for Translation via Parallel Decoding",
    arxiv="2305.10427",
    aliases=("parallel-jacobi",),
)
class Jacobi(ModelFree):
    """Solve for several tokens at once by Jacobi iteration (Santilli 2023).

    The draft is the model's prediction, in the last forward pass, for the positions after the
    accepted tokens. The wrong guesses among its inputs get better from forward to forward. New
    positions begin with the token that followed the token before them last time, or else with
    random tokens of the text. A right guess at the wrong position never gets better. Therefore all
    positions start again after ``restart`` forwards without an accepted token.

    Models gain little unless `paradecode train jacobi` trained them for it (Jacobi Forcing,
    2512.14681). ``recycle`` is that paper's addition: if one of the latest rejected drafts contains
    the last token, the tokens after it become a branch of the next draft. Half of all nodes are for
    these branches.

    When: to compare with, or for a model that was trained for consistency.
    """

    needs = Needs(noise=True)
    group = "jacobi"

    explore: str = choice("auto", ("auto", "always"), "auto stops drafts where rows cost too much")
    restart: int = parameter(3, 1, 64, "forwards without an accepted guess before new guesses")
    recycle: int = parameter(0, 0, 16, "rejected drafts that are stored; the paper's code has 4")
    _guess: list[tuple[int, int]] = field(default_factory=list, repr=False)
    _failures: int = field(default=0, repr=False)
    _branches: list[list[int]] = field(default_factory=list, repr=False)
    _gain: Exploration = field(default_factory=Exploration, repr=False)

    def __post_init__(self) -> None:
        self._rejected = RejectedDrafts(self.recycle)

    def fill(self, seq: TokenSequence, draft: RatedTree, limit: int) -> None:
        self.whole = self._gain.pays(seq, self.offer.budget, limit, self.explore)
        if not self.whole:
            self._guess = []
            return
        if self._failures >= self.restart:
            self._guess, self._failures = [], 0
        branch = limit // (2 * self.recycle) if self.recycle else 0
        self._begin(seq, limit - branch * self.recycle)
        kinds = [min(times, KINDS - 1) for _, times in self._guess]
        draft.rate_chain([token for token, _ in self._guess], kinds)
        self._branches = self._rejected.after(int(seq.tokens[-1]), branch)
        for tokens in self._branches:
            draft.rate_chain(tokens, [0] * branch)

    def learn(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        if len(tree) == 0:
            return
        right = len(verdict.tokens) - 1
        self._gain.book(right)
        self._failures = 0 if right else self._failures + 1
        if right < len(self._guess):
            self._rejected.keep([token for token, _ in self._guess])
        chains = [self._guess, *([(token, 0) for token in each] for each in self._branches)]
        fits = (c for c in chains if [token for token, _ in c[:right]] == verdict.tokens[:-1])
        guess = next(fits, self._guess)
        rows = [1 + node for node in tree.follow(token for token, _ in guess)]
        keys = [seq.sampler.noise_key(1 + depth) for depth in range(len(rows))]
        logits, warp = reply.logits.select(rows), seq.sampler.warp
        said = logits.sample(warp, keys) if self.offer.noise else logits.argmax()
        times = [*(times for _, times in guess[1 : len(rows)]), 0]
        self._guess = [(token, n + 1) for token, n in zip(said.tolist(), times)][right:]

    def _begin(self, seq: TokenSequence, limit: int) -> None:
        """Extend or cut the guesses to the number of tokens that the draft may have."""
        text, drawn = seq.tokens, random_tokens(seq, limit)
        while len(self._guess) < limit:
            last = self._guess[-1][0] if self._guess else text[-1]
            seen = np.flatnonzero(text[:-1] == last)
            next_token = int(text[seen[-1] + 1]) if len(seen) else drawn[len(self._guess)]
            self._guess.append((next_token, 0))
        del self._guess[limit:]


# Lookahead decoding: a Jacobi window makes n-grams, and a pool of n-grams makes drafts.

Ngram = tuple[int, ...]
"""The tokens of an n-gram after its first token."""

NODE, LAST_RANK = 0, 3
"""Kinds of evidence: 0 is a node of the window, 1 to LAST_RANK are pooled n-grams by rank."""


class NgramPool:
    """Stores at most ``most`` n-grams for each first token; the one unused longest is replaced."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._after: dict[int, Recent[Ngram, None]] = {}

    def of(self, first: int) -> list[Ngram]:
        """Return the n-grams that begin with token ``first``, the last used one first."""
        return list(reversed(self._after.get(first, ())))

    def remember(self, first: int, ngram: Ngram) -> None:
        """Add an n-gram, or make a known one the last used."""
        self._after.setdefault(first, Recent(self.most)).put(ngram, None)


@drafter(
    "lookahead",
    paper="Break the Sequential Dependency of LLM Inference Using Lookahead Decoding",
    arxiv="2402.02057",
    aliases=("lade", "lookahead-decoding"),
    names={"LEVEL": "level", "WINDOW_SIZE": "window", "GUESS_SET_SIZE": "guesses",
           "max_ngram_size": "level", "max_window_size": "window",
           "max_verification_set_size": "guesses"},
)  # fmt: skip
class Lookahead(ModelFree):
    """Collect n-grams from a window of Jacobi trajectories, and draft those that fit (Fu 2024).

    The draft and the window are one tree. Level 0 of the window is a chain. The level-j token of
    column i is a child of the level j - 1 token of that column, and so attends to the same tokens
    as under the paper's attention mask. Pooled n-grams that begin with the last token are branches.

    The model's predictions at the last level become the new last level, and each column becomes an
    n-gram of the pool. Window and n-grams share num_speculative_tokens; the paper uses 56 nodes:
    ``level=5, window=7, guesses=7``.

    When: rows cost next to nothing, as on a GPU that serves one request. On a few cores the window
    costs more than it finds.
    """

    needs = Needs(all_rows=True)
    group = "lookahead"

    level: int = parameter(3, 2, 8, "number of tokens of an n-gram")
    window: int = parameter(5, 1, 32, "number of columns of the window")
    guesses: int = parameter(3, 0, 32, "n-grams that are stored for a token and verified at once")
    explore: str = choice("auto", ("auto", "always"), "auto stops drafts where rows cost too much")
    _levels: list[list[int]] = field(default_factory=list, repr=False)
    _columns: list[int] = field(default_factory=list, repr=False)
    _gain: Exploration = field(default_factory=Exploration, repr=False)

    def __post_init__(self) -> None:
        self._pool = NgramPool(max(self.guesses, 1))

    def fill(self, seq: TokenSequence, draft: RatedTree, limit: int) -> None:
        step = self.level - 1
        # The width depends only on the limit, because a window that shrinks does not grow again.
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
            return  # The tree was clipped near the end of the output, so the window cannot go on.
        new = reply.logits.argmax()[[rows[node] for node in self._columns]].tolist()
        if len(self._levels) < self.level - 1:
            self._levels.append(new)  # The window is still being filled.
            return
        firsts = [int(seq.tokens[-1]), *self._levels[0]]
        for column, token in enumerate(new):
            above = (row[column] for row in self._levels[1:])
            self._pool.remember(firsts[column], (*above, token))
        # The window moves by one position, whatever was accepted: level 0 begins one token later.
        first, *later = [*self._levels[1:], new]
        self._levels = [first[1:], *later]

    def _planted(self, seq: TokenSequence, draft: RatedTree, width: int) -> list[int]:
        """Add the window to the draft, and return the nodes of its last level, by column."""
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
