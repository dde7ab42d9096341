"""A masked diffusion model drafts: all masks behind the text in one forward."""

from __future__ import annotations

from dataclasses import dataclass, field

from paradecode.core.request import DRAFT
from paradecode.core.sequence import TokenSequence
from paradecode.methods.draft.acceptance import Calibration
from paradecode.methods.draft.loop import Proposal
from paradecode.methods.draft.mask_rows import MaskSource
from paradecode.methods.draft.method import drafter
from paradecode.methods.draft.model_drafter import ModelDrafter
from paradecode.methods.draft.needs import Needs
from paradecode.methods.parameters import parameter


@drafter(
    "deer",
    paper="DEER: Draft with Diffusion, Verify with Autoregressive Models",
    arxiv="2512.15176",
    aliases=("diffusion-draft", "dllm-draft"),
    models=(DRAFT,),
)
@dataclass
class Deer(ModelDrafter):
    """A diffusion model fills masks behind the text in one forward, and the target verifies them.

    However long it is, a draft costs one forward, and its guesses do not know of one another. So a
    wrong one does not spoil those behind it, and each is drawn from a q of its own, as verifiers
    that test p / q need it. Any draft model with a mask token serves: with full attention (LLaDA,
    Dream) the keys and values of earlier drafts are used again for ``refresh`` drafts, which cannot
    change the output; with blocks (SDAR) or causal attention they are exact.

    When: there is a small diffusion model that was trained on texts like the target's, such as one
    of ``train deer``.
    """

    needs = Needs(noise=True, draws=True, levels=True, runs=(DRAFT,), rests=True)

    width: int = parameter(2, 1, 16, "candidates of each node; 1 drafts a chain")
    masks: int = parameter(32, 0, 4096, "full attention: masks behind the text; 0: max_tokens")
    refresh: int = parameter(16, 1, 4096, "full attention: drafts before all is computed anew")
    _source: MaskSource = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._source = MaskSource(self.masks, self.refresh)

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        return self.grow(seq, limit, self._source, self.width, seq.shared("deer", Calibration))
