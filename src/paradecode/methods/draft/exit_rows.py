"""A draft has run its rows through the first layers, and the verification goes on behind these."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Forward, Reply
from paradecode.core.tree import EMPTY, ROOT, TokenTree

NO_TOKENS = np.empty(0, np.int32)


@dataclass
class ExitRows:
    """The tentative rows of a draft by the target's first ``exit`` layers (LayerSkip, DEL).

    Their keys and values are the target's own, and the exit's output is the next layer's input. A
    verification therefore runs only the layers behind the exit. Nodes whose row no level of the
    draft needed run through the layers before it as well.

    Attributes:
        exit, total: number of layers before the exit, and of the whole model.
        scratch: the most tentative rows behind the committed tokens.
        hidden: layers up to the exit whose outputs are kept, always with the exit's own.
    """

    exit: int
    total: int
    scratch: int
    hidden: tuple[int, ...]
    _rows: TokenTree = field(default=EMPTY, init=False)
    _states: dict[int, list[NDArray[np.float32]]] = field(default_factory=dict, init=False)

    def add(self, forward: Forward, reply: Reply) -> None:
        """Keep the rows of a forward of the draft."""
        self._rows = self._rows.extend(forward.tree, forward.under)
        for layer in self.hidden:
            self._states.setdefault(layer, []).append(reply.hidden[layer])

    def score(self, forward: Forward) -> Generator[Forward, Reply, Reply]:
        """Run a verification of all layers, without the work that the draft has done."""
        before = [at for at in forward.hidden if at % self.total < self.exit]
        if not {at % self.total for at in before} <= set(self.hidden):
            return (yield forward)  # Another part of a fusion needs what was not kept.
        pending = len(forward.tokens)
        last = np.full(len(forward.tree), pending - 1, np.int32)
        rows = TokenTree.chain(forward.tokens).extend(forward.tree, last)
        place = rows.locate(self._rows.child)
        missing = np.array([row for row in range(len(rows)) if row not in place], np.int32)
        if len(self._rows) + len(missing) - pending > self.scratch:
            return (yield forward)
        if len(missing):
            yield from self._run(rows, missing, place)
        order = [place[row] for row in range(len(rows))]
        behind = tuple(at for at in forward.hidden if at not in before)
        layers = tuple(range(self.exit, self.total))
        reply = yield replace(forward, layers=layers, hidden=behind)
        kept = {at: np.concatenate(self._states[at % self.total])[order] for at in before}
        return Reply(reply.logits, {**reply.hidden, **kept})

    def _run(
        self, rows: TokenTree, missing: NDArray[np.int32], place: dict[int, int]
    ) -> Generator[Forward, Reply, None]:
        """Run these rows through the layers before the exit; none of them drafts."""
        parents = rows.parents[missing]
        inside = np.isin(parents, missing)
        tree = TokenTree(
            rows.tokens[missing],
            np.where(inside, np.searchsorted(missing, parents), ROOT).astype(np.int32),
        )
        under = [ROOT if within else place[int(p)] for p, within in zip(parents, inside)]
        forward = Forward(
            NO_TOKENS,
            tree=tree,
            under=np.array(under, np.int32),
            layers=tuple(range(self.exit)),
            logits=NO_TOKENS,
            hidden=self.hidden,
        )
        place |= {row: len(self._rows) + n for n, row in enumerate(missing.tolist())}
        self.add(forward, (yield forward))
