"""Draft with semi-autoregressive heads: rows that see one another guess a block of tokens at once.

The guesses of a block do not depend on one another; those of the next block depend on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.heads.attention import NewRows, through
from paradecode.backends.heads.tree import GrowingTree
from paradecode.core.head import Array, Head, HeadCarry, Item, Run
from paradecode.core.tree import ROOT


@dataclass
class _GrownBlocks:
    """The blocks of one draft tree; a block is named by the node that it follows.

    Attributes:
        of: node -> the block that guessed it.
        above: block -> the block before it.
        states, logits: block -> float32 [together, width or V] of its rows.
        carried: block -> the states of the LSTM layers after its rows.
        slots: for each drafted row in the memory, the block to which it belongs.
    """

    of: dict[int, int]
    above: dict[int, int]
    states: dict[int, Array]
    logits: dict[int, Array]
    carried: dict[int, HeadCarry]
    slots: list[int]


def grow_in_blocks(head: Head, growing: Sequence[GrowingTree], run: Run) -> int:
    """Read the committed rows, and draft blocks until no node is worth expanding.

    A tree gets no draft while its text has fewer rows than a block (``head.together``).

    Returns:
        The number of levels, at least 1.
    """
    blocks, taken = _text(head, growing, run)
    lively = [i for i, each in enumerate(blocks) if ROOT in each.logits]
    beams = [[ROOT] for _ in growing]
    level = 0
    while lively:
        for i in lively:
            own = blocks[i]
            rows = [own.logits[own.of[node]][level % head.together] for node in beams[i]]
            beams[i] = growing[i].extend(beams[i], np.stack(rows), level)
            own.of |= {node: own.of[growing[i].parents[node]] for node in beams[i]}
        level += 1
        lively = [i for i in lively if beams[i]]
        if lively and level % head.together == 0:
            _next(head, [growing[i] for i in lively], [blocks[i] for i in lively],
                  [beams[i] for i in lively], level, run)  # fmt: skip
    for each, carried in zip(growing, taken):
        each.draft.memory.carried = carried  # Nothing can fail any more.
    return max(level, 1)


def _text(
    head: Head, growing: Sequence[GrowingTree], run: Run
) -> tuple[list[_GrownBlocks], list[HeadCarry]]:
    """Run the committed rows, and let the last of them guess the first block.

    Returns:
        The first block of each tree, and the LSTM layers' states after the committed rows.
    """
    drafts = [each.draft for each in growing]
    entered = run(head.enter, [{"features": draft.features} for draft in drafts])
    none = np.zeros((1, head.width), np.float32)
    fresh = HeadCarry((none,) * len(head.lstm), (none,) * len(head.lstm), none[:0])
    before = [draft.memory.carried or fresh for draft in drafts]
    tokens = [draft.tokens[None] for draft in drafts]
    made, after = _along(head, [rows[None] for rows in entered], tokens, before, run)
    # The last rows that were committed earlier guess once more.
    fed = [np.concatenate([each.last, rows[0]]) for each, rows in zip(before, made)]
    again = [len(each.last) for each in before]
    views = []
    for draft, rows, old in zip(drafts, fed, again):
        seen = np.tri(len(rows), dtype=bool)
        seen[-head.together :] = True
        views.append(NewRows(draft.start - old + np.arange(len(rows)), seen))
    at = [draft.memory.length - old for draft, old in zip(drafts, again)]
    states = through(head, drafts, at, fed, [np.zeros(len(rows), np.int64) for rows in fed], views,
                     run)  # fmt: skip
    guessing = [rows[-head.together :] for rows in states]
    logits = run(head.outs[0], [{"state": rows} for rows in guessing])
    kept = head.together - 1
    taken = [HeadCarry(each.hidden, each.cells, rows[len(rows) - min(kept, len(rows)) :])
             for each, rows in zip(after, fed)]  # fmt: skip
    blocks = [_GrownBlocks({ROOT: ROOT}, {}, {}, {}, {}, []) for _ in growing]
    for own, rows, said, carried in zip(blocks, guessing, logits, taken):
        if len(rows) == head.together:
            own.states[ROOT], own.logits[ROOT], own.carried[ROOT] = rows, said, carried
    return blocks, taken


def _next(
    head: Head, growing: Sequence[GrowingTree], blocks: Sequence[_GrownBlocks],
    beams: Sequence[Sequence[int]], level: int, run: Run,
) -> None:  # fmt: skip
    """Run a block after each node of each beam.

    Its input rows are the states of the block that ends at the node.
    """
    inputs, tokens, before, views, at = [], [], [], [], []
    for tree, own, beam in zip(growing, blocks, beams):
        above = [own.of[node] for node in beam]
        inputs.append(np.stack([own.states[block] for block in above]))
        tokens.append(np.array([_path(tree, node, head.together) for node in beam]))
        parts = [own.carried[block] for block in above]
        before.append(_joined(parts))
        at.append(tree.draft.memory.length + len(tree.draft.tokens) + len(own.slots))
        own.slots += [node for node in beam for _ in range(head.together)]
        seen = []
        for node, block in zip(beam, above):
            known = {node}
            while block != ROOT:
                known.add(block)
                block = own.above[block]
            seen += [[slot in known for slot in own.slots]] * head.together
        places = tree.end + level - head.together + np.arange(head.together)
        views.append(NewRows(np.tile(places, len(beam)), np.array(seen)))
    made, after = _along(head, inputs, tokens, before, run)
    states = through(
        head, [tree.draft for tree in growing], at, [each.reshape(-1, head.width) for each in made],
        [each.ravel() for each in tokens], views, run,
    )  # fmt: skip
    logits = run(head.outs[0], [{"state": rows} for rows in states])
    for own, beam, rows, said, carried in zip(blocks, beams, states, logits, after):
        for number, node in enumerate(beam):
            part = slice(number * head.together, (number + 1) * head.together)
            own.states[node], own.logits[node] = rows[part], said[part]
            own.carried[node] = HeadCarry(
                tuple(each[number : number + 1] for each in carried.hidden),
                tuple(each[number : number + 1] for each in carried.cells), carried.last,
            )  # fmt: skip
            own.above[node], own.of[node] = own.of[node], node


def _along(
    head: Head, rows: Sequence[Array], tokens: Sequence[NDArray[np.int64]],
    before: Sequence[HeadCarry], run: Run,
) -> tuple[list[Array], list[HeadCarry]]:  # fmt: skip
    """Run rows [n, m, width] of n independent sequences through the LSTM layers.

    Returns:
        The rows after the layers, and the new states of the layers.
    """
    made = list(rows)
    hidden: list[list[Array]] = [[] for _ in made]
    cells: list[list[Array]] = [[] for _ in made]
    for number, layer in enumerate(head.lstm):
        items: list[Item] = [{"state": each.reshape(-1, head.width)} for each in made]
        if number == 0:
            items = [{**item, "token": ids.ravel()} for item, ids in zip(items, tokens)]
        gates = [np.stack(np.split(given.reshape(*each.shape[:2], -1), 4, axis=2))
                 for each, given in zip(made, run(layer.before, items))]  # fmt: skip
        state = [np.concatenate([each.hidden[number], each.cells[number]], axis=1)
                 for each in before]  # fmt: skip
        out: list[list[Array]] = [[] for _ in made]
        for row in range(max(each.shape[1] for each in made)):
            going = [i for i, each in enumerate(made) if row < each.shape[1]]
            asked = []
            for i in going:
                four = dict(zip(("input", "forget", "candidate", "output"), gates[i][:, :, row]))
                h, c = np.split(state[i], 2, axis=1)
                asked.append({**four, "hidden": h, "cell": c})
            for i, fresh in zip(going, run(layer.step, asked)):
                state[i] = fresh
                out[i].append(fresh[:, : head.width])
        made = [np.stack(each, axis=1) for each in out]
        for i, each in enumerate(state):
            h, c = np.split(each, 2, axis=1)
            hidden[i].append(h)
            cells[i].append(c)
    return made, [HeadCarry(tuple(h), tuple(c), each.last)
                  for h, c, each in zip(hidden, cells, before)]  # fmt: skip


def _joined(parts: Sequence[HeadCarry]) -> HeadCarry:
    """Join the LSTM states of several sequences into one object."""
    hidden = tuple(np.concatenate(each) for each in zip(*(part.hidden for part in parts)))
    cells = tuple(np.concatenate(each) for each in zip(*(part.cells for part in parts)))
    return HeadCarry(hidden, cells, parts[0].last)


def _path(tree: GrowingTree, node: int, count: int) -> list[int]:
    """Return the last ``count`` tokens up to a node."""
    tokens: list[int] = []
    while len(tokens) < count:
        tokens.insert(0, tree.tokens[node])
        node = tree.parents[node]
    return tokens
