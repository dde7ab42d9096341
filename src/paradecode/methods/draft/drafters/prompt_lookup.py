"""Prompt lookup: the draft copies the tokens that followed an earlier occurrence of the text's end.

The native core does the same, bit by bit, in ``csrc/lookup.cpp``, and
``tests/engine/test_multi_step.py`` compares the two.
"""

from __future__ import annotations

from dataclasses import field
from heapq import heappop, heappush
from itertools import count

from paradecode.core.decoder import Reply, TokenSequence, Verdict
from paradecode.core.errors import InvalidInput
from paradecode.core.multi_step import BudgetState, Lookup, LookupState, MultiStep
from paradecode.core.tree import EMPTY, ROOT, TokenTree
from paradecode.methods.draft.acceptance import BothOdds, Odds
from paradecode.methods.draft.loop import drafter
from paradecode.methods.draft.model_free import ModelFree, RatedTree
from paradecode.methods.draft.ngram_index import LONGEST, NgramIndex, length_class
from paradecode.methods.draft.ngram_table import LEAST, ORDER, TableDrafts, load_ngrams
from paradecode.methods.parts import local_path, parameter

ALONE, AGREES, DIFFERS = range(3)  # The table has no entry, the copied token, or another one.


@drafter(
    "prompt-lookup", paper="Prompt Lookup Decoding",
    url="https://github.com/apoorvumang/prompt-lookup-decoding",
    aliases=("ngram", "prompt_lookup", "pld", "ngram-simple"),
    names={
        "prompt_lookup_max": "max_ngram", "prompt_lookup_min": "min_ngram",
        "max_matching_ngram_size": "max_ngram", "lookup_cache_static": "table",
        "prompt_lookup_num_tokens": "num_speculative_tokens",
    },
)  # fmt: skip
class PromptLookup(ModelFree):
    """Copy what followed an earlier occurrence of the last n tokens (Saxena 2023).

    The longest n-gram that occurred before is used. Among its last occurrences the one with the
    most matching text before it is copied; if several match equally, the latest one. ``table`` is a
    file made by ``paradecode train ngram-table`` or the name of a model whose table comes with the
    package. It is used where the text has nothing better to copy, like the static cache of
    llama.cpp's lookup.

    When: a good start everywhere, and the default. Answers that repeat their prompt or themselves
    gain most (edits, extraction, lists, agents), free chat next to nothing.
    """

    group = "prompt-lookup"
    max_ngram: int = parameter(3, 1, 32, "longest suffix that is looked up")
    min_ngram: int = parameter(1, 1, 32, "shortest suffix that is looked up")
    table: str = local_path("what the model often says: `paradecode train ngram-table`")
    _table: TableDrafts | None = field(default=None, repr=False)
    _judged: list[tuple[Odds, int]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        if self.min_ngram > self.max_ngram:
            raise InvalidInput("min_ngram", self.min_ngram, "give at most max_ngram")
        self._table = TableDrafts(load_ngrams(self.table)) if self.table else None
        self._index = NgramIndex(self.min_ngram, self.max_ngram)

    def draft(self, seq: TokenSequence, limit: int) -> TokenTree:
        table, odds, text = self._table, self.odds(seq), self._index.text
        if table is not None and not text:
            table.table.require(seq.about().vocab_size)
        self._index.extend(seq.tokens[len(text) :].tolist())
        recent = text[-max(LONGEST, self.max_ngram) :]
        tokens, chances, path = list[int](), list[float](), 1.0
        self._judged = []
        place, matched = self._index.find(recent)
        while len(tokens) < limit:
            said, follows, token, chance, kind = None, place > 0, -1, 0.0, 0
            if table is not None and matched < LONGEST:  # A longer copy is more reliable.
                said = table.after(tuple(recent[-ORDER:]))
            if follows:  # A copy may run past the text's end and go on in its own tokens.
                token = text[place] if place < len(text) else tokens[place - len(text)]
                opinion = ALONE if said is None else AGREES if said[0] == token else DIFFERS
                kind = 3 * length_class(matched) + opinion
                chance = odds.of(kind)
            if table is not None and said is not None and said[1] > chance:
                follows = said[0] == token
                token, chance, kind = said
                if path * chance < LEAST:
                    break
                self._judged.append((table.odds, kind))
            elif follows:
                self._judged.append((odds, kind))
            else:
                break
            path *= chance
            tokens.append(token)
            chances.append(chance)
            recent.append(token)
            place, matched = (place + 1, matched + 1) if follows else self._index.find(recent)
        return TokenTree.chain(tokens, chances) if tokens else EMPTY

    def observe(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        end = len(verdict.tokens)  # The draft token here, if there is one, was rejected.
        for place, (odds, kind) in enumerate(self._judged[: min(end, len(tree))], 1):
            odds.update(kind, int(place < end), 1)

    def multi_step(self, seq: TokenSequence) -> MultiStep | None:
        """Return the description by which the backend makes several steps in one call."""
        index, table, odds, budget = self._index, self._table, self.odds(seq), self.offer.budget

        def read() -> LookupState:
            known = budget.read()
            assert known is not None  # The loop asks only if there is a state.
            said = table.odds.read() if table else [[]] * 5
            return LookupState(odds.read(), said, known.calibration, known.refusals, known.shared)

        def write(state: LookupState) -> None:
            odds.write(state.odds)
            if table is not None:
                table.odds.write(state.table_odds)
            budget.write(BudgetState(state.calibration, state.refusals))

        begun, entries = budget.read(), None if table is None else table.table
        assert begun is not None
        ends = index.shortest, index.longest
        return MultiStep(Lookup(*ends, budget.count, begun.patience, entries, read, write))


# Prompt lookup as a tree: the copied tokens, and beside them the tokens of an n-gram table.

Match = tuple[int, int]
"""A position where a copy may continue, and the number of tokens that match before it.

Position 0 means that there is no copy.
"""
LOST: Match = 0, -1
"""The match after a token that was not copied; its position must be looked up."""


@drafter(
    "lookup-tree", paper="Prompt Lookup Decoding",
    url="https://github.com/apoorvumang/prompt-lookup-decoding",
)  # fmt: skip
class LookupTree(PromptLookup):
    """Prompt lookup that tries several tokens at a place, in a tree that grows where it is likely.

    The children of a node are the token that continues the copy, and the tokens that the table has
    after the last four tokens (``train ngram-table --alternatives 3``). The node with the largest
    acceptance probability is added next, until the draft is full.

    When: large models, in which a forward pass of eight rows costs little more than one of one row.
    On small models the chains of ``prompt-lookup`` gain more.
    """

    def draft(self, seq: TokenSequence, limit: int) -> TokenTree:
        return ModelFree.draft(self, seq, limit)

    def observe(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        ModelFree.observe(self, seq, tree, reply, verdict)

    def learn(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        """Do nothing, because this drafter learns only acceptance estimates."""

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
        # Candidate nodes: -reach, number, parent, token, kind, path to the node, match.
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
        """Return the tokens that may follow, each once with its most probable kind of evidence.

        Each entry is the token, its kind of evidence, and True if a copy continues with it.
        """
        (place, matched), text, kinds = match, self._index.text, dict[int, int]()
        said = list[tuple[int, int]]()
        if self._table is not None and matched < LONGEST:  # A longer copy is more reliable.
            said = list(self._table.table.known(tuple([*recent, *path][-ORDER:])))
        copied = -1
        if place > 0:  # A copy may run past the text's end and go on in its own tokens.
            copied = text[place] if place < len(text) else path[place - len(text)]
            opinion = ALONE if not said else AGREES if said[0][0] == copied else DIFFERS
            kinds[copied] = 3 * length_class(matched) + opinion
        for token, bucket in said:
            kind = bucket + (odds.first if isinstance(odds, BothOdds) else 0)
            if token not in kinds or (token == copied and odds.of(kind) > odds.of(kinds[token])):
                kinds[token] = kind
        return [(token, kind, token == copied) for token, kind in kinds.items()]
