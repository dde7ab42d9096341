"""S2D: a draft model with several exits; a token leaves at the first one that is sure of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from paradecode.core.errors import InvalidInput
from paradecode.core.request import DRAFT
from paradecode.core.sequence import TokenSequence
from paradecode.methods.draft.acceptance import Calibration
from paradecode.methods.draft.loop import Proposal
from paradecode.methods.draft.method import drafter
from paradecode.methods.draft.model_drafter import ModelDrafter
from paradecode.methods.draft.needs import Needs
from paradecode.methods.draft.nested_rows import NestedRows
from paradecode.methods.parameters import parameter, text


def read_exits(listed: str) -> tuple[int, ...]:
    """``'6 9 12'`` as layers; raises ValueError unless they ascend from 1 on."""
    numbers = listed.split()
    if not all(one.isascii() and one.isdecimal() and len(one) < 6 for one in numbers):
        raise ValueError("give numbers of layers separated by spaces, as in '6 9 12'")
    exits = tuple(map(int, numbers))
    if any(low >= high for low, high in zip((0, *exits), exits)):
        raise ValueError("exits must ascend, and the first must have a layer before it")
    return exits


def usual_exits(layers: int) -> tuple[int, ...]:
    """Behind half of the layers, three quarters and all."""
    return tuple(sorted({-(-layers // 2), -(-layers * 3 // 4), layers}))


@drafter(
    "s2d",
    paper="S2D: Sorted Speculative Decoding",
    arxiv="2407.01955",
    url="https://github.com/parsareal/SD2",
    aliases=("sd2",),
    models=(DRAFT,),
)
@dataclass
class SortedDraft(ModelDrafter):
    """A draft model with nested exits runs as deep as each token needs (Kavehzadeh et al. 2024).

    Behind some of its layers the model's last norm and LM head guess. A guess whose best token has
    at least the probability ``sure`` is taken there; otherwise the row goes on to the next exit.
    Rows that left early wait before the deeper layers, and run through them when a later row gets
    there, so every row sees what it would see in a whole forward. Rows of rejected tokens are
    dropped. The draft is a chain.

    A token is drawn from the row of the exit that made its guess, so every verifier stays exact.
    The published code takes each exit's best token and tests it as if it had been drawn, which is
    biased. Its trees of 60 nodes are not here: a level would run as deep as its least sure node,
    and a draft model's trees gain little (``docs/training.md``).

    When: as ``draft-model``, and the exits were trained (``paradecode train sorted``).
    """

    needs = Needs(noise=True, draws=True, levels=True, runs=(DRAFT,), rests=True)

    exits: str = text(read_exits, "layers before each exit: '6 9 12'; by default half, 3/4 and all")
    sure: float = parameter(0.5, 0.0, 2.0, "probability that leaves early; above 1 none does")
    _rows: NestedRows | None = field(default=None, init=False, repr=False)

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        if self._rows is None:
            layers = seq.about(DRAFT).layers
            exits = read_exits(self.exits) or usual_exits(layers)
            if exits[-1] > layers:
                fix = f"the draft model has {layers} layers"
                raise InvalidInput("s2d.exits", self.exits, fix)
            self._rows = NestedRows(exits, self.sure)
        # Settings that hardly differ learn together.
        calibration = seq.shared(f"s2d {self._rows.exits} {self.sure:.2f}", Calibration)
        return self.grow(seq, limit, self._rows, 1, calibration)
