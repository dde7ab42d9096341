"""RASD: retrieved drafts, pruned by a drafter's guesses and fused with its own tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paradecode.core.tree import ROOT, TokenTree
from paradecode.core.tree_builder import merge
from paradecode.methods.draft.drafters.retrieval import Retrieval
from paradecode.methods.draft.fuse import Fused
from paradecode.methods.draft.method import drafter
from paradecode.methods.parts import choice, local_path, make

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
