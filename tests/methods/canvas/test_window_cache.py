"""Window-Diffusion's context, active masks and phases."""

import pytest
from canvases import PROMPT, run, toy

from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.block_rules import Full
from paradecode.methods.canvas.caches.chosen_rows import WindowCache
from paradecode.methods.canvas.loop import Unmask
from paradecode.methods.canvas.policies.llada import Static
from paradecode.methods.specs import parse

FULL = ("full", "shift")
WHOLE = len(PROMPT) + 24


class Watched(WindowCache):
    """A cache rule that records which rows are computed and seen, and in which phase."""

    def start(self, canvas):
        super().start(canvas)
        self.phases, self.decided = [], 0

    def plan(self, canvas, window):
        made = super().plan(canvas, window)
        known = int((~canvas.masked).sum())
        if made.see.any():
            self.phases[-1].append(int(made.rows.sum()))
            rows = int(made.rows.sum())
            # The active masks, and what was decided since the phase began.
            assert rows <= self.active + known - self.decided
            assert not ((made.see | made.rows) & ~self._context).any()
            assert (canvas.stored == canvas.tokens)[made.see].all()
        else:
            self.phases.append([int(made.rows.sum())])
            self.decided = known
            assert made.rows.sum() == known + min(self.buffer, canvas.masked.sum())
        assert (made.rows & canvas.masked).sum() >= min(self.active, canvas.masked.sum())
        return made


@pytest.mark.parametrize("kind", FULL)
@pytest.mark.parametrize("score", ["confidence", "random"])
@pytest.mark.parametrize(("active", "buffer", "refresh"), [(4, 12, 6), (1, 24, 32), (3, 3, 9)])
def test_phases(kind: str, score: str, active: int, buffer: int, refresh: int) -> None:
    made = []

    def build():
        made.append(Watched(active, buffer, refresh))
        return Unmask(Static(score), Full(), made[0])

    sequence = run(toy(kind), build)
    lengths = [len(phase) for phase in made[0].phases]
    assert sequence.forwards == sum(lengths) == 24
    assert max(lengths) <= refresh
    # Short only where the context had run out of masks, or at the end.
    for length in lengths[:-1]:
        assert length == min(refresh, buffer - active + 1)
    assert sequence.rows < 24 * WHOLE


def test_more_active_positions_than_the_buffer_has_are_refused() -> None:
    for settings in ("active=9,buffer=8", "buffer=15"):
        with pytest.raises(InvalidInput):
            parse(f"static(cache=window({settings}))")
