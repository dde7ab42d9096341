"""Base class of drafters without a model: they draft from tables and from the text itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from os import PathLike
from pathlib import Path
from typing import ClassVar

from paradecode.core.checks import json_object, mapping
from paradecode.core.decoder import Reply, TokenSequence, Verdict
from paradecode.core.errors import InvalidInput
from paradecode.core.tree import ROOT, TokenTree
from paradecode.core.tree_builder import TreeBuilder
from paradecode.methods.draft.acceptance import Odds
from paradecode.methods.draft.budgets.shapes import Path as Ranks
from paradecode.methods.draft.contracts import Drafter
from paradecode.methods.parts import local_path
from paradecode.methods.trained import read_once

FIELD = "priors"
TABLES = Path(__file__).parent / "tables"
"""Folder of the files that come with the package; each file is named after its model."""
DEFAULT = "smollm2-135m-instruct"
"""Name of the model whose priors serve models for which none were measured."""

Priors = Mapping[str, tuple[float, ...]]
"""Acceptance rates of each group of drafters (``copying``, ``stand``), by kind of evidence.

Entry k is the probability that a token with evidence of kind k is accepted.
"""


def priors_of(model: str) -> Priors:
    """Return the acceptance priors measured on this model, or else the default model's priors."""
    own = TABLES / f"{model}.priors.json"
    known = own.parent == TABLES and own.is_file()
    return load_priors(str(own if known else TABLES / f"{DEFAULT}.priors.json"))


