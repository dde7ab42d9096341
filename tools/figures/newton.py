"""Counts Newton's iterations that make all states of a diagonal GRU at once, as ParaRNN does.

    python -m tools.figures.newton [--units 64] [--out FILE.json]
    python -m tools.figures.newton FILE.json --into docs/benchmarks.md

ParaRNN (arXiv 2510.21450) takes h_t = f(h_{t-1}, x_t) for all t as one system. An iteration
computes f and its derivative J at the last guess of all rows, and solves h_t = f_t + J_t (h_{t-1} -
guess) by a parallel scan. ``fixed`` takes 0 for J. An iteration computes as many steps as the plain
loop, so two cores, on which the rows are divided, are at best as many times faster as ``bound``
says: 2 over the iterations. With large recurrent weights the derivatives grow from row to row, and
the iteration may not end (0).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode_lab.measure.tables import Column
from tools.script import Row, options, stamped, tabulate

Floats = NDArray[np.float64]
LENGTHS, GAINS, NEAR, CORES = (16, 64, 256, 1024), (0.5, 1.0, 2.0), 1e-9, 2
COLUMNS: tuple[Column[Row], ...] = (
    Column("recurrent weights", lambda row: f"{row['gain']:.1f}"),
    Column("rows", lambda row: str(row["rows"])),
    Column("Newton", lambda row: str(row["newton"])),
    Column("fixed", lambda row: str(row["fixed"])),
    Column("error one iteration before", lambda row: f"{row['before']:.0e}"),
    Column("bound", lambda row: f"{row['bound']:.2f}x" if row["newton"] else "none"),
)


def step(x: Floats, inner: Floats, h: Floats) -> tuple[Floats, Floats]:
    """Return the next states of a diagonal GRU, and their derivatives by the states before.

    Args:
        x: [T, 3, U], what rows bring to the gates r, z and n.
        inner: [3, U], the recurrent weights.
        h: [T, U], the states before.
    """
    r, z = (0.5 + 0.5 * np.tanh(0.5 * (x[:, gate] + inner[gate] * h)) for gate in (0, 1))
    s = inner[2] * h
    n = np.tanh(x[:, 2] + r * s)
    slope = (1 - n * n) * (r * (1 - r) * inner[0] * s + r * inner[2])
    return n + z * (h - n), z + (1 - z) * slope + z * (1 - z) * inner[1] * (h - n)


def scan(factors: Floats, terms: Floats) -> Floats:
    """Return h_t = factors_t h_{t-1} + terms_t for all t, from h of 0, in log2 T rounds."""
    factors, terms, apart = factors.copy(), terms.copy(), 1
    while apart < len(terms):
        terms[apart:] += factors[apart:] * terms[:-apart].copy()
        factors[apart:] *= factors[:-apart].copy()
        apart *= 2
    return terms


def loop(x: Floats, inner: Floats) -> Floats:
    """Return the states one after the other."""
    out = np.zeros((len(x) + 1, x.shape[2]))
    for row in range(len(x)):
        out[row + 1] = step(x[row : row + 1], inner, out[row : row + 1])[0]
    return out[1:]


def iterate(x: Floats, inner: Floats, newton: bool = True) -> Iterator[Floats]:
    """Yield the guesses of all states, the first one from states of 0."""
    guess = np.zeros((len(x), x.shape[2]))
    while True:
        before = np.concatenate([np.zeros_like(guess[:1]), guess[:-1]])
        made, slope = step(x, inner, before)
        slope = slope if newton else np.zeros_like(slope)
        guess = scan(slope, made - slope * before)
        yield guess


def errors(x: Floats, inner: Floats, newton: bool = True) -> list[float]:
    """Return the largest error of each iteration, up to one that is near, or one for each row."""
    wanted, found = loop(x, inner), list[float]()
    for guess in iterate(x, inner, newton):
        found.append(float(np.abs(guess - wanted).max()))
        if found[-1] < NEAR or len(found) > len(x):
            return found
    raise AssertionError


def drawn(rows: int, units: int, gain: float) -> tuple[Floats, Floats]:
    """Return random inputs of a GRU, and recurrent weights of this size."""
    random = np.random.default_rng(0)
    return random.standard_normal((rows, 3, units)), gain * random.standard_normal((3, units))


def measured(given: Namespace) -> dict[str, Any]:
    """Return a row for each size of recurrent weights and number of rows."""
    ways = []
    for gain in GAINS:
        for rows in LENGTHS:
            texts = drawn(rows, given.units, gain)
            newton, fixed = errors(*texts), errors(*texts, newton=False)
            ways.append({
                "gain": gain, "rows": rows, "newton": len(newton) * (newton[-1] < NEAR),
                "fixed": len(fixed), "before": newton[-2], "bound": CORES / len(newton),
            })  # fmt: skip
    return stamped(units=given.units, near=NEAR, ways=ways)


if __name__ == "__main__":
    tabulate(options(__doc__, units=64), COLUMNS, measured)
