"""A neighbour's stream notices no attack. The checks would find an attack that it noticed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("llguidance")

attacks = pytest.importorskip("tools.serving.attacks")

from tools.serving.neighbour import Noticed
from tools.serving.server import serving

TOYS = ("tiny=paradecode/tiny-autoregressive", "canvas=paradecode/tiny-diffusion")
TRIES = 3
"""Number of tries, because other work on the machine may delay a stream once, but not each time."""


def test_the_table() -> None:
    assert len({attack.name for attack in attacks.ATTACKS}) == len(attacks.ATTACKS) >= 60
    for attack in attacks.ATTACKS:
        assert attack.sends
        assert 500 not in attack.expected
        each = attacks.prepared(attack)
        assert len(each) == attack.at_once
        assert isinstance(each[0], bytes if attack.path else list)


@pytest.mark.parametrize(
    ("seen", "status", "said"),
    [(Noticed(1.3, 0.1, 0, 9), 400, "paused for 1.30 s"), (Noticed(0.2, 0.26, 0, 9), 400, "took"),
     (Noticed(0.2, 0.1, 0, 9), 200, "answered with {200: 1}"), (Noticed(), 400, "no stream"),
     (Noticed(0.2, 0.1, 0, 9, "500"), 400, "neighbour: 500")],
)  # fmt: skip
def test_what_a_neighbour_notices_is_told(seen: Noticed, status: int, said: str) -> None:
    attack = next(one for one in attacks.ATTACKS if one.expected == (400,))
    (found,) = attacks.complaints(attack, Counter([status]), seen, 0.2)
    assert said in found
    assert not attacks.complaints(attack, Counter([400]), Noticed(0.2, 0.1, 0, 9), 0.2)


@pytest.mark.slow
def test_no_attack_is_noticed(tmp_path: Path) -> None:
    """No attack is noticed on the small models that ship.

    The committed run uses the default model.
    """
    left = list(attacks.ATTACKS)
    with serving(TOYS, tmp_path / "log", attacks.OPTIONS) as server:
        for _ in range(TRIES):
            found = attacks.run(server, left)
            left = [
                one for one in left if any(w.startswith(f"{one.name}:") for w in found["wrong"])
            ]
            assert found["after"]["restarts"] == 0
            if not left:
                break
    assert not found["wrong"]
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert '"crash"' not in log
