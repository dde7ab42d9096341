"""PPD: trained prompt tokens behind the draft say what may follow it."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.core.logits import Logits
from paradecode.core.request import TARGET, Forward, Reply
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.candidates import candidates
from paradecode.methods.draft.growth import grow
from paradecode.methods.draft.loop import Drafter
from paradecode.methods.draft.method import drafter
from paradecode.methods.draft.model_free import RatedTree
from paradecode.methods.draft.needs import Needs
from paradecode.methods.draft.prompt_rows import PromptRows, new_odds, paying, root_only
from paradecode.methods.parameters import local_path, parameter

TRIAL = 32
"""After so many steps without prompt rows the root has some, whether they pay or not."""


@drafter(
    "ppd",
    paper="Hardware-Aware Parallel Prompt Decoding for Memory-Efficient Acceleration of LLM "
    "Inference",
    arxiv="2405.18628",
    training="the target's prompt tokens",
    aliases=("parallel-prompt-decoding",),
)
@dataclass
class Ppd(Drafter):
    """Rows of trained embeddings in the target's own forward guess the tokens further on.

    Chen et al. 2024. Prompt row k behind a token guesses the token k + 1 further on; the guesses
    behind the last accepted token make the next draft. A node gets prompt rows by the paper's rule
    (the chance that a verification ends there times what a level of guesses adds), with rates that
    are counted while decoding, and this machine's measured cost of rows.

    When: there are such tokens for the target, a draft may cost no model, and rows are cheap.
    """

    needs = Needs(noise=True, all_rows=True, runs=(TARGET,))

    head: str = local_path("folder of the prompt tokens")
    width: int = parameter(10, 1, 32, "candidates of each level")
    _seq: Sequence | None = field(default=None, init=False, repr=False)
    _limit: int = field(default=0, init=False, repr=False)
    _idle: int = field(default=0, init=False, repr=False)
    _rated: RatedTree | None = field(default=None, init=False, repr=False)
    _rows: PromptRows | None = field(default=None, init=False, repr=False)
    _guesses: Logits | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.head:
            raise InvalidInput("head", "", "name the folder of the target's prompt tokens")

    def draft(self, seq: Sequence, limit: int) -> TokenTree:
        levels = len(self._prompts(seq))
        odds = seq.shared(f"ppd {self.head} {self.width}", lambda: new_odds(levels, self.width))
        self._seq, self._limit, self._rated = seq, limit, RatedTree(odds)
        found: list[list[tuple[int, int]]] = []
        for row in range(self._guesses.shape[0] if self._guesses is not None else 0):
            path = [level[0][0] for level in found]  # For penalties: the likeliest one.
            one = self._guesses.select([row])  # type: ignore[union-attr]
            _, ids, chances = candidates(seq, one, [path], self.width, None, self.offer.noise)
            ranked = enumerate(ids[0][chances[0] > 0].tolist(), row * self.width)
            found.append([(token, kind) for kind, token in ranked])
        if found:
            grow(self._rated, limit, len(found), lambda path: found[len(path)])
        return self._rated.tree()

    def score(self, forward: Forward) -> Generator[Forward, Reply, Reply]:
        if self._seq is None or self._rated is None:  # The budget wants no draft now.
            return (yield forward)
        seq, prompts, odds = self._seq, self._prompts(self._seq), self._rated.odds
        counts = paying(seq, forward, odds, len(prompts), self.width, self._limit)
        self._idle = 0 if counts.any() else self._idle + 1
        if self._idle == TRIAL:
            counts, self._idle = root_only(seq, forward, len(prompts)), 0
        self._rows = PromptRows(prompts, counts)
        return (yield from self._rows.score(forward))

    def observe(self, seq: Sequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        if self._rated is not None:
            self._rated.book(tree, verdict)
        self._guesses = self._rows.behind(verdict.rows[-1]) if self._rows else None
        self._seq = self._rated = self._rows = None

    def _prompts(self, seq: Sequence) -> NDArray[np.float32]:
        found = seq.head(self.head)
        if found.prompts is None:  # Another method's.
            raise InvalidInput("head", found.kind, "name a folder of prompt tokens")
        return found.prompts
