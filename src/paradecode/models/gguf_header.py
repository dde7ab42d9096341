"""Read the header of a GGUF file, and check every count and length against the file.

The gguf package's own reader trusts the file (a count of 2**60 makes it loop or allocate). It also
takes 1.5 s for 50,000 tokens, because it makes a NumPy array of each text. The package is still
used for the layouts of blocks and for dequantising them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from struct import Struct

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGUF_MAGIC, GGUFValueType, quants

from paradecode.core.errors import InvalidModel
from paradecode.models.metadata import Metadata
from paradecode.models.weights import Kind

MAX_HEADER_BYTES = 1 << 28
MAX_ITEMS = 1 << 23
MAX_STRING = 1 << 24
MAX_NAME = 256
"""Largest number of bytes of a key or of a tensor's name; ggml's names have up to 64."""
MAX_ENTRIES = 1 << 16
"""Largest number of fields, and of tensors, of a file."""
_LENGTH = Struct("<Q").unpack_from
DAMAGED = "the file is damaged or truncated; download it again"

_SCALARS = {
    GGUFValueType.UINT8: "<u1", GGUFValueType.INT8: "<i1", GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2", GGUFValueType.UINT32: "<u4", GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4", GGUFValueType.UINT64: "<u8", GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8", GGUFValueType.BOOL: "<u1",
}  # fmt: skip


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of a file: ``shape`` has rows first, ``data`` is the tensor's slice of the file."""

    shape: tuple[int, ...]
    kind: Kind
    data: memoryview


@dataclass(frozen=True)
class Header:
    """Metadata and tensor table of a GGUF file.

    Attributes:
        fields: key -> str, bool, int, float, list[str] or a NumPy array of numbers.
        tensors: name -> shape, kind and bytes.
    """

    fields: Metadata
    tensors: dict[str, TensorInfo]


class _Walk:
    """A read position in the header. It stays inside the file, and its work is bounded."""

    def __init__(self, buffer: memoryview) -> None:
        self.buffer = buffer
        self.end = min(len(buffer), MAX_HEADER_BYTES)
        self.at = 0
        self.items = 0

    def take(self, size: int, what: str) -> int:
        """Advance by ``size`` bytes; return the position where they start."""
        start = self.at
        if size > self.end - start:
            raise InvalidModel(what, size, DAMAGED)
        self.at = start + size
        return start

    def count(self, number: int, what: str, most: int = MAX_ITEMS) -> int:
        """Count ``number`` more items, and return the number.

        At most MAX_ITEMS are allowed in all calls together, and at most ``most`` in this call.
        """
        self.items += number
        if self.items > MAX_ITEMS or number > most:
            raise InvalidModel(what, number, DAMAGED)
        return number

    def u32(self, what: str) -> int:
        start = self.take(4, what)
        return int.from_bytes(self.buffer[start : start + 4], "little")

    def u64(self, what: str) -> int:
        start = self.take(8, what)
        return int.from_bytes(self.buffer[start : start + 8], "little")

    def name(self, what: str) -> str:
        return self.strings(1, what, MAX_NAME)[0]

    def strings(self, number: int, what: str, most: int = MAX_STRING) -> list[str]:
        """Read ``number`` texts, each stored after its length.

        Args:
            most: largest number of bytes of a text.
        """
        found, data, at = [], self.buffer, self.at
        try:
            for _ in range(number):
                start = at + 8
                size = _LENGTH(data, at)[0] if start <= self.end else most + 1
                at = start + size
                if size > most or at > self.end:
                    raise InvalidModel(what, size, DAMAGED)
                found.append(str(data[start:at], "utf-8"))
        except UnicodeDecodeError as error:
            raise InvalidModel(what, error.reason, DAMAGED) from None
        self.at = at
        return found

    def value(self, code: int, what: str) -> object:
        """Read one metadata value of the type with the number ``code``."""
        if code == GGUFValueType.STRING:
            return self.strings(1, what)[0]
        if code == GGUFValueType.ARRAY:
            inner = self.u32(what)
            number = self.count(self.u64(what), what)
            if inner == GGUFValueType.STRING:
                return self.strings(number, what)
            return self.numbers(inner, number, what)
        number = self.numbers(code, 1, what)[0].item()
        return bool(number) if code == GGUFValueType.BOOL else number

    def numbers(self, code: int, number: int, what: str) -> np.ndarray:
        try:
            dtype = np.dtype(_SCALARS[GGUFValueType(code)])
        except (KeyError, ValueError):
            raise InvalidModel(what, code, "this metadata type is unknown; " + DAMAGED) from None
        start = self.take(number * dtype.itemsize, what)
        return np.frombuffer(self.buffer, dtype, number, start)


