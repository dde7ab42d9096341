"""Prompt lookup: what followed the last time the text ended like this?"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from paradecode.core.errors import InvalidInput
from paradecode.core.request import Reply
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.methods.draft.loop import Drafter, Proposal
from paradecode.methods.draft.method import drafter
from paradecode.methods.draft.ngram_table import (
    LEAST,
    ORDER,
    TableDrafts,
    load_ngrams,
)
from paradecode.methods.draft.odds import Odds
from paradecode.methods.parameters import local_path, parameter

LONGEST = 16
"""Matching tokens that are counted."""
PLACES = 8
"""Occurrences of an n-gram that are compared; of more, the latest ones."""
_MATCHED = (1, 2, 3, 7, 15)
ALONE, AGREES, DIFFERS = range(3)
"""What the table says of a copied token: nothing, the same, or another one."""
PRIOR = (
    0.25, 0.54, 0.25,
    0.5, 0.72, 0.47,
    0.65, 0.88, 0.61,
    0.78, 0.89, 0.75,
    0.88, 0.94, 0.87,
    0.96, 0.97, 0.96,
)  # fmt: skip
"""Chance that a copied token is right before anything was seen (measured, 135M). A line is for 1,
2, 3, 4 to 7, 8 to 15, and more tokens before it that match, drafted ones included."""


@drafter(
    "prompt-lookup",
    paper="Prompt Lookup Decoding",
    url="https://github.com/apoorvumang/prompt-lookup-decoding",
    aliases=("ngram", "prompt_lookup", "pld", "ngram-simple"),
    names={
        "prompt_lookup_max": "max_ngram",
        "prompt_lookup_min": "min_ngram",
        "max_matching_ngram_size": "max_ngram",
        "prompt_lookup_num_tokens": "num_speculative_tokens",
        "lookup_cache_static": "table",
    },
)
@dataclass
class PromptLookup(Drafter):
    """Copy what followed an earlier occurrence of the last n tokens (Saxena 2023).

    The longest n-gram that occurred before wins. Of its last occurrences it is the one before which
    most text matches, or else the latest. An index from n-gram to positions grows with the
    sequence, so a step costs O(max_ngram), not O(length).

    ``table``, a file made by ``paradecode train ngram-table`` or the name of a model whose table
    comes with the package, is asked at every drafted token and heard where the text itself has
    nothing better to say, like the static cache of llama.cpp's lookup. Behind a token of the table
    the n-grams are looked up again.

    When: a good start everywhere, and the default. Answers that repeat their prompt or themselves
    gain most (edits, extraction, lists, agents), free chat next to nothing.
    """

    max_ngram: int = parameter(3, 1, 32, "longest suffix that is looked up")
    min_ngram: int = parameter(1, 1, 32, "shortest suffix that is looked up")
    table: str = local_path("what the model often says: `paradecode train ngram-table`")
    _places: dict[tuple[int, ...], list[int]] = field(default_factory=dict, repr=False)
    _text: list[int] = field(default_factory=list, repr=False)
    _odds: Odds = field(default_factory=lambda: Odds(PRIOR), repr=False)
    _table: TableDrafts | None = field(default=None, repr=False)
    _kinds: list[tuple[bool, int]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        if self.min_ngram > self.max_ngram:
            raise InvalidInput("prompt-lookup.min_ngram", self.min_ngram, "give at most max_ngram")
        if self.table:
            self._table = TableDrafts(load_ngrams(self.table))

    def propose(self, seq: Sequence, limit: int) -> Proposal:
        if self._table is not None and not self._text:
            self._table.require(seq.about().vocab_size)
        self._enter(seq.tokens[len(self._text) :].tolist())
        tokens, chances = self._draft(limit)
        return TokenTree.chain(tokens, chances) if tokens else EMPTY
        yield  # A generator, though this drafter needs nothing from the engine.

    def observe(self, seq: Sequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        accepted = len(verdict.tokens) - 1
        for place, (copied, kind) in enumerate(self._kinds[: min(accepted + 1, len(tree))]):
            if copied:
                self._odds.update(kind, int(place < accepted), 1)
            elif self._table is not None:
                self._table.book(kind, place < accepted)

    def _draft(self, limit: int) -> tuple[list[int], list[float]]:
        """At most ``limit`` tokens, and how likely each is, given those before it."""
        text, table = self._text, self._table
        recent = text[-max(LONGEST, self.max_ngram) :]
        tokens, chances, path = list[int](), list[float](), 1.0
        self._kinds = []
        place, matched = self._find(recent)
        while len(tokens) < limit:
            said = None
            if table is not None and matched < LONGEST:  # A copy that long knows better.
                said = table.after(tuple(recent[-ORDER:]))
            token, chance, kind = -1, 0.0, 0
            if place > 0:
                # The copy may run into what it copies: a period goes on for ever.
                token = text[place] if place < len(text) else tokens[place - len(text)]
                opinion = ALONE if said is None else AGREES if said[0] == token else DIFFERS
                kind = 3 * bisect_left(_MATCHED, matched) + opinion
                chance = self._odds.of(kind)
            follows = place > 0
            if said is not None and said[1] > chance:
                follows = said[0] == token
                self._kinds.append((False, said[2]))
                token, chance = said[:2]
                if path * chance < LEAST:
                    break
            elif follows:
                self._kinds.append((True, kind))
            else:
                break
            path *= chance
            tokens.append(token)
            chances.append(chance)
            recent.append(token)
            place, matched = (place + 1, matched + 1) if follows else self._find(recent)
        return tokens, chances

    def _find(self, recent: list[int]) -> tuple[int, int]:
        """Where the end of ``recent`` was followed before, and how many tokens match there.

        The place is 0 when it never was.
        """
        text = self._text
        for size in range(min(self.max_ngram, len(recent)), self.min_ngram - 1, -1):
            ends = self._places.get(tuple(recent[-size:]))
            if ends is None:
                continue
            best = longest = 0
            for end in reversed(ends):
                most, same = min(end, len(recent), LONGEST), size
                while same < most and text[end - 1 - same] == recent[-1 - same]:
                    same += 1
                if same > longest:
                    best, longest = end, same
            return best, longest
        return 0, 0

    def _enter(self, tokens: list[int]) -> None:
        """Append tokens; every n-gram that ends before the last one is entered."""
        text, first = self._text, len(self._text)
        text += tokens
        for end in range(max(first, 1), len(text)):
            for size in range(self.min_ngram, min(self.max_ngram, end) + 1):
                ends = self._places.setdefault(tuple(text[end - size : end]), [])
                ends.append(end)
                if len(ends) > PLACES:
                    del ends[0]
