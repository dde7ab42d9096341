"""M2R2: a second stream beside the target's first layers drafts until a guess is not sure."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.draft.drafters.kangaroo import Kangaroo
from paradecode.methods.draft.method import drafter

SOURCE = "an M2R2 stream of the target"


@drafter(
    "m2r2",
    paper="M2R2: Mixture of Multi-Rate Residuals for Efficient Transformer Inference",
    arxiv="2502.02040",
    training=SOURCE,
    names={"exit_threshold": "sure"},
)
@dataclass
class M2R2(Kangaroo):
    """A second stream passes the target's first layers beside its own, and is ahead of it.

    Bhendawade et al. 2025. In each of these layers the stream asks with a query of its own, sees
    the target's keys and values, and goes through the layer's MLP, to both of which a trained part
    of low rank is added. Behind the last of them it stands for the target's last state. A draft
    grows as ``kangaroo``'s does: the target's first layers run on each draft token, and the
    verification goes on behind them. We know the paper's abstract only: the rest is inferred. Its
    router that chooses an exit for each token is not here; a draft ends with a token that is not
    ``sure``.

    When: there is such a stream, and the layers that it passes are few of many.
    """

    source = SOURCE
    kinds = ("m2r2",)
