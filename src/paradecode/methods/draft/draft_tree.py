"""The tree shape that a drafter fills: how often each of its places was right, measured
beforehand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from os import PathLike
from pathlib import Path

from paradecode.core.checks import json_object, mapping
from paradecode.core.errors import InvalidInput
from paradecode.methods.draft.budgets.shapes import Path as Ranks
from paradecode.methods.trained import read_once

FIELD = "tree"
MOST_PLACES = 4096


@dataclass(frozen=True, eq=False)
class DraftTree:
    """Places of a tree, and the share of all drafts that were right up to each place.

    Attributes:
        rates: ranks from the root down -> the share, the best first. The place above each one, and
            the sibling before it, come before it.
    """

    rates: Mapping[Ranks, float]

    def shape(self, count: int) -> dict[Ranks, int]:
        """The ``count`` best places, as the number of children of each node."""
        shape: dict[Ranks, int] = {}
        for ranks in islice(self.rates, count):
            shape[ranks[:-1]] = shape.get(ranks[:-1], 0) + 1
        return shape

    def save(self, path: str | PathLike[str], model: str) -> None:
        """Write the file that :func:`load_tree` reads."""
        places = {" ".join(map(str, ranks)): round(rate, 5) for ranks, rate in self.rates.items()}
        text = json.dumps({"model": model, "places": places}, indent=0)
        Path(path).write_text(f"{text}\n", "utf-8")


@read_once(FIELD)
def load_tree(path: str) -> DraftTree:
    """The tree of a file, read and checked once for all requests.

    Raises:
        InvalidInput: for a file that is missing or damaged.
    """
    places = mapping(f"{FIELD}.places", json_object(Path(path), FIELD).get("places"))
    if not 0 < len(places) <= MOST_PLACES:
        raise InvalidInput(FIELD, path, f"give 1 to {MOST_PLACES} places, not {len(places)}")
    try:
        rates = {tuple(map(int, ranks.split())): float(rate) for ranks, rate in places.items()}
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(FIELD, path, f"it holds no tree: make it again ({error})") from None
    if not all(one >= other for one, other in pairwise([1.0, *rates.values(), 0.0])):
        raise InvalidInput(FIELD, path, "its rates are damaged: make it again")
    known: set[Ranks] = {()}
    for ranks in rates:
        sibling = (*ranks[:-1], ranks[-1] - 1) if ranks and ranks[-1] else ()
        if not ranks or ranks[-1] < 0 or not {ranks[:-1], sibling} <= known:
            raise InvalidInput(FIELD, path, "its places are damaged: make it again")
        known.add(ranks)
    return DraftTree(rates)
