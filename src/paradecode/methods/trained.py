"""Trained parts of methods: their files, which are checked and read once, and their networks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

from paradecode.core.decoder import ModelFacts
from paradecode.core.errors import InvalidInput, reason
from paradecode.core.network import Array, Network, Op
from paradecode.core.tensor_file import Facts, load, save

T = TypeVar("T")
Args = ParamSpec("Args")
Read = Callable[Concatenate[str, Args], T]

MOST_KEPT = 4
"""The most files of one kind in memory; the file unused longest is dropped first."""


def read_once(field: str) -> Callable[[Read[Args, T]], Read[Args, T]]:
    """Decorate a function that reads a file, so that it reads an unchanged file only once.

    The function's first argument is the path; its other arguments must be hashable.

    Args:
        field: the user's name for the file. The InvalidInput for an unreadable path names it.
    """

    def decorated(read: Read[Args, T]) -> Read[Args, T]:
        def fresh(stamp: tuple[int, int], path: str, *args: Args.args, **kwargs: Args.kwargs) -> T:
            return read(path, *args, **kwargs)

        kept: Callable[..., T] = lru_cache(maxsize=MOST_KEPT)(fresh)

        @wraps(read)
        def found(path: str, *args: Args.args, **kwargs: Args.kwargs) -> T:
            try:
                info = os.stat(path)
            except (OSError, ValueError) as error:
                raise InvalidInput(field, path, f"give a readable file ({reason(error)})") from None
            return kept((info.st_mtime_ns, info.st_size), path, *args, **kwargs)

        return found

    return decorated


P = TypeVar("P", bound="TrainedPart")

THETA = 10000.0
"""Base of the rotary position embeddings in trained parts."""


@dataclass(frozen=True, eq=False)
class TrainedPart:
    """Base class of trained parts. Subclasses define the tensors of the file and the network.

    Attributes:
        kind: the kind of part that is written in the file.
        field: the user's name for the file, for errors.
        sizes: name of a whole number in ``facts`` -> its largest value; the smallest is 1.
        facts: metadata of the file: sizes and settings, by name.
        tensors: name -> float32 tensor.
    """

    kind: ClassVar[str]
    field: ClassVar[str]
    sizes: ClassVar[Mapping[str, int]]
    _open: ClassVar[Callable[[str], Any]]
    facts: Mapping[str, Any]
    tensors: Mapping[str, Array]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return name -> shape for each tensor in the file."""
        raise NotImplementedError

    def wrong(self) -> str | None:
        """Return the error in ``facts``, or None. The numbers in ``sizes`` are checked already."""
        return None

    def inputs(self) -> dict[str, int]:
        """Return name -> width for each input of the network."""
        raise NotImplementedError

    def steps(self) -> tuple[Op, ...]:
        """Return the operations of the network, in order."""
        raise NotImplementedError

    @staticmethod
    def weights(tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Compute the network's tensors from the tensors of the file (NumPy or PyTorch)."""
        return dict(tensors)

    @cached_property
    def network(self) -> Network:
        """The network that backends run."""
        return Network(self.inputs(), self.steps(), self.weights(self.tensors))

    def __deepcopy__(self, memo: dict[int, Any]) -> TrainedPart:
        return self  # Nothing in it changes.

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file that :meth:`open` reads."""
        save(path, self.kind, self.facts, self.tensors)

    def __init_subclass__(cls) -> None:
        cls._open = read_once(cls.field)(cls._read)

    @classmethod
    def open(cls: type[P], path: str) -> P:
        """Return the part in a file, which is read and checked once for all requests.

        Raises:
            InvalidInput: if the file is missing, damaged or of another kind.
        """
        part: P = cls._open(path)
        return part

    @classmethod
    def needed(cls: type[P], method: str, path: str, command: str) -> P:
        """Open the part that a method needs.

        Raises:
            InvalidInput: like :meth:`open`. Also if ``path`` is empty: the error then names
                ``command``, which trains a part.
        """
        if not path:
            fix = f"train one: {command} FILE, then {cls.field}=FILE"
            raise InvalidInput(f"{method}.{cls.field}", "", fix)
        return cls.open(path)

    def check(self, method: str, model: ModelFacts, *names: str) -> None:
        """Raise InvalidInput if the part was trained for a model of other sizes.

        ``names`` are the sizes that must agree, such as ``hidden_size``.
        """
        for name in names:
            if self.facts[name] != getattr(model, name):
                fix = f"its file is for {name} {self.facts[name]}, not {getattr(model, name)}"
                where = f"{method}.{self.field}"
                raise InvalidInput(where, model.name, f"{fix}: train one for this model")

    def expect(self, inputs: Mapping[str, Array]) -> None:
        """Raise InvalidInput if the part was trained with inputs of other widths."""
        for name, width in self.inputs().items():
            if inputs[name].shape[1] != width:
                fix = f"{name} has {inputs[name].shape[1]} here: train one with these models"
                raise InvalidInput(self.field, f"a file for {width} numbers of {name}", fix)

    @classmethod
    def _read(cls: type[P], path: str) -> P:
        facts, tensors = load(path, cls.kind, cls.field)
        for name, most in cls.sizes.items():
            size_in(cls.field, path, facts, name, most)
        part = cls(facts, tensors)
        fix = part.wrong()
        if fix is not None:
            raise InvalidInput(cls.field, path, f"{fix}: train it again")
        check_shapes(cls.field, path, tensors, part.shapes())
        return part


def linear(out: str, x: str, weight: str, bias: str | None = None) -> tuple[Op, ...]:
    """Return the operations that compute x @ weight + bias."""
    if bias is None:
        return (Op(out, "linear", (x,), (weight,)),)
    product = f"{out}.product"
    return (Op(product, "linear", (x,), (weight,)), Op(out, "shift", (product,), (bias,)))


def rms_norm(out: str, x: str, gain: str | None = None, epsilon: float = 1e-6) -> tuple[Op, ...]:
    """Return the operations that divide x by its root mean square.

    If ``gain`` names a tensor, the result is multiplied by it. The value ``out.rms`` is the root
    mean square.
    """
    rms = Op(f"{out}.rms", "rms", (x,), (), 0, epsilon)
    if gain is None:
        return (rms, Op(out, "divide", (x, rms.out)))
    unit = Op(f"{out}.unit", "divide", (x, rms.out))
    return (rms, unit, Op(out, "scale", (unit.out,), (gain,)))


def layer_steps(
    out: str, x: str, prefix: str, places: tuple[str, str], heads: int
) -> tuple[Op, ...]:
    """Return the operations of one Llama layer.

    ``places`` names two inputs of its attention, which have a whole number for each row: its
    position and its group. A row attends to rows whose group is at most its own.
    """
    p, asked = prefix, (f"{out}.Q", f"{out}.K", f"{out}.V", *places)
    return (
        *rms_norm(f"{out}.h", x, f"{p}attn_norm"),
        *(step for n in "qkv" for step in linear(f"{out}.{n.upper()}", f"{out}.h", p + n)),
        Op(f"{out}.mixed", "attention", asked, (), heads, THETA),
        *linear(f"{out}.attended", f"{out}.mixed", f"{p}o"),
        Op(f"{out}.x", "add", (x, f"{out}.attended")),
        *rms_norm(f"{out}.h2", f"{out}.x", f"{p}mlp_norm"),
        *linear(f"{out}.opening", f"{out}.h2", f"{p}gate"),
        Op(f"{out}.open", "silu", (f"{out}.opening",)),
        *linear(f"{out}.raised", f"{out}.h2", f"{p}up"),
        Op(f"{out}.gated", "multiply", (f"{out}.raised", f"{out}.open")),
        *linear(f"{out}.fed", f"{out}.gated", f"{p}down"),
        Op(out, "add", (f"{out}.x", f"{out}.fed")),
    )


def layer_shapes(prefix: str, width: int, inner: int) -> dict[str, tuple[int, ...]]:
    """Return name -> shape for the tensors that :func:`layer_steps` reads."""
    square, wide = (width, width), (width, inner)
    made: dict[str, tuple[int, ...]] = {"attn_norm": (width,), **dict.fromkeys("qkvo", square)}
    made |= {"mlp_norm": (width,), "gate": wide, "up": wide, "down": (inner, width)}
    return {f"{prefix}{name}": shape for name, shape in made.items()}


def check_shapes(
    field: str, path: str, tensors: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise InvalidInput if the tensors do not have exactly the names and shapes of ``shapes``."""
    found = {name: values.shape for name, values in tensors.items()}
    if found != dict(shapes):
        wrong = sorted(set(found.items()) ^ set(shapes.items()))[0]
        raise InvalidInput(field, path, f"tensor {wrong[0]!r} has a wrong shape: train it again")


def size_in(field: str, path: str, facts: Facts, name: str, most: int) -> int:
    """Return ``facts[name]``; raise InvalidInput if it is not a whole number 1 to ``most``."""
    value = facts.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidInput(field, path, f"its {name} is {value!r:.40}, not from 1 to {most}")
    return value
