"""REST and RASD: retrieve drafts from a corpus, by exact match of the longest suffix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paradecode.core.decoder import TokenSequence
from paradecode.core.errors import InvalidInput
from paradecode.core.tree import ROOT, TokenTree
from paradecode.core.tree_builder import merge
from paradecode.methods.draft.datastore import CONTEXT, Datastore, open_datastore
from paradecode.methods.draft.fuse import Fused
from paradecode.methods.draft.history import continuations, following, occurrences, plant
from paradecode.methods.draft.loop import drafter
from paradecode.methods.draft.model_free import ModelFree, RatedTree
from paradecode.methods.draft.needs import Needs
from paradecode.methods.parts import choice, local_path, make, parameter


@drafter(
    "retrieval",
    paper="REST: Retrieval-Based Speculative Decoding",
    arxiv="2311.08252",
    aliases=("rest",),
    names={
        "datastore_path": "datastore",
        "num_draft": "num_speculative_tokens",
        "max_span": "max_ngram",
        "min_span": "min_ngram",
    },
)
@dataclass
class Retrieval(ModelFree):
    """Draft what most often follows the longest match in a corpus of texts (He 2024).

    ``datastore`` is a file made by ``paradecode datastore``. Where it knows nothing of the last
    tokens, or there is none, the request's own text is searched in the same way. A datastore of
    another tokenizer is refused.

    When: answers repeat a body of text that you have: manuals, code, boilerplate, earlier answers.
    """

    group = "copying"
    needs = Needs(rests=True)

    datastore: str = local_path("file made by `paradecode datastore`; empty for the text itself")
    max_ngram: int = parameter(CONTEXT, 1, CONTEXT, "longest suffix that is looked up")
    min_ngram: int = parameter(2, 1, CONTEXT, "shortest suffix that is looked up")
    hits: int = parameter(256, 1, 5000, "occurrences that are counted")
    depth: int = parameter(10, 1, 64, "most draft tokens in a row")
    _store: Datastore | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.min_ngram > self.max_ngram:
            raise InvalidInput("retrieval.min_ngram", self.min_ngram, "give at most max_ngram")
        if self.datastore:
            self._store = open_datastore(self.datastore)

    def fill(self, seq: TokenSequence, draft: RatedTree, limit: int) -> None:
        tokens, matched = seq.tokens, 0
        if self._store is not None:
            vocabulary = seq.about().vocab_size
            if self._store.vocabulary > vocabulary:
                raise InvalidInput(
                    "retrieval.datastore", self.datastore,
                    f"it has token ids up to {self._store.vocabulary - 1}, the model up to "
                    f"{vocabulary - 1}: build it with this model's tokenizer",
                )  # fmt: skip
            starts, matched = self._store.find(tokens, self.max_ngram, self.min_ngram, self.hits)
            text = self._store.tokens
        if matched == 0:
            text = tokens
            starts, lengths = occurrences(text, tokens, self.max_ngram, self.hits)
            matched = int(lengths.max(initial=0))
            starts = starts[lengths == matched][::-1]
        if matched >= self.min_ngram:
            rows = following(text, starts, min(self.depth, limit))
            plant(draft, continuations(rows, limit), matched)


# RASD: retrieved drafts, pruned by a drafter's guesses and fused with its own tree.

PARTNERS = ("token-recycling", "aded", "stand", "suffix", "draft-model")


@drafter(
    "rasd",
    paper="RASD: Retrieval-Augmented Speculative Decoding",
    arxiv="2503.03434",
    aliases=("retrieval-augmented",),
)
@dataclass
class Rasd(Fused):
    """Fuse retrieved continuations with a drafter's tree, where it agrees how to begin (Quan 2025).

    A retrieved path stays when its first token is one that the drafter proposes too, or when it
    proposes nothing. Common beginnings become one; the best nodes of all are verified. The paper's
    drafter is EAGLE-2, which always runs; here ``drafter=draft-model`` runs a small model where the
    budget finds that it pays beside what was retrieved. With a draft head there is no pruning:
    ``retrieval+eagle(head=FOLDER)``.

    When: a datastore fits some of the answers, and a drafter shall fill in elsewhere. Where it fits
    most of them, ``retrieval`` alone costs less.
    """

    datastore: str = local_path("file made by `paradecode datastore`; empty for the text itself")
    drafter: str = choice("token-recycling", PARTNERS, "what prunes and joins")

    def __init__(self, datastore: str = "", drafter: str = "token-recycling") -> None:
        self.datastore, self.drafter = datastore, drafter
        super().__init__([Retrieval(datastore=datastore), make("drafter", drafter)])

    def join(self, drafts: Sequence[TokenTree], limit: int) -> TokenTree:
        retrieved, drafted = drafts
        if len(drafted):
            roots = retrieved.parents == ROOT
            known = np.isin(retrieved.tokens, drafted.tokens[drafted.parents == ROOT])
            retrieved = retrieved.select(~roots | known)
        return merge([drafted, retrieved]).best(limit)
