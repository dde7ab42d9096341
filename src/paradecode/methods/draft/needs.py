"""The needs of a drafter: what it asks of the loop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Needs:
    """What a drafter needs and does; the loop reads it once, when a request begins.

    Attributes:
        all_rows: ``observe`` gets every row of a verification, also those of tokens that a
            constraint, or another drafter of a fusion, added to the tree.
        noise: the drafter can guess with the noise that the target's own draw will see. The loop
            allows it (``offer.noise``) under the coupled verifier only.
        draws: the drafter can draw its tree from a distribution q and keep q, for verifiers that
            test p / q (``offer.draws``). Trees of other drafters count as chosen by a rule.
        levels: the drafter grows its tree with a model, level by level, and asks ``offer.budget``
            before each level whether another one pays.
        heads: the drafter runs a trained head, whose time is spent before its tree can be judged.
        runs: models whose tentative rows it uses. Only one drafter of a fusion may use a model's.
        fuses: the drafter may be a part of a fusion.
        rests: in steps without a draft the drafter needs only the states of its ``hidden``
            layers, so a backend may make several such steps in one call (``rested``).
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
        """Whether its drafts cost the time of a model or of a head."""
        return self.levels or self.heads
