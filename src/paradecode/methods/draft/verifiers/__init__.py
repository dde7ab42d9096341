"""Verifiers: which draft tokens stay, and which token follows them."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.core.decoder import Guarantee
from paradecode.core.request import Reply
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import Mode, TokenTree
from paradecode.methods.draft.verifiers.coupled import Verifier, coupled, greedy
from paradecode.methods.draft.verifiers.nss import nss
from paradecode.methods.draft.verifiers.recursive import naive_tree, recursive, rejection
from paradecode.methods.draft.verifiers.rule import Rule, verifier
from paradecode.methods.draft.verifiers.spectr import spectr
from paradecode.methods.draft.verifiers.traversal import block, traversal
from paradecode.methods.draft.verifiers.typical import typical

__all__ = ["RULES", "VERIFIERS", "Verifier", "VerifierEntry", "coupled", "greedy"]


@dataclass(frozen=True)
class VerifierEntry:
    """An entry of the table of verifiers; calling it verifies.

    Attributes:
        verify: the function.
        guarantee: what the output has in common with plain decoding, whatever the tree.
        modes: the draws it makes use of; on others it falls back to a rule that is exact for them.
            Empty when it never looks at how a tree was made.
        paper, arxiv: where it comes from.
        summary: what it does, in a line.
    """

    verify: Verifier
    guarantee: Guarantee
    modes: tuple[Mode, ...]
    paper: str
    arxiv: str | None
    summary: str

    @property
    def reads_draws(self) -> bool:
        return bool(self.modes)

    def __call__(self, seq: Sequence, tree: TokenTree, reply: Reply) -> Verdict:
        return self.verify(seq, tree, reply)


RULES: dict[str, Rule] = {
    "rejection": rejection,
    "specinfer": recursive,
    "naive-tree": naive_tree,
    "nss": nss,
    "rsd": recursive,
    "block": block,
    "traversal": traversal,
    "spectr": spectr,
    "typical": typical,
}
"""The sampling verifiers as pure functions of (rows of p, tree, chance)."""

_IID = (Mode.IID,)
_DRAWN = (Mode.IID, Mode.SWOR)


def _sampling(
    name: str,
    modes: tuple[Mode, ...],
    paper: str,
    arxiv: str,
    summary: str,
    guarantee: Guarantee = "distribution",
) -> VerifierEntry:
    return VerifierEntry(verifier(RULES[name]), guarantee, modes, paper, arxiv, summary)


VERIFIERS: dict[str, VerifierEntry] = {
    "coupled": VerifierEntry(
        coupled, "exact", (), "Gumbel coupling of draft and target", None,
        "the tokens of plain decoding, at any temperature",
    ),
    "greedy": VerifierEntry(
        greedy, "exact", (), "Blockwise Parallel Decoding", "1811.03115",
        "the argmax; temperature 0 only",
    ),
    "rejection": _sampling(
        "rejection", _DRAWN, "Fast Inference from Transformers via Speculative Decoding",
        "2211.17192", "one draft token at each depth, tested with p / q",
    ),
    "specinfer": _sampling(
        "specinfer", _DRAWN, "SpecInfer", "2305.09781",
        "siblings one after another, each against what the last ones left of p",
    ),
    "naive-tree": _sampling(
        "naive-tree", _DRAWN, "Dynamic Delayed Tree Expansion", "2602.16994",
        "the first sibling with p / q, the others when the residual happens to give them",
    ),
    "nss": _sampling(
        "nss", (), "SpecInfer (naive sampling)", "2305.09781",
        "draw from p, go on if the token was drafted; any tree",
    ),
    "rsd": _sampling(
        "rsd", _DRAWN, "Recursive Speculative Decoding", "2402.14160",
        "as specinfer, for siblings drawn without replacement",
    ),
    "block": _sampling(
        "block", _DRAWN, "Block Verification Accelerates Speculative Decoding", "2403.10444",
        "the longest prefix of a chain, judged as a whole",
    ),
    "traversal": _sampling(
        "traversal", _DRAWN, "Traversal Verification for Speculative Tree Decoding",
        "2505.12398", "leaves first: block verification of trees",
    ),
    "spectr": _sampling(
        "spectr", _IID, "SpecTr", "2310.15141",
        "k draws with replacement by approximate optimal transport",
    ),
    "typical": _sampling(
        "typical", (), "Medusa", "2401.10774",
        "what the target finds plausible; changes the law of the output", "lossy",
    ),
}  # fmt: skip
