"""The numbers that each part of a model reads, computes and stores, by its configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from paradecode.core.checks import maybe, number
from paradecode.core.errors import InvalidInput
from paradecode.models.catalogue import open_model
from paradecode.models.config import ModelConfig
from paradecode.models.folder_config import folder_config
from paradecode.models.metadata import read_json
from paradecode.models.parts import NAMES, Attention, Feed
from paradecode.models.recurrence import Convolution, Recurrence

EMBED, ATTENTION, FEED, HEAD = "embed", "attention", "feed", "head"
KINDS = (EMBED, ATTENTION, FEED, HEAD)
KV_BYTES, STATE_BYTES = 2, 4
"""Bytes of a number in keys and values (float16), and in states (float32)."""
Sizes = Callable[[str, tuple[int, ...]], float]
"""Name and shape of a weight -> its bytes."""


def by_bits(bits: float) -> Sizes:
    """Return sizes of weights that have so many bits for each number."""
    return lambda name, shape: prod(shape) * bits / 8


@dataclass(frozen=True)
class Piece:
    """One part of a model.

    Attributes:
        layer: index of its layer; -1 for the embeddings, and the number of layers for the head.
        kind: one of ``KINDS``; parts with a state are attention, second embeddings are feed.
        stored: bytes of its weights.
        read: bytes of weights that each forward reads.
        row_bytes: bytes of weights that each row reads for itself, such as its embedding.
        products: multiply-adds of a row with weights.
        expert_bytes, experts, chosen: bytes of one expert, number of experts, and number of them
            that a row goes through.
        slot_bytes: bytes of keys and values that a row reads for each token that it sees.
        kept_bytes: bytes of keys and values that a token leaves.
        met: multiply-adds of a row for each token that it sees.
        window: number of tokens that a row sees; 0 means all.
        state_bytes: bytes of the state that a sequence has.
    """

    layer: int
    kind: str
    stored: float
    read: float
    row_bytes: float = 0.0
    products: float = 0.0
    expert_bytes: float = 0.0
    experts: int = 0
    chosen: int = 0
    slot_bytes: int = 0
    kept_bytes: int = 0
    met: int = 0
    window: int = 0
    state_bytes: int = 0

    def touched(self, rows: int) -> float:
        """Return how many experts so many rows read, if each row chooses them independently."""
        return self.experts * (1 - (1 - self.chosen / self.experts) ** rows) if self.experts else 0

    def seen(self, context: int) -> int:
        """Return how many cached tokens a row sees."""
        return min(context, self.window or context)

    def nbytes(self, rows: int, context: int, sequences: int = 1) -> float:
        """Return the bytes that a forward reads for ``rows`` rows of each of the sequences."""
        every = rows * sequences
        weights = self.read + every * self.row_bytes + self.touched(every) * self.expert_bytes
        seen = self.slot_bytes * (self.seen(context) + rows)
        return weights + sequences * (seen + self.state_bytes)

    def operations(self, rows: int, context: int, sequences: int = 1) -> float:
        """Return the additions and multiplications of the same forward."""
        return 2 * rows * sequences * (self.products + self.met * (self.seen(context) + rows))

    def memory(self, tokens: int, sequences: int) -> float:
        """Return the bytes that its weights and the sequences' caches take."""
        return self.stored + sequences * (
            self.kept_bytes * self.seen(tokens) + self.state_bytes
        )  # fmt: skip


@dataclass(frozen=True)
class Anatomy:
    """A model's name, its parts in the order in which a row goes through them, and its width."""

    name: str
    pieces: tuple[Piece, ...]
    hidden: int

    @cached_property
    def _whole(self) -> dict[int, dict[str, float]]:
        return {}

    def whole(self, context: int) -> dict[str, float]:
        """Return kind -> the bytes that all parts of this kind read for one row."""
        found = self._whole.get(context)
        if found is None:
            found = self._whole[context] = dict.fromkeys(KINDS, 0.0)
            for each in self.pieces:
                found[each.kind] += each.nbytes(1, context)
        return found


