"""Fusion: one draft made of several drafters' drafts (``suffix+token-recycling``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paradecode.core.aliases import own_names
from paradecode.core.decoder import Decoder, weakest
from paradecode.core.errors import InvalidInput
from paradecode.core.request import Reply
from paradecode.core.sequence import Sequence as LiveSequence
from paradecode.core.sequence import Verdict
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.methods.draft.budgets import Budget
from paradecode.methods.draft.joining import share
from paradecode.methods.draft.loop import Drafter, DraftVerify, Grower, Proposal
from paradecode.methods.draft.method import LoopSettings, assemble, guarantee_under
from paradecode.methods.registry import (
    Method,
    Spec,
    configured,
    find,
    parameters_of,
    parse,
    written,
)

MOST_PARTS = 4


@dataclass
class Fused:
    """A drafter made of drafters.

    Each part is asked for a draft of the whole size, and the most promising nodes of all are kept.
    Afterwards each sees how *its* nodes fared, as though the others had not been there, unless it
    says ``observes_all``: then it learns from every row that was verified.
    """

    parts: Sequence[Drafter]
    _drafts: list[TokenTree] = field(default_factory=list, init=False, repr=False)
    _budget: Budget | None = field(default=None, init=False, repr=False)

    @property
    def shares_noise(self) -> bool:
        """See :func:`paradecode.methods.draft.growth.guess`."""
        return any(getattr(part, "shares_noise", False) for part in self.parts)

    @shares_noise.setter
    def shares_noise(self, value: bool) -> None:
        for part in self.parts:
            if hasattr(part, "shares_noise"):
                part.shares_noise = value

    @property
    def whole(self) -> bool:
        """A part that needs all its rows needs the whole tree."""
        return any(getattr(part, "whole", False) for part in self.parts)

    @property
    def hidden(self) -> tuple[int, ...]:
        """Layers whose outputs any part wants to see."""
        wanted = [layer for part in self.parts for layer in getattr(part, "hidden", ())]
        return tuple(dict.fromkeys(wanted))

    @property
    def budget(self) -> Budget | None:
        """The loop's, for the parts that pay for each level of their trees."""
        return self._budget

    @budget.setter
    def budget(self, budget: Budget) -> None:
        self._budget = budget
        for part in self.parts:
            if isinstance(part, Grower):
                part.budget = budget

    def propose(self, seq: LiveSequence, limit: int) -> Proposal:
        self._drafts = []
        for part in self.parts:
            tree = yield from part.propose(seq, limit)
            self._drafts.append(tree)
        return self.join(self._drafts, limit)

    def join(self, drafts: Sequence[TokenTree], limit: int) -> TokenTree:
        return TokenTree.merge(drafts).best(limit)

    def observe(self, seq: LiveSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        drafts = self._drafts or [EMPTY] * len(self.parts)
        for part, draft in zip(self.parts, drafts, strict=True):
            if getattr(part, "observes_all", False):
                part.observe(seq, tree, reply, verdict)
            else:
                part.observe(seq, *share(draft, tree, reply, verdict))
        self._drafts = []


@dataclass(frozen=True)
class Fusion(Spec):
    """A spec made of specs; ``settings`` are the loop's, and concern the whole."""

    parts: tuple[Spec, ...] = ()

    def changed(self, settings: Mapping[str, Any]) -> Fusion:
        parts = [(part.method.name, part.given) for part in self.parts]
        return fusion(parts, {**self.settings, **settings})

    def __str__(self) -> str:
        first = [str(part) for part in self.parts[:-1]]
        last = self.parts[-1]
        return "+".join([*first, written(last.method.name, {**last.settings, **self.settings})])


def drafter_of(spec: Spec | str) -> Drafter:
    """A fresh drafter of a draft-and-verify method, without the rest of the loop."""
    decoder = parse(spec)()
    if not isinstance(decoder, DraftVerify):
        raise InvalidInput("decoder", str(spec), "fuse methods that draft and verify")
    return decoder.drafter


def fusion(
    parts: Sequence[tuple[str, Mapping[str, Any]]],
    shared: Mapping[str, Any],
    trusted: bool = True,
) -> Fusion:
    """The method made of ``parts`` (names and settings).

    Settings of the loop concern the whole, wherever they are written. ``shared`` ones (of a JSON
    object) go to every part that knows them.

    Raises:
        InvalidInput: for a part that cannot be fused, or a setting nobody knows.
    """
    if len(parts) > MOST_PARTS:
        raise InvalidInput("decoder", len(parts), f"fuse at most {MOST_PARTS} drafters")
    loop = {parameter.name: parameter for parameter in parameters_of(LoopSettings)}
    methods = [find(name) for name, _ in parts]
    # One setting of the whole must not be given under the names of two parts.
    loops = {
        name: ours for method in methods for name, ours in method.names.items() if ours in loop
    }
    own_names(shared, loops)
    whole: dict[str, Any] = {}
    specs: list[Spec] = []
    known: set[str] = set()
    running: set[str | None] = set()
    for method, (name, given) in zip(methods, parts, strict=True):
        names = {p.name for p in method.parameters}
        common = {
            key: value for key, value in shared.items() if method.names.get(key, key) in names
        }
        known |= common.keys()
        own = own_names(common, method.names) | own_names(given, method.names, f"{method.name}.")
        for key in [key for key in own if key in loop]:
            value = own.pop(key)
            if loop[key].local and not trusted:
                raise InvalidInput(key, value, "set it where the server is started")
            value = loop[key].check(method.name, value)
            if whole.setdefault(key, value) != value:
                raise InvalidInput(key, value, "give a setting of the whole once")
        spec = configured(method, own, trusted)
        runs = getattr(drafter_of(spec), "runs", None)
        if runs is not None and runs in running:
            raise InvalidInput("decoder", name, f"only one part may draft with the {runs} model")
        running.add(runs)
        specs.append(spec)
    if not shared.keys() <= known:
        unknown = sorted(shared.keys() - known)[0]
        raise InvalidInput("fusion setting", unknown, "use a setting of one of the parts")

    title = "+".join(method.name for method in methods)

    def build(**settings: Any) -> Decoder:
        drafters = [drafter_of(spec) for spec in specs]
        return assemble(Fused(drafters), LoopSettings(**settings), title)

    guarantee = methods[0].guarantee
    for method in methods[1:]:
        guarantee = weakest(guarantee, method.guarantee)
    untrained = all(method.training == "none" for method in methods)
    made = Fusion(
        Method(
            name=title,
            family="autoregressive",
            guarantee=guarantee,
            training="none" if untrained else "the parts'",
            paper="; ".join(method.paper for method in methods),
            arxiv=None,
            url=None,
            summary="One draft made of the parts' drafts.",
            parameters=tuple(loop.values()),
            aliases=(),
            names={},
            build=build,
            models=tuple(dict.fromkeys(model for method in methods for model in method.models)),
            under=guarantee_under,
        ),
        whole,
        tuple(specs),
        draft_model=next((spec.draft_model for spec in specs if spec.draft_model), None),
    )
    made()  # Rules between settings are checked where the loop is put together.
    return made
