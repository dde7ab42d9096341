"""Settings as dataclass fields: how a part declares what users may set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any


def parameter(default: Any, low: float, high: float, help: str) -> Any:
    """A number from ``low`` to ``high``; with a default of True or False, a switch."""
    return field(default=default, metadata={"low": low, "high": high, "help": help})


def choice(default: str, choices: tuple[str, ...], help: str) -> Any:
    """One of the texts ``choices``."""
    return field(default=default, metadata={"choices": choices, "help": help})


def part(default: str, kind: str, help: str) -> Any:
    """A part of the registry with settings of its own: ``cache=prefix(refresh=8)``.

    The field holds the text; :func:`paradecode.methods.parts.make` builds the part.

    Args:
        kind: ``budget``, ``verifier``, ``drafter``, ``policy``, ``blocks`` or ``cache``.
    """
    return field(default=default, metadata={"kind": kind, "help": help})


def text(reads: Callable[[str], Any], help: str) -> Any:
    """A text, empty by default, that ``reads`` understands; it raises ValueError for others."""
    return field(default="", metadata={"reads": reads, "help": help})


def local_path(help: str) -> Any:
    """A file of this machine, empty for none. Requests to a server may not set it."""
    return field(default="", metadata={"local": True, "help": help})