def read_header(buffer: memoryview) -> Header:
    """Read the header of a GGUF file (version 2 or 3, little-endian).

    Args:
        buffer: the whole file, uint8; usually a memory map.

    Raises:
        InvalidModel: the file is not a GGUF file, or an entry points outside of the file.
    """
    walk = _Walk(buffer)
    if len(buffer) < 24 or walk.u32("magic") != GGUF_MAGIC:
        raise InvalidModel("magic", bytes(buffer[:4]), "give a GGUF file")
    version = walk.u32("version")
    if version not in (2, 3):
        raise InvalidModel("version", version, "give a little-endian GGUF file of version 2 or 3")
    tensors = walk.count(walk.u64("tensor_count"), "tensor_count", MAX_ENTRIES)
    fields = _fields(walk, walk.count(walk.u64("kv_count"), "kv_count", MAX_ENTRIES))
    return Header(fields, _tensors(walk, tensors, _alignment(fields)))


def _fields(walk: _Walk, number: int) -> Metadata:
    fields = Metadata()
    for _ in range(number):
        key = walk.name("metadata key")
        if key in fields:
            raise InvalidModel(key, "twice", DAMAGED)
        fields[key] = walk.value(walk.u32(key), key)
    return fields


def _alignment(fields: Metadata) -> int:
    alignment = fields.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment not in [1 << n for n in range(3, 17)]:
        raise InvalidModel("general.alignment", alignment, "it must be a power of two from 8 up")
    return alignment


def _tensors(walk: _Walk, number: int, alignment: int) -> dict[str, TensorInfo]:
    found: dict[str, tuple[tuple[int, ...], Kind, int, int]] = {}
    for _ in range(number):
        name = walk.name("tensor name")
        if name in found:
            raise InvalidModel(name, "twice", DAMAGED)
        dimensions = walk.u32(name)
        if not 1 <= dimensions <= 4:
            raise InvalidModel(name, dimensions, "a tensor has 1 to 4 dimensions; " + DAMAGED)
        shape = tuple(walk.u64(name) for _ in range(dimensions))[::-1]
        kind = _kind(name, walk.u32(name))
        found[name] = shape, kind, walk.u64(name), _nbytes(name, shape, kind)
    start = -(-walk.at // alignment) * alignment
    # If tensors shared their bytes, a small file could become a large model.
    if start + sum(nbytes for *_, nbytes in found.values()) > len(walk.buffer):
        raise InvalidModel("tensors", f"{len(found)} tensors", DAMAGED)
    for name, (_, _, offset, nbytes) in found.items():
        if offset % alignment or start + offset + nbytes > len(walk.buffer):
            raise InvalidModel(name, offset, DAMAGED)
    return {
        name: TensorInfo(shape, kind, walk.buffer[start + offset : start + offset + nbytes])
        for name, (shape, kind, offset, nbytes) in found.items()
    }


def _kind(name: str, code: int) -> Kind:
    try:
        kind = Kind(code)
    except ValueError:
        raise InvalidModel(name, code, "this storage type is unknown; " + DAMAGED) from None
    # The only known whole-number tensor holds the tokens of a draft head.
    if not _readable(kind) and (name, kind) != ("d2t", Kind.I64):
        raise InvalidModel(name, kind.name, "convert it to F16, Q8_0, Q4_K or another GGUF type")
    return kind


@cache
def _readable(kind: Kind) -> bool:
    """Return whether the gguf package can dequantise this kind."""
    try:
        quants.dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def _nbytes(name: str, shape: tuple[int, ...], kind: Kind) -> int:
    block, size = GGML_QUANT_SIZES[kind]
    if min(shape) < 1 or shape[-1] % block:
        raise InvalidModel(name, shape, f"rows of {kind.name} hold multiples of {block} numbers")
    return math.prod(shape) // block * size
