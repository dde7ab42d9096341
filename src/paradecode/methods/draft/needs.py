"""What a drafter asks of the loop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Needs:
    """What a drafter wants and does; it is read once, when a request begins.

    Attributes:
        all_rows: ``observe`` is shown every row of a verification: also those of tokens that a
            constraint, or another drafter of a fusion, added to the tree.
        noise: it may guess with the noise that the target's own draw will see. It is allowed to
            (``offer.noise``) under the coupled verifier only.
        draws: it can draw its tree from a distribution q and keep q, for verifiers that test p / q
            (``offer.draws``). The trees of other drafters count as chosen by a rule.
        levels: it grows its tree with a model, level by level, and asks ``offer.budget`` before
            each level whether another one pays.
        heads: it runs a trained head, whose time is spent before its tree can be judged.
        runs: models whose tentative rows it uses. Only one drafter of a fusion may use a model's.
        fuses: it may be a part of a fusion.
        rests: of steps that go without a draft it needs nothing but the states of its ``hidden``
            layers. So a backend may make several of them in one call (``rested``).
    """

    all_rows: bool = False
    noise: bool = False
    draws: bool = False
    levels: bool = False
    heads: bool = False
    runs: tuple[str, ...] = ()
    fuses: bool = True
    rests: bool = False

    @property
    def costs(self) -> bool:
        """Its drafts cost the time of a model or of a head."""
        return self.levels or self.heads
