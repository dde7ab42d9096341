"""Beam search and diverse beam search, on forks of one sequence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Fork, Forward, Steps, TokenSequence, Verdict
from paradecode.core.errors import BackendError, InvalidInput
from paradecode.core.logits import Logits
from paradecode.engine.prompt import OneUse
from paradecode.methods.parts import choice, declare, parameter
from paradecode.search.branch import Branch, Grow, Rate, Search, Searched, SearchTask, Start

if TYPE_CHECKING:
    from paradecode.engine.sequence import LiveSequence

MOST_BEAMS = 32


class Beam(NamedTuple):
    """A fork with its summed log-probability, and this sum minus the diversity penalties."""

    sequence: LiveSequence
    total: float = 0.0
    rank: float = 0.0


class Continuation(NamedTuple):
    """A token that may follow a beam, the sums including it, and the row of logits that gave it."""

    sequence: LiveSequence
    token: int
    total: float
    rank: float
    logits: Logits


@dataclass
class Group:
    """A group of beams that compete with each other. Both lists have the best beam first."""

    open: list[Beam] = field(default_factory=list)
    ended: list[Beam] = field(default_factory=list)


Penalty = Callable[[Beam, Sequence[Group]], tuple[float, dict[int, float]]]
"""(beam, groups that have made this step) -> penalty on all tokens, and further penalties by token.

