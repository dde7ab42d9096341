"""Parallel decoding of lists fails as often as the closed forms of ParallelBench say."""

from fractions import Fraction
from math import factorial, prod

import numpy as np
import pytest
from canvases import UNTRAINED, run
from oracle_lists import OPERATIONS, Oracle, OracleBackend, success

from paradecode.methods.canvas.policies.llada import Static
from paradecode.methods.canvas.policies.threshold import Factor, Threshold

PAIRS = [(4, 1), (4, 2), (4, 4), (5, 5), (6, 1), (6, 2), (6, 3), (6, 6)]
"""Pairs (n, k): each forward decides k positions of a list of n items."""


def shuffled(n: int, k: int) -> Fraction:
    """Return the probability that all draws of a shuffled list fit together.

    A step with m items left succeeds with probability m! / ((m - k)! m^k).
    """
    return prod(
        (Fraction(factorial(m), factorial(m - k) * m**k) for m in range(n, 0, -k)),
        start=Fraction(1),
    )


def replaced(n: int, k: int) -> Fraction:
    """Return the probability that the new item is written exactly once.

    The sum runs over the step j that writes it, where no step before it did.
    """
    total, before = Fraction(0), Fraction(1)
    for m in range(n, 0, -k):
        total += before * k * Fraction(1, m) * (1 - Fraction(1, m)) ** (k - 1)
        before *= (1 - Fraction(1, m)) ** k
    return total


def double(n: int) -> int:
    return prod(range(n, 0, -2))


@pytest.mark.first(4)
@pytest.mark.parametrize(("n", "k"), PAIRS)
def test_sampled_lists(n: int, k: int) -> None:
    """Independent draws of k positions fit together with the probability of the closed form."""
    static = Static(score="random")
    assert success(Oracle("shuffle", n), static, n // k, False) == shuffled(n, k)
    assert success(Oracle("replace-random", n), static, n // k, False) == replaced(n, k)
    for operation in ("copy", "replace-index"):
        assert success(Oracle(operation, n), static, n // k, False) == 1


def test_the_values() -> None:
    assert [shuffled(4, 2), shuffled(6, 2)] == [Fraction(3, 8), Fraction(5, 16)]
    for n, k, value in ((6, 3, 0.1235), (6, 6, 0.0154)):
        assert round(float(shuffled(n, k)), 4) == value
    assert shuffled(6, 6) == Fraction(factorial(6), 6**6)
    for n, k, value in ((4, 2, 0.656), (6, 2, 0.734), (6, 3, 0.604)):
        assert round(float(replaced(n, k)), 3) == value
    for n, value in ((6, 0.4019), (20, 0.3774)):
        assert round(float(replaced(n, n)), 4) == value
    assert abs(float(replaced(5000, 5000)) - np.exp(-1)) < 1e-4


@pytest.mark.wide
def test_greedy_lists() -> None:
    """Greedy decoding decides sure positions first, and equal best tokens at random."""
    for n in (4, 6):
        shuffle, replace = Oracle("shuffle", n), Oracle("replace-random", n)
        for oracle in (shuffle, replace):
            assert success(oracle, Static(), n, True) == 1
        assert success(shuffle, Static(), n // 2, True) == Fraction(double(n - 1), double(n))
        assert success(shuffle, Static(), 1, True) == Fraction(factorial(n), n**n)
        assert success(replace, Static(), n // 2, True) == Fraction(1, 2)
        assert success(replace, Static(), 1, True) == 0
    assert success(Oracle("replace-random", 6), Static(), 2, True) == 0


def test_thresholds() -> None:
    for n in (4, 5, 6):
        shuffle, replace = Oracle("shuffle", n), Oracle("replace-random", n)
        assert success(shuffle, Threshold(0.51), n, True) == 1
        assert success(shuffle, Threshold(0.5), n, True) == Fraction(1, 2)
        assert success(replace, Threshold((n - 1) / n + 0.01), n, True) == 1
        assert success(replace, Threshold((n - 1) / n - 0.01), n, True) == 0
        for operation in ("copy", "replace-index"):
            assert success(Oracle(operation, n), Threshold(1.0), n, True) == 1


def test_factor_is_as_safe_as_its_theorem() -> None:
    """`factor` decides two or more positions only if each has a probability of at least 2/3.

    This follows from (n + 1)(1 - p) <= 1. A longer list needs a higher probability.
    """
    for n in (3, 4, 6):
        for operation in OPERATIONS:
            assert success(Oracle(operation, n), Factor(1.0), n, True) == 1


@pytest.mark.parametrize("operation", OPERATIONS)
def test_one_by_one_is_always_right(operation: str) -> None:
    backend = OracleBackend(oracle := Oracle(operation, 6))
    for method in ("static", "static(score=random)", "freedave", "threshold(threshold=1.01)"):
        for seed in range(5):
            for temperature in (0.0, 1.0):
                made = run(backend, method, (0,), 6, seed=seed, temperature=temperature)
                assert oracle.right(made.output)


@pytest.mark.parametrize("method", UNTRAINED)
@pytest.mark.parametrize("operation", ["copy", "replace-index"])
def test_any_policy_is_right_where_nothing_depends_on_anything(operation: str, method: str) -> None:
    oracle = Oracle(operation, 6)
    for temperature in (0.0, 1.0):
        made = run(OracleBackend(oracle), method, (0,), 6, seed=1, temperature=temperature)
        assert oracle.right(made.output)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("operation", "n", "k"), [("shuffle", 4, 2), ("shuffle", 6, 3), ("replace-random", 6, 3)]
)
def test_sampling_in_the_engine_has_these_rates(operation: str, n: int, k: int) -> None:
    backend, count = OracleBackend(oracle := Oracle(operation, n)), 300
    spec = f"static(score=random,steps={n // k})"
    right = sum(
        oracle.right(run(backend, spec, (0,), n, seed=seed, temperature=1.0).output)
        for seed in range(count)
    )
    rate = float((shuffled if operation == "shuffle" else replaced)(n, k))
    assert abs(right / count - rate) < 4 * (rate * (1 - rate) / count) ** 0.5


def test_sampled_shuffles_are_uniform() -> None:
    """With one token a forward the sampler draws all permutations with equal probability."""
    backend = OracleBackend(Oracle("shuffle", 3))
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(300):
        made = tuple(run(backend, "static", (0,), 3, seed=seed, temperature=1.0).output)
        counts[made] = counts.get(made, 0) + 1
    assert len(counts) == 6
    assert sum((count - 50) ** 2 / 50 for count in counts.values()) < 20.5  # 0.1 %, 5 degrees.
