"""Prompt lookup as a tree: the copied tokens, and beside them the tokens of an n-gram table."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from paradecode.core.decoder import Reply, TokenSequence, Verdict
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.acceptance import BothOdds, Odds
from paradecode.methods.draft.drafters.prompt_lookup import AGREES, ALONE, DIFFERS, PromptLookup
from paradecode.methods.draft.loop import drafter
from paradecode.methods.draft.model_free import ModelFree, RatedTree
from paradecode.methods.draft.ngram_index import LONGEST, length_class
from paradecode.methods.draft.ngram_table import LEAST, ORDER

Match = tuple[int, int]
"""A place where the text continues, and how many tokens match before it; place 0 means nowhere."""
LOST: Match = 0, -1
"""The match behind a token that no copy continues with: it has to be looked up."""


@drafter(
    "lookup-tree", paper="Prompt Lookup Decoding",
    url="https://github.com/apoorvumang/prompt-lookup-decoding",
)  # fmt: skip
@dataclass
class LookupTree(PromptLookup):
    """Prompt lookup that tries several tokens at a place, in a tree that grows where it is likely.

    The children of a node are the token that a copy goes on with, and those that the table knows
    behind the last four tokens (``train ngram-table --alternatives 3``). The node that the target
    most likely reaches is added next, until the draft is full.

    When: large models, of which a forward of eight rows costs little more than one of one row. On
    small ones the chains of ``prompt-lookup`` pay more.
    """

    def draft(self, seq: TokenSequence, limit: int) -> TokenTree:
        return ModelFree.draft(self, seq, limit)

    def observe(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        ModelFree.observe(self, seq, tree, reply, verdict)

    def learn(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        """Do nothing: the odds are all that this drafter learns."""

    def multi_step(self, seq: TokenSequence) -> None:
        return None  # The backend makes chains only.

    def fill(self, seq: TokenSequence, draft: RatedTree, limit: int) -> None:
        index, text = self._index, self._index.text
        if self._table is not None:
            if not text:
                self._table.table.require(seq.about().vocab_size)
            draft.odds = BothOdds(draft.odds, self._table.odds)
        index.extend(seq.tokens[len(text) :].tolist())
        recent = text[-max(LONGEST, self.max_ngram) :]
        # Of nodes that could be next: -reach, number, parent, token, kind, path to it, match.
        next_ones: list[tuple[float, int, int, int, int, list[int], Match]] = []
        found, node, path, reach, match = count(), ROOT, list[int](), 1.0, index.find(recent)
        while len(draft) < limit:
            for token, kind, goes_on in self._children(recent, path, match, draft.odds):
                chance = reach * draft.odds.of(kind)
                if chance >= LEAST or goes_on:
                    place = (match[0] + 1, match[1] + 1) if goes_on else LOST
                    row = (-chance, next(found), node, token, kind, [*path, token], place)
                    heappush(next_ones, row)
            if not next_ones:
                return
            minus, _, parent, token, kind, path, match = heappop(next_ones)
            node, reach = draft.rate(parent, token, kind), -minus
            match = index.find([*recent, *path]) if match is LOST else match

    def _children(
        self, recent: list[int], path: list[int], match: Match, odds: Odds
    ) -> list[tuple[int, int, bool]]:
        """The tokens that may follow, each once with its likeliest kind: token, kind, and
        whether a copy continues with it."""
        (place, matched), text, kinds = match, self._index.text, dict[int, int]()
        said = list[tuple[int, int]]()
        if self._table is not None and matched < LONGEST:  # A copy that long knows better.
            said = list(self._table.table.known(tuple([*recent, *path][-ORDER:])))
        copied = -1
        if place > 0:  # The copy may run into what it copies: a period goes on for ever.
            copied = text[place] if place < len(text) else path[place - len(text)]
            opinion = ALONE if not said else AGREES if said[0][0] == copied else DIFFERS
            kinds[copied] = 3 * length_class(matched) + opinion
        for token, bucket in said:
            kind = bucket + (odds.first if isinstance(odds, BothOdds) else 0)
            if token not in kinds or (token == copied and odds.of(kind) > odds.of(kinds[token])):
                kinds[token] = kind
        return [(token, kind, token == copied) for token, kind in kinds.items()]