@read_once(FIELD)
def load_priors(path: str) -> Priors:
    """Return the acceptance priors in a file, which is read and checked once for all requests.

    Raises:
        InvalidInput: if the file is missing, damaged or of another version.
    """
    read = json_object(Path(path), FIELD)
    try:
        found = {str(name): tuple(map(float, each)) for name, each in read["priors"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise InvalidInput(FIELD, path, f"it holds no priors: make it again ({error})") from None
    if Path(path).parent != TABLES:
        known = {name: len(chances) for name, chances in priors_of(DEFAULT).items()}
        if {name: len(chances) for name, chances in found.items()} != known:
            raise InvalidInput(FIELD, path, "this version has other kinds: make it again")
    if not all(0.0 <= chance <= 1.0 for chances in found.values() for chance in chances):
        raise InvalidInput(FIELD, path, "its chances must be from 0 to 1: make it again")
    return found


def save_priors(
    path: str | PathLike[str], model: str, priors: Mapping[str, Sequence[float]]
) -> None:
    """Write a file that :func:`load_priors` reads."""
    groups = {name: [round(chance, 4) for chance in priors[name]] for name in sorted(priors)}
    lines = [f"  {json.dumps(name)}: {json.dumps(chances)}" for name, chances in groups.items()]
    inside = ",\n".join(lines)
    text = f'{{\n "model": {json.dumps(model)},\n "priors": {{\n{inside}\n }}\n}}\n'
    Path(path).write_text(text, "utf-8")


class RatedTree(TreeBuilder):
    """Builds a draft whose nodes each have a *kind of evidence*.

    The estimate of a node is the acceptance probability of its kind of evidence.
    """

    def __init__(self, odds: Odds) -> None:
        super().__init__()
        self.odds = odds
        self._kinds: list[int] = []

    def rate(self, parent: int, token: int, kind: int) -> int:
        """Add ``token`` under ``parent`` with this kind of evidence, and return its node.

        If ``parent`` has this child already, the child is returned unchanged.
        """
        node = self.add(parent, token, self.odds.of(kind))
        if node == len(self._kinds):
            self._kinds.append(kind)
        return node

    def rate_drawn(self, kinds: Iterable[int]) -> None:
        """Set each node's kind of evidence and estimate in a sampled tree, in sampling order."""
        self._kinds = list(kinds)
        self.estimates = [self.odds.of(kind) for kind in self._kinds]

    def rate_chain(self, tokens: Iterable[int], kinds: Iterable[int]) -> None:
        """Add a chain of tokens below the root, each with its kind of evidence."""
        node = ROOT
        for token, kind in zip(tokens, kinds):
            node = self.rate(node, token, kind)

    def book(self, tree: TokenTree, verdict: Verdict) -> None:
        """Record which nodes a verification accepted, by kind of evidence.

        A node counts only if its parent was accepted. ``tree`` is the verified tree: it may lack
        nodes that a budget cut away, and have nodes of other drafters.
        """
        if not self.tokens or len(tree) == 0:
            return
        accepted = {row - 1 for row in verdict.rows}
        tally: dict[int, list[int]] = {}
        for node, mine in tree.locate(self.child).items():
            if node != ROOT and int(tree.parents[node]) in accepted:
                counts = tally.setdefault(self._kinds[mine], [0, 0])
                counts[0] += node in accepted
                counts[1] += 1
        for kind, (right, tried) in tally.items():
            self.odds.update(kind, right, tried)


@dataclass(kw_only=True)
class ModelFree(Drafter):
    """Base class of drafters without a model. They count how often their drafts are accepted.

    A subclass implements :meth:`fill`, and :meth:`learn` if it also learns which tokens to draft.

    Attributes:
        group: name of the priors with which the acceptance estimates begin; see :data:`Priors`.
    """

    group: ClassVar[str]

    priors: str = local_path("how often it is right at first, by `paradecode train priors`")
    _odds: Odds | None = field(default=None, init=False, repr=False)
    _rated: RatedTree | None = field(default=None, init=False, repr=False)

    def fill(self, seq: TokenSequence, draft: RatedTree, limit: int) -> None:
        """Add at most ``limit`` nodes to the empty tree ``draft``."""
        raise NotImplementedError

    def learn(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        """Learn which tokens to draft from a verification. :meth:`observe` calls this last."""

    def odds(self, seq: TokenSequence) -> Odds:
        """Return the acceptance estimates of this request, which begin with measured priors."""
        if self._odds is None:
            found = load_priors(self.priors) if self.priors else priors_of(seq.about().name)
            self._odds = Odds(found[self.group])
        return self._odds

    @property
    def totals(self) -> list[tuple[int, int]]:
        """The numbers of accepted and of tried tokens in this request, by kind of evidence."""
        return self._odds.totals if self._odds is not None else []

    def draft(self, seq: TokenSequence, limit: int) -> TokenTree:
        draft = self._rated = RatedTree(self.odds(seq))
        self.fill(seq, draft, limit)
        return draft.tree()

    def observe(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        if self._rated is not None:
            self._rated.book(tree, verdict)
        self.learn(seq, tree, reply, verdict)
        self._rated = None


# Tree shapes that a drafter fills. The acceptance of each place was measured beforehand.

MOST_PLACES = 4096


@dataclass(frozen=True, eq=False)
class DraftTree:
    """A tree shape with the measured acceptance rate of each place in it.

    Attributes:
        rates: for each place, the share of all measured drafts that were right up to it, best
            first. A key has the ranks among siblings from the root. A place comes after its parent
            and after the sibling before it.
    """

    rates: Mapping[Ranks, float]

    def shape(self, count: int) -> dict[Ranks, int]:
        """Return the ``count`` best places, as the number of children of each inner node."""
        shape: dict[Ranks, int] = {}
        for ranks in islice(self.rates, count):
            shape[ranks[:-1]] = shape.get(ranks[:-1], 0) + 1
        return shape

    def save(self, path: str | PathLike[str], model: str) -> None:
        """Write a file that :func:`load_tree` reads."""
        places = {" ".join(map(str, ranks)): round(rate, 5) for ranks, rate in self.rates.items()}
        text = json.dumps({"model": model, "places": places}, indent=0)
        Path(path).write_text(f"{text}\n", "utf-8")


@read_once("tree")
def load_tree(path: str) -> DraftTree:
    """Return the tree shape in a file, which is read and checked once for all requests.

    Raises:
        InvalidInput: if the file is missing or damaged.
    """
    places = mapping("tree.places", json_object(Path(path), "tree").get("places"))
    if not 0 < len(places) <= MOST_PLACES:
        raise InvalidInput("tree", path, f"give 1 to {MOST_PLACES} places, not {len(places)}")
    try:
        rates = {tuple(map(int, ranks.split())): float(rate) for ranks, rate in places.items()}
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput("tree", path, f"it holds no tree: make it again ({error})") from None
    if not all(one >= other for one, other in pairwise([1.0, *rates.values(), 0.0])):
        raise InvalidInput("tree", path, "its rates are damaged: make it again")
    known: set[Ranks] = {()}
    for ranks in rates:
        sibling = (*ranks[:-1], ranks[-1] - 1) if ranks and ranks[-1] else ()
        if not ranks or ranks[-1] < 0 or not {ranks[:-1], sibling} <= known:
            raise InvalidInput("tree", path, "its places are damaged: make it again")
        known.add(ranks)
    return DraftTree(rates)