No penalty is below 0.
"""


class BeamDecoder(OneUse):
    """A decoder of one request whose forks are the beams. The root sequence commits no tokens.

    All beams are rows of one forward pass. A beam without a continuation is released at once. Each
    beam offers its ``2 * width`` best tokens, and the best offers that do not end a text become the
    next beams. A text that ended waits, and competes at the end by its score: its summed
    log-probability divided by the length (with the prompt, without the stop token) to the power of
    ``length_penalty``, as in vLLM. The search runs until no open beam can become one of the best.
    Among equal sums, the better beam comes first, then the more probable token, then the lower id.
    Among equal scores, the text that ended first comes first.

    Args:
        width: number of beams in a group.
        groups: number of groups, which take turns in order within each step.
        penalty: returns the penalties of a group's tokens because of the groups before it.

    Attributes:
        made: number of tokens of all beams.
    """

    def __init__(
        self, width: int, length_penalty: float, groups: int = 1, penalty: Penalty | None = None
    ) -> None:
        self.width, self.power = width, length_penalty
        self.groups = [Group() for _ in range(groups)]
        self._penalty, self.made = penalty, 0

    def search(self, task: SearchTask) -> Search:
        """Return the best beams of all groups, ordered by likelihood or by the scorer."""
        beams = self.width * len(self.groups)
        # There is one fork more, for a text that ends while all beams continue.
        start = Start(0, decoder=self, forks=beams + 1, width=beams)
        grown: list[Branch] = yield Grow([start])
        if not self.groups[0].open and not self.groups[0].ended:
            return Searched(grown[0])  # The request ended before any beam existed.
        found = [beam for group in self.groups for beam in self._best(group)]
        for beam in found:
            beam.sequence.finish(grown[0].reason or "cancelled")  # All beams end so.
        branches = [_branch(start, beam) for beam in found]
        scores = [self._score(beam.sequence, beam.total) for beam in found]
        if task.scorer:
            scores = yield Rate(branches)
        return Searched.in_order(branches, scores, self.made)

    def decode(self, seq: TokenSequence) -> Steps:
        root = cast("LiveSequence", seq)
        if not seq.about().writes:
            raise InvalidInput("search", "beams", "they need an autoregressive model")
        for group in self.groups:
            group.open = [Beam(root)]
        reply = yield Forward(seq.pending)
        logits = {id(seq): reply.logits}
        while True:
            for place, group in enumerate(self.groups):
                yield from self._extend(root, group, self.groups[:place], logits)
            going = [beam.sequence for group in self.groups for beam in group.open]
            if all(one.finished for one in going) or all(map(self._settled, self.groups)):
                break
            replies = yield [Forward(one.pending, on=one) for one in going]
            logits = {id(one): answer.logits for one, answer in zip(going, replies)}
        self.end(seq)

    def _extend(
        self, root: LiveSequence, group: Group, before: Sequence[Group], logits: dict[int, Logits]
    ) -> Steps:
        """Extend every beam of a group by one token."""
        offered = [
            option
            for beam in group.open
            for option in self._options(beam, before, logits[id(beam.sequence)])
        ]
        offered.sort(key=lambda option: -option.rank)
        for option in offered:
            if option.token in root.stops and self._enters(group, option):
                forks = yield Fork(1, of=option.sequence)
                self._commit(group, forks[0], option)
        kept = [option for option in offered if option.token not in root.stops][: self.width]
        uses = Counter(id(option.sequence) for option in kept)
        for beam in group.open:
            if not uses[id(beam.sequence)] and beam.sequence is not root:
                beam.sequence.release()
        group.open = []
        for option in kept:
            own = option.sequence
            uses[id(own)] -= 1
            if uses[id(own)] or own is root:  # The last continuation needs no fork.
                forks = yield Fork(1, of=own)
                own = forks[0]
            self._commit(group, own, option)

    def _options(self, beam: Beam, before: Sequence[Group], logits: Logits) -> list[Continuation]:
        base, more = self._penalty(beam, before) if self._penalty else (0.0, {})
        row = beam.sequence.sampler.processed(logits, 0, ())
        ids, _ = row.top_k(2 * self.width + len(more))
        options = [
            Continuation(
                beam.sequence, token, beam.total + value,
                beam.rank + value - base - more.get(token, 0.0), logits,
            )
            for token, value in zip(ids[0].tolist(), row.log_probability(ids)[0].tolist())
            if value > -math.inf
        ]  # fmt: skip
        if not options:
            raise BackendError("the model returned logits that are NaN or infinite")
        return sorted(options, key=lambda option: -option.rank)[: 2 * self.width]

    def _commit(self, group: Group, own: LiveSequence, option: Continuation) -> None:
        own.commit(Verdict([option.token], [0], option.logits))
        self.made += 1
        beam = Beam(own, option.total, option.rank)
        if own.finish_reason == "stop":
            own.release()
            group.ended = self._in_order([*group.ended, beam])[: self.width]
        else:
            group.open.append(beam)

    def _score(self, sequence: LiveSequence, value: float) -> float:
        tokens = sequence.tokens
        return value / (len(tokens) - (int(tokens[-1]) in sequence.stops)) ** self.power

    def _in_order(self, beams: Sequence[Beam]) -> list[Beam]:
        return sorted(beams, key=lambda beam: -self._score(beam.sequence, beam.rank))

    def _best(self, group: Group) -> list[Beam]:
        return self._in_order([*group.ended, *group.open])[: self.width]

    def _enters(self, group: Group, option: Continuation) -> bool:
        """Return whether a text that ends now would be among the best ended texts."""
        if len(group.ended) < self.width:
            return True
        last = group.ended[-1]
        score = option.rank / len(option.sequence.tokens) ** self.power
        return score > self._score(last.sequence, last.rank)

    def _settled(self, group: Group) -> bool:
        """Return whether no open beam can overtake the worst of the best ended texts."""
        if len(group.ended) < self.width or not group.open:
            return not group.open
        first, last = group.open[0], group.ended[-1]
        lengths = len(first.sequence.tokens), len(first.sequence.tokens) + first.sequence.room
        bound = max(first.rank / length**self.power for length in lengths)
        return bound <= self._score(last.sequence, last.rank)


def _branch(start: Start, beam: Beam) -> Branch:
    own = beam.sequence
    ended = own.finish_reason in ("stop", "length")
    output = tuple(own.output)
    return Branch(
        start, own, output, len(output), own.text.value, own.finish_reason, ended, beam.total
    )


# Beam search: find the most likely output among the outputs that a fixed number of beams reach.


@declare("search", "beam", aliases=("beam-search",), paper="Lowerre 1976, as vLLM has it")
class BeamSearch:
    """Keeps the ``width`` most likely partial outputs, and extends all of them in each step.

    Nothing is sampled, so temperature and seed do not matter. The decoding method does not matter
    either, because beams are not drafted. Penalties, bans and constraints apply. The result is
    defined to be the same as with vLLM's ``use_beam_search``; see :class:`BeamDecoder`. A scorer
    chooses among the ``width`` best.

    When: the most probable text is wanted, as in translation.
    """

    width: int = parameter(4, 1, MOST_BEAMS, "partial outputs that are kept")
    length_penalty: float = parameter(1.0, -10.0, 10.0, "power of the length that divides a sum")

    def search(self, task: SearchTask) -> Search:
        beams = BeamDecoder(self.width, self.length_penalty)
        return (yield from beams.search(task))


# Diverse Beam Search: each group of beams avoids the choices of the groups before it.

Output = NDArray[np.int32]


@declare("search", "diverse-beam", paper="Diverse Beam Search", arxiv="1610.02424")
class DiverseBeamSearch:
    """Beam search in groups, which take turns in each step and are rewarded for differing.

    A token's log-probability is lowered by ``strength`` times a count over the open beams of the
    earlier groups. ``hamming`` counts the beams that have chosen the token in this step.
    ``cumulative`` is the sum over groups of exp(-d / ``spread``), where d is the number of
    positions at which a group's beams differ from this beam with the token. ``ngram`` counts how
    many times these beams contain the n-gram that the token would complete.

    Penalties stay in a beam's sum, but the best beams of all groups are ordered by likelihood
    alone. Texts end and are scored as in ``beam``. One group gives ``beam``, and with a strength of
    0 all groups are equal.

    When: several good outputs are wanted that say different things.
    """

    width: int = parameter(4, 1, MOST_BEAMS, "partial outputs that are kept, over all groups")
    groups: int = parameter(2, 1, MOST_BEAMS, "groups, which must divide the width")
    strength: float = parameter(0.5, 0.0, 1e6, "weight of diversity")
    diversity: str = choice("hamming", ("hamming", "cumulative", "ngram"), "what must differ")
    ngram: int = parameter(2, 1, 16, "tokens of an n-gram, for diversity=ngram")
    spread: float = parameter(1.0, 1e-3, 1e6, "for diversity=cumulative")
    length_penalty: float = parameter(1.0, -10.0, 10.0, "power of the length that divides a sum")

    def __post_init__(self) -> None:
        if self.width % self.groups:
            fix = f"give a number that divides the width, {self.width}"
            raise InvalidInput("diverse-beam.groups", self.groups, fix)

    def search(self, task: SearchTask) -> Search:
        share = self.width // self.groups
        beams = BeamDecoder(share, self.length_penalty, self.groups, self._penalty)
        return (yield from beams.search(task))

    def _penalty(self, beam: Beam, before: Sequence[Group]) -> tuple[float, dict[int, float]]:
        outputs = [[_output(other) for other in group.open] for group in before]
        if self.diversity == "hamming":
            chosen = Counter(int(output[-1]) for group in outputs for output in group)
            return 0.0, {token: self.strength * times for token, times in chosen.items()}
        own = _output(beam)
        if self.diversity == "ngram":
            return 0.0, self._repeats(own, [output for group in outputs for output in group])
        base, more = 0.0, dict[int, float]()
        for group in outputs:
            if group:
                past = sum(int((output[:-1] != own).sum()) for output in group)
                plain = math.exp(-(past + len(group)) / self.spread)
                base += self.strength * plain
                for token, times in Counter(int(output[-1]) for output in group).items():
                    gain = math.exp(-(past + len(group) - times) / self.spread) - plain
                    more[token] = more.get(token, 0.0) + self.strength * gain
        return base, more

    def _repeats(self, own: Output, others: list[Output]) -> dict[int, float]:
        counts, behind = Counter[int](), self.ngram - 1
        if len(own) >= behind:
            for output in others:
                last = output[behind:]
                same = np.ones(len(last), bool)
                for place in range(behind):
                    same &= output[place : place + len(last)] == own[len(own) - behind + place]
                counts.update(last[same].tolist())
        return {token: self.strength * times for token, times in counts.items()}


def _output(beam: Beam) -> Output:
    return beam.sequence.tokens[beam.sequence.prompt_length :]
