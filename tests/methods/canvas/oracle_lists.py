"""Ideal denoisers of list operations: they know the exact conditionals of a joint distribution.

The operations are those of ParallelBench (arXiv 2510.04767), section 3. How much parallel decoding
loses on them is known in closed form.
"""

from collections.abc import Sequence
from copy import deepcopy
from fractions import Fraction
from itertools import product

import numpy as np
from views import canvas_of, view_of

from paradecode.backends.interface import Span, SpanResult
from paradecode.core.logits import ArrayLogits
from paradecode.methods.canvas.canvas import Progress
from paradecode.methods.canvas.policies.base import Policy
from paradecode.testing.toy import ToyBackend, toy_config

OPERATIONS = ("copy", "replace-index", "replace-random", "shuffle")

State = Sequence[int | None]
"""The token of each position, None where it is masked."""
Chances = dict[int, Fraction]
"""Token -> probability."""


class Oracle:
    """A list operation. Items 0 to n - 1 are the input, n replaces another item, -1 is the mask."""

    def __init__(self, operation: str, size: int) -> None:
        self.operation, self.size = operation, size

    def right(self, tokens: State) -> bool:
        """Return whether a finished list is a possible output."""
        same = [token == at for at, token in enumerate(tokens)]
        if self.operation == "shuffle":
            return sorted(tokens) == list(range(self.size))
        if self.operation == "copy":
            return all(same)
        wrong = [token for token, fits in zip(tokens, same, strict=True) if not fits]
        if self.operation == "replace-index":
            return wrong == [self.size] and not same[1]
        return wrong == [self.size]

    def chances(self, state: State) -> list[Chances]:
        """Return the distribution of each position given the decided ones.

        A decided position has its own token with probability 1.
        """
        free = [at for at, token in enumerate(state) if token is None]
        used = {token for token in state if token is not None}
        new, found = self.size, []
        for at, token in enumerate(state):
            if token is not None:
                found.append({token: Fraction(1)})
            elif self.operation == "shuffle":
                # From a state that no permutation has, any item that is left.
                left = [item for item in range(self.size) if item not in used] or [at]
                found.append({item: Fraction(1, len(left)) for item in left})
            elif self.operation == "replace-random" and new not in used:
                part = Fraction(1, len(free))
                found.append({at: 1 - part, new: part} if len(free) > 1 else {new: part})
            else:
                replaced = self.operation == "replace-index" and at == 1
                found.append({new if replaced else at: Fraction(1)})
        return found

    def logits(self, state: State) -> np.ndarray:
        """Return float64 [n, n + 2]: the logits, with which the mask token is never proposed."""
        rows = np.zeros((self.size, self.size + 2))
        for row, chances in zip(rows, self.chances(state), strict=True):
            for token, p in chances.items():
                row[token] = float(p)
        with np.errstate(divide="ignore"):
            return np.log(rows)


def success(oracle: Oracle, policy: Policy, steps: int, greedy: bool) -> Fraction:
    """Return the exact probability that a policy ends at a right list.

    The function follows all tokens that the model may propose for the committed positions: its
    whole distribution, or if ``greedy`` its best tokens, where equal ones are equally likely.

    Args:
        policy: one whose choice of positions does not depend on the sampled tokens.
        steps: planned for the list.
    """
    canvas = canvas_of(oracle.size, vocabulary=oracle.size + 2)
    policy.start(canvas)
    return _follow(oracle, policy, (None,) * oracle.size, steps, 0, greedy)


def _follow(
    oracle: Oracle, policy: Policy, state: State, steps: int, step: int, greedy: bool
) -> Fraction:
    if None not in state:
        return Fraction(int(oracle.right(state)))
    canvas = canvas_of(oracle.size, vocabulary=oracle.size + 2)
    decided = np.array([at for at, token in enumerate(state) if token is not None], np.int64)
    canvas.commit(decided, np.array([state[at] for at in decided], np.int32))
    canvas.steps = step
    progress = Progress(steps, step, step, oracle.size, oracle.size, 0)
    view = view_of(logits=oracle.logits(state), canvas=canvas, progress=progress)
    policy = deepcopy(policy)
    commit = policy.decide(view).commit
    chances = [oracle.chances(state)[at] for at in commit.tolist()]
    total = Fraction(0)
    for made in product(*(_options(each, greedy) for each in chances)):
        after, probability = list(state), Fraction(1)
        for at, (token, p) in zip(commit.tolist(), made, strict=True):
            after[at], probability = token, probability * p
        total += probability * _follow(oracle, policy, after, steps, step + 1, greedy)
    return total


def _options(chances: Chances, greedy: bool) -> list[tuple[int, Fraction]]:
    if not greedy:
        return list(chances.items())
    best = [token for token, p in chances.items() if p == max(chances.values())]
    return [(token, Fraction(1, len(best))) for token in best]


class OracleBackend(ToyBackend):
    """A backend that serves an oracle: the prompt is one token, the output the list; no cache."""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(toy_config(vocab_size=oracle.size + 2, attention="full"))
        self.oracle = oracle

    def forward(self, spans: Sequence[Span]) -> list[SpanResult]:
        return [self._one(span) for span in spans]

    def _one(self, span: Span) -> SpanResult:
        assert span.mask is not None
        size, mask_token = self.oracle.size, self.config.mask_token
        rows, known = [], dict[bytes, np.ndarray]()
        for row in span.logits.tolist():
            seen = span.mask[row].tobytes()
            if seen not in known:
                state: list[int | None] = [None] * size
                for other in np.flatnonzero(span.mask[row]).tolist():
                    at, token = int(span.positions[other]) - 1, int(span.tokens[other])
                    if at >= 0 and token != mask_token:
                        state[at] = token
                known[seen] = self.oracle.logits(state)
            rows.append(known[seen][int(span.positions[row]) - 1])
        return SpanResult(ArrayLogits(np.array(rows)))
