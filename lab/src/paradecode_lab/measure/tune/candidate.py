"""A method in the search: drafters with settings, and the settings of the loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.methods.draft.head_drafter import HeadDrafter
from paradecode.methods.draft.loop import DraftSettings, DraftVerify
from paradecode.methods.parts import Parameter, parameters_of, written
from paradecode.methods.specs import find, methods, parse
from paradecode.models.heads import read_head

Settings = tuple[tuple[str, Any], ...]
"""(name, value) of each setting that differs from its default, in the order of the names."""

Files = Mapping[str, tuple[str, ...]]
"""``method.setting`` -> the files that may be tried there."""

LOOP = {entry.name: entry for entry in parameters_of(DraftSettings)}
LENGTHS = (4, 6, 8, 12, 16, 24)
"""``num_speculative_tokens`` that are tried."""
BUDGETS = ("auto", "fixed", "confidence")
"""Budgets that are tried; the others need estimates that drafters without training do not give."""


@dataclass(frozen=True)
class CandidateMethod:
    """A method with one drafter, or with several that are fused.

    Attributes:
        parts: (method, its own settings) of each drafter.
        loop: settings of the loop.
    """

    parts: tuple[tuple[str, Settings], ...]
    loop: Settings = ()

    @classmethod
    def of(cls, name: str) -> CandidateMethod:
        """A method with its defaults."""
        return cls(((name, ()),))

    def __str__(self) -> str:
        *first, (name, settings) = self.parts
        texts = [written(other, dict(own)) for other, own in first]
        return "+".join([*texts, written(name, {**dict(settings), **dict(self.loop)})])

    def fused(self, other: CandidateMethod) -> CandidateMethod:
        """Both sets of drafters, with this one's loop."""
        return CandidateMethod((*self.parts, *other.parts), self.loop)

    def neighbours(self, files: Files) -> Iterator[CandidateMethod]:
        """Candidates that differ in one setting; ``files`` are the files that settings may name."""
        for index, (name, own) in enumerate(self.parts):
            for entry in find(name).parameters:
                if entry.name in LOOP:
                    continue
                values = (
                    files.get(f"{name}.{entry.name}", ())
                    if entry.local
                    else (_around(entry, dict(own)))
                )
                for settings in _changed(own, entry, values):
                    parts = list(self.parts)
                    parts[index] = name, settings
                    yield replace(self, parts=tuple(parts))
        wanted: Mapping[str, tuple[Any, ...]] = {
            "num_speculative_tokens": LENGTHS, "budget": BUDGETS,
        }  # fmt: skip
        for name, values in wanted.items():
            for settings in _changed(self.loop, LOOP[name], values):
                yield replace(self, loop=settings)

    def without(self) -> Iterator[tuple[str, CandidateMethod]]:
        """(part, this candidate without it) for each of several drafters, and for each setting."""
        for index, (name, own) in enumerate(self.parts):
            if len(self.parts) > 1:
                rest = (*self.parts[:index], *self.parts[index + 1 :])
                yield name, replace(self, parts=rest)
            for key, value in own:
                parts = list(self.parts)
                parts[index] = name, tuple(entry for entry in own if entry[0] != key)
                yield f"{name}.{key}={value}", replace(self, parts=tuple(parts))
        for key, value in self.loop:
            rest_of_loop = tuple(entry for entry in self.loop if entry[0] != key)
            yield f"{key}={value}", replace(self, loop=rest_of_loop)

    @property
    def valid(self) -> bool:
        """Whether the settings go together."""
        try:
            parse(str(self))
        except InvalidInput:
            return False
        return True


def with_head(head: str, **settings: Any) -> list[CandidateMethod]:
    """The methods that draft with a head of this kind.

    Args:
        head: folder of the head, or a GGUF draft.
        settings: settings of the drafter, if it has them.

    Raises:
        InvalidModel: if the head cannot be read.
        InvalidInput: if its rows go through the target's own layers; such a method is no drafter.
    """
    kind, found = read_head(head).kind, []
    for name, method in methods().items():
        known = {entry.name for entry in method.parameters}
        if "head" not in known or "budget" not in known:
            continue
        own = {"head": head, **{key: value for key, value in settings.items() if key in known}}
        decoder = parse(written(name, own))()
        drafter = decoder.drafter if isinstance(decoder, DraftVerify) else None
        if isinstance(drafter, HeadDrafter) and kind in drafter.kinds:
            found.append(CandidateMethod(((name, tuple(sorted(own.items()))),)))
    if not found:
        raise InvalidInput("head", kind, "give one that drafts beside the model's own layers")
    return found


def _changed(settings: Settings, entry: Parameter, values: tuple[Any, ...]) -> Iterator[Settings]:
    present = dict(settings)
    now = present.get(entry.name, entry.default)
    for value in values:
        if value != now:
            changed = {**present, entry.name: value}
            if value == entry.default:
                del changed[entry.name]
            yield tuple(sorted(changed.items()))


def _around(entry: Parameter, present: Mapping[str, Any]) -> tuple[Any, ...]:
    """Values worth trying next to the present one."""
    now = present.get(entry.name, entry.default)
    if isinstance(now, bool):
        return (not now,)
    if entry.options:
        return entry.options
    if isinstance(now, str):
        return ()
    assert entry.low is not None
    assert entry.high is not None
    if isinstance(now, int):
        steps = {now - 1, now + 1, now // 2, now * 2, entry.default}
        return tuple(sorted(v for v in steps if entry.low <= v <= entry.high))
    halves = {round(now / 2, 4), round(now * 2, 4), entry.default}
    return tuple(v for v in sorted(halves) if entry.low <= v <= entry.high)