def anatomy_of(config: ModelConfig, sizes: Sizes) -> Anatomy:
    """Return a model's parts."""
    shapes = config.tensors()
    nbytes = {name: sizes(name, shape) for name, shape in shapes.items()}
    outer = {name for name in shapes if not name.startswith("layers.")}
    ends = {name for name in outer if name.split(".")[0] in ("norm", "head")}
    tables = {"embed": config.vocab_size, "token_embed": config.token_rows,
              "positions": config.positions}  # fmt: skip
    row = sum(nbytes[name] / rows for name, rows in tables.items() if name in outer)
    first = sum(nbytes[name] for name in outer - ends)
    looked_up = sum(nbytes[name] for name in tables if name in outer)
    made = sum(prod(shapes[name]) for name in outer - ends - tables.keys())
    pieces = [Piece(-1, EMBED, first, first - looked_up, row, made)]
    for index in range(config.layers):
        pieces += _of_layer(config, index, nbytes)
    last = sum(nbytes[name] for name in ends)
    table = nbytes["embed"] if config.tied_head else 0.0
    said = config.said * config.hidden_size
    pieces.append(Piece(config.layers, HEAD, last, last + table, 0.0, said))
    return Anatomy(config.name, tuple(pieces), config.hidden_size)


def _of_layer(config: ModelConfig, index: int, sizes: dict[str, float]) -> Iterator[Piece]:
    """Yield the parts of a layer. A norm belongs to the part at which it stands."""
    layer, hidden = config.stack[index], config.hidden_size
    shapes = layer.tensors(hidden, config.norm_bias, bool(config.canvas_length))
    owners = {name: part for part in layer.parts for name in part.tensors(hidden)}
    for part in layer.parts:
        norms = (f"{NAMES[type(part)]}_norm", f"after_{NAMES[type(part)]}")
        owners |= {name: part for name in shapes if name.removesuffix(".bias") in norms}
    for part in layer.parts:
        mine = {name for name in shapes if owners.get(name, layer.parts[-1]) is part}
        expert = {name for name in mine if name.startswith("experts.")}
        stored = sum(sizes[f"layers.{index}.{name}"] for name in mine)
        apart = sum(sizes[f"layers.{index}.{name}"] for name in expert)
        matrices = {name: prod(shapes[name]) for name in mine if len(shapes[name]) == 2}
        products = float(sum(matrices[name] for name in matrices.keys() - expert))
        facts: dict[str, Any] = {"kind": FEED}
        if isinstance(part, Feed) and part.mixture is not None:
            experts, chosen = part.mixture.experts, part.mixture.chosen
            facts |= {"expert_bytes": apart / experts, "experts": experts, "chosen": chosen}
            products += chosen / experts * sum(matrices[name] for name in matrices.keys() & expert)
        elif isinstance(part, Attention):
            read = KV_BYTES * 2 * part.kv_heads * part.head_dim
            facts = {"kind": ATTENTION, "slot_bytes": read, "window": part.window}
            facts |= {"kept_bytes": KV_BYTES * part.slot_numbers}
            facts |= {"met": 2 * part.heads * part.head_dim}
        elif isinstance(part, (Convolution, Recurrence)):
            numbers = part.state_numbers(hidden)
            facts = {"kind": ATTENTION, "state_bytes": STATE_BYTES * numbers}
            products += 2 * numbers  # A row reads the state, and adds to it.
        yield Piece(index, stored=stored, read=stored - apart, products=products, **facts)


def opened(field: str, name: str | None, bits: float | None) -> Anatomy:
    """Return the parts of a model, whose weights are not read.

    Args:
        field: name of the setting, for errors.
        name: name or path as of :func:`open_model`, or the path of a config.json.
        bits: bits of a weight; None: as in the model's file, and 16 with a config.json.

    Raises:
        InvalidInput: there is no such model, or a number of bits that no weight has.
    """
    maybe(number(0, 64, above=True))("bits", bits)
    if name is not None and name.endswith(".json"):
        path = Path(name)
        if not path.is_file():
            raise InvalidInput(field, name, "give the path of a config.json that is there")
        return anatomy_of(folder_config(path.parent, read_json(path)), by_bits(bits or 16))
    checkpoint = open_model(name)
    stored: Sizes = lambda own, _: checkpoint.weights[own].data.nbytes  # noqa: E731
    return anatomy_of(checkpoint.config, by_bits(bits) if bits else stored)
