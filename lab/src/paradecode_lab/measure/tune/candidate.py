"""A candidate of the search: drafters with settings, and settings of the loop."""

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
"""(name, value) of each setting that differs from its default, sorted by name."""

Files = Mapping[str, tuple[str, ...]]
"""``method.setting`` -> the files that the search may try for this setting."""

LOOP = {entry.name: entry for entry in parameters_of(DraftSettings)}
LENGTHS = (4, 6, 8, 12, 16, 24)
"""Values of ``num_speculative_tokens`` that the search tries."""
BUDGETS = ("auto", "fixed", "confidence")
"""Budgets that the search tries; the others need estimates that untrained drafters do not give."""


@dataclass(frozen=True)
class CandidateMethod:
    """A method with one drafter, or with several drafters that are fused.

    Attributes:
        parts: (method, its own settings) of each drafter.
        loop: settings of the draft-and-verify loop.
    """

    parts: tuple[tuple[str, Settings], ...]
    loop: Settings = ()

    @classmethod
    def of(cls, name: str) -> CandidateMethod:
        """Return a method with its default settings."""
        return cls(((name, ()),))

    def __str__(self) -> str:
        *first, (name, settings) = self.parts
        texts = [written(other, dict(own)) for other, own in first]
        return "+".join([*texts, written(name, {**dict(settings), **dict(self.loop)})])

    def fused(self, other: CandidateMethod) -> CandidateMethod:
        """Return a candidate with the drafters of both, and the loop settings of this one."""
        return CandidateMethod((*self.parts, *other.parts), self.loop)

    def neighbours(self, files: Files) -> Iterator[CandidateMethod]:
        """Yield candidates that differ in one setting.

        ``files`` are the files that settings may name.
        """
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
        """Yield (removed part, this candidate without it).

        A part is one of several drafters, or a setting that differs from its default.
        """
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
        """True if the registry accepts these settings together."""
        try:
            parse(str(self))
        except InvalidInput:
            return False
        return True


def with_head(head: str, **settings: Any) -> list[CandidateMethod]:
    """Return the methods that can draft with a given head.

    Args:
        head: folder of the head, or a GGUF draft.
        settings: settings of the drafter; those that a drafter does not have are ignored.

    Raises:
        InvalidModel: the head cannot be read.
        InvalidInput: the head's rows go through the target's own layers, so that no drafter can use
            it.
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
    """Return the values that are worth trying next to the present one."""
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
