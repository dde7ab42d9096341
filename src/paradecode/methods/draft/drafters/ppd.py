"""PPD: trained prompt tokens behind the draft guess what may follow it."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.core.decoder import TokenSequence
from paradecode.core.head import Head
from paradecode.methods.draft.head_drafter import head_method
from paradecode.methods.draft.prompt_rows import Counts, PromptRows
from paradecode.methods.draft.row_drafter import RowDrafter


@head_method(
    "ppd",
    "the target's prompt tokens",
    paper="Hardware-Aware Parallel Prompt Decoding for Memory-Efficient Acceleration of LLM "
    "Inference",
    arxiv="2405.18628",
    aliases=("parallel-prompt-decoding",),
)
@dataclass
class Ppd(RowDrafter):
    """Rows of trained embeddings in the target's own forward guess the tokens further on.

    Chen et al. 2024. Prompt row k behind a token guesses the token k + 1 further on; the guesses
    behind the last accepted token make the next draft. A node gets prompt rows by the paper's rule
    (the chance that a verification ends there times what a level of guesses adds), with rates that
    are counted while decoding, and this machine's measured cost of rows.

    When: there are such tokens for the target, a draft may cost no model, and rows are cheap.
    """

    def levels(self, head: Head) -> int:
        return 0 if head.prompts is None else len(head.prompts)

    def rows(self, seq: TokenSequence, head: Head, counts: Counts) -> PromptRows:
        assert head.prompts is not None
        return PromptRows(counts, head.prompts)
