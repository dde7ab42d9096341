"""Prophet decides as its base does until the answer is settled, then everything at once."""

import pytest
from canvases import MASK, PROMPT, run, steps, toy

from paradecode.core.errors import InvalidInput
from paradecode.methods.specs import parse
from paradecode.testing.toy import ToyBackend, toy_config

WHOLE = "answer_start=0,answer_length=24"
NEVER = "high=1e9,middle=1e9,low=1e9"
AT_ONCE = "high=-1e9,middle=-1e9,low=-1e9"


def test_thresholds_fall_with_progress() -> None:
    """The threshold falls as steps go by, so the request ends at the planned share of steps.

    A threshold of 1e9 is never reached, and one of -1e9 always.
    """
    for settings, exit_step in (
        ("high=1e9,middle=-1e9,low=-1e9", 8),  # 8 / 24 is the first that is not below 0.33
        ("high=1e9,middle=1e9,low=-1e9", 17),
        ("high=-1e9,middle=1e9,low=1e9", 1),
    ):
        prophet = run(toy("full"), f"prophet({settings},{WHOLE},block_length=8)", max_tokens=24)
        assert prophet.forwards == exit_step


def test_without_an_answer_s_place_it_is_its_base() -> None:
    made, plain = run(toy("full"), f"prophet({AT_ONCE})"), run(toy("full"), "static")
    assert steps(made) == steps(plain)


def test_anchor_stays_and_the_answer_is_behind_it() -> None:
    for kind in ("full", "shift"):
        anchored = run(toy(kind), f"prophet(anchor='12:5 6 7',{NEVER},block_length=8)")
        assert anchored.output[12:15] == [5, 6, 7]
        assert anchored.forwards == 24 - 3
        decided = {at for step in steps(anchored) for at in step.offsets}
        assert decided == set(range(24)) - {12, 13, 14}
        one = run(toy(kind), f"prophet(anchor='12:5 6 7,-1:9',answer_start=15,{AT_ONCE})")
        assert (one.forwards, one.output[12:15], one.output[-1]) == (1, [5, 6, 7], 9)


def test_only_the_answer_counts() -> None:
    """Only the gap of the answer's position decides whether the request ends in one forward."""
    stops = set()
    for seed in range(4):
        backend = ToyBackend(toy_config(attention="full"), seed=seed, surprise=500)
        for start in (0, 9, 23):
            spec = f"prophet(answer_start={start},answer_length=1,high=5,middle=1e9,low=1e9)"
            first = Seen()
            prophet = run(backend, lambda spec=spec, first=first: first.watch(parse(spec)()))
            assert (prophet.forwards == 1) == (first.gap[start] >= 5.0)
            stops.add(prophet.forwards == 1)
    assert stops == {True, False}


class Seen:
    """Records the gaps of the first forward."""

    def watch(self, decoder):
        decide = decoder.policy.decide

        def watched(view):
            if not hasattr(self, "gap"):
                self.gap = view.gap
            return decide(view)

        decoder.policy.decide = watched
        return decoder


@pytest.mark.parametrize("spec", [
    "prophet(anchor='24:5')", "prophet(anchor='-25:5')",
    "prophet(anchor='22:5 5 5')", "prophet(anchor='3:5 6,4:7')",
    "prophet(anchor='3:29')", f"prophet(anchor='3:{MASK}')", f"prophet(anchor='0:{' 5' * 24}')",
])  # fmt: skip
def test_settings_that_do_not_fit_the_canvas(spec: str) -> None:
    with pytest.raises(InvalidInput):
        run(toy("full"), spec, PROMPT, 24)
