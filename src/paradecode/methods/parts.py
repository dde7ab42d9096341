"""The registry of the parts of methods, by kind and name, with their guarantees and settings.

A part is a dataclass that a decorator adds to the registry. Its kind is ``method``, ``drafter``,
``budget``, ``verifier``, ``schedule``, ``policy``, ``blocks`` or ``cache``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from inspect import cleandoc
from pkgutil import walk_packages
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from paradecode.core.checks import Check, flag, meant, number, one_of, own_names, whole
from paradecode.core.decoder import Guarantee
from paradecode.core.errors import InvalidInput
from paradecode.methods.spec_text import LISTED, MAX_SPEC, name_and_settings

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**about: Any) -> Callable[[Any], Any]:
        return lambda function: function


def parameter(default: Any, low: float, high: float, help: str) -> Any:
    """Declare a setting: a number from ``low`` to ``high``, or a switch for a bool ``default``."""
    return field(default=default, metadata={"low": low, "high": high, "help": help})


def choice(default: str, choices: tuple[str, ...], help: str) -> Any:
    """Declare a setting whose value is one of the texts ``choices``."""
    return field(default=default, metadata={"choices": choices, "help": help})


def part(default: str, kind: str, help: str) -> Any:
    """Declare a setting that names another part and its settings: ``cache=prefix(refresh=8)``.

    The field holds the text; :func:`paradecode.methods.parts.make` builds the part.

    Args:
        kind: the other part's kind: ``budget``, ``verifier``, ``drafter``, ``policy``, ``blocks``
            or ``cache``.
    """
    return field(default=default, metadata={"kind": kind, "help": help})


def text(reads: Callable[[str], Any], help: str) -> Any:
    """Declare a setting whose value is a text, empty by default.

    ``reads`` parses the text, and raises ValueError for a malformed text.
    """
    return field(default="", metadata={"reads": reads, "help": help})


def local_path(help: str) -> Any:
    """Declare a setting whose value is the path of a file on this machine; empty means no file.

    Requests to a server may not set it.
    """
    return field(default="", metadata={"local": True, "help": help})


Class = TypeVar("Class", bound=type)


@dataclass(frozen=True)
class Parameter:
    """One setting of a part: its default, its bounds (numbers) or choices (texts), and its help.

    Attributes:
        local: True for the path of a file on this machine. Code and command lines may set it, but a
            server must not take it from a request.
        kind: kind of the part that the value names, with settings of its own; None for other
            values.
        reads: parses a text of a special form, or raises ValueError.
    """

    name: str
    default: Any
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    help: str
    local: bool = False
    kind: str | None = None
    reads: Callable[[str], Any] | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """The texts that users may choose from."""
        return self.choices if self.kind is None else tuple(known(self.kind))

    def check(self, where: str, value: Any, trusted: bool = True) -> Any:
        """Check a value for this setting, and return it converted to the setting's type.

        Args:
            where: name of the part that has this setting, for errors.
            trusted: False for a value from a request, which may not name files of this machine.

        Raises:
            InvalidInput: if the value has a wrong type, is out of bounds or is not allowed.
        """
        where = f"{where}.{self.name}"
        if isinstance(self.default, bool):
            return flag(where, value)
        if self.local:
            if not trusted:
                raise InvalidInput(where, value, "set it where the server is started")
            if not isinstance(value, str) or len(value) > MAX_SPEC or "\0" in value:
                raise InvalidInput(where, value, "give the path of a file")
            return value
        if self.kind is not None:
            chosen, settings = read(self.kind, where, value, trusted)
            return written(chosen.name, settings)
        if self.reads is not None:
            return _read_text(where, value, self.reads)
        if isinstance(self.default, str):
            return one_of(*self.choices)(where, value)
        kind: Callable[..., Check] = whole if isinstance(self.default, int) else number
        return kind(self.low, self.high)(where, value)


@dataclass(frozen=True, kw_only=True)
class Part:
    """An entry of the registry.

    Attributes:
        kind, name: unique as a pair; ``name`` is what users write.
        guarantee: see :data:`paradecode.core.decoder.Guarantee`. A method that uses this part has
            no stronger guarantee.
        training: what must be trained first, or ``none``.
        paper, arxiv, url: the publication that describes the part.
        parameters: the part's settings.
        aliases: the part's names in other engines.
        names: a setting's name in other engines -> its name here.
        build: function from keyword settings to the part.
        summary, idea, when: sections of the part's docstring; see :func:`told`.
    """

    kind: str = "method"
    name: str
    guarantee: Guarantee = "exact"
    training: str = "none"
    paper: str = ""
    arxiv: str | None = None
    url: str | None = None
    parameters: tuple[Parameter, ...]
    aliases: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    build: Callable[..., Any]
    summary: str = ""
    idea: str = ""
    when: str = ""


@dataclass(frozen=True, kw_only=True)
class Method(Part):
    """A whole method; its ``build`` makes a decoder.

    Attributes:
        family: ``autoregressive`` or ``diffusion``.
        models: names of the models that it needs besides the target model, such as ``draft``.
        under: function from settings to the guarantee with them; None if settings do not change it.
    """

    family: str = "autoregressive"
    models: tuple[str, ...] = ()
    under: Callable[[Mapping[str, Any]], Guarantee] | None = None


TABLE: dict[str, dict[str, Any]] = {}
_ALIASES: dict[tuple[str, str], str] = {}


def register(part: Part) -> None:
    """Add a part to the registry; the same class may be registered again.

    Raises:
        InvalidInput: if another part of this kind has the name.
    """
    table = TABLE.setdefault(part.kind, {})
    before = table.get(part.name)
    if before is not None and before.summary != part.summary:
        raise InvalidInput(f"{part.kind} name", part.name, "choose a name that is not taken")
    table[part.name] = part
    for alias in part.aliases:
        _ALIASES[part.kind, alias] = part.name


def as_dataclass(cls: Class) -> Class:
    """Make ``cls`` a dataclass if it is none yet, and return it."""
    if "__dataclass_fields__" not in vars(cls):
        dataclass(eq=False)(cls)  # It changes the class and returns the same one.
    return cls


@dataclass_transform(field_specifiers=(field,))
def declare(kind: str, name: str, **about: Any) -> Callable[[Class], Class]:
    """Return a class decorator that registers a dataclass as the part ``name``.

    Args:
        about: attributes of :class:`Part`, such as ``paper``, ``arxiv`` and ``guarantee``.
    """

    def add(cls: Class) -> Class:
        settings = parameters_of(as_dataclass(cls))
        register(
            Part(kind=kind, name=name, parameters=settings, build=cls, **told(cls.__doc__), **about)
        )
        return cls

    return add


@dataclass_transform(field_specifiers=(field,))
def method(
    name: str,
    *,
    schedule: bool = False,
    kind: str = "",
    shared: Sequence[Parameter] = (),
    loop: Callable[[Any, dict[str, Any]], Any] | None = None,
    **about: Any,
) -> Callable[[Class], Class]:
    """Return a class decorator that registers a dataclass as the method ``name``.

    Args:
        schedule: True if the method runs a draft model and the target at the same time.
        kind: kind under which the class is registered as well, such as ``drafter``.
        shared: settings of the loop that runs the method; they follow the method's own settings.
        loop: function that makes a decoder from an object of the class and the loop's settings.
            Without it, the class has its own ``decode``.
        about: attributes of :class:`Method`, such as ``paper``, ``family`` and ``models``.
    """

    def add(cls: Class) -> Class:
        own = parameters_of(as_dataclass(cls))

        def build(**settings: Any) -> Any:
            mine = {entry.name: settings.pop(entry.name) for entry in own if entry.name in settings}
            return cls(**mine) if loop is None else loop(cls(**mine), settings)

        build.__module__ = cls.__module__  # Where the method lives.
        part_of = {
            key: about[key] for key in ("guarantee", "paper", "arxiv", "url") if key in about
        }
        if kind or schedule:
            declare(kind or "schedule", name, **part_of)(cls)
        settings = (*own, *shared)
        register(Method(name=name, parameters=settings, build=build, **told(cls.__doc__), **about))
        return cls

    return add


def known(kind: str) -> Mapping[str, Part]:
    """Return name -> part for all parts of a kind, sorted by name.

    Parts are built in, registered by the program, or installed by another package.
    """
    _load()
    table = TABLE.get(kind, {})
    return {name: table[name] for name in sorted(table)}


def find(kind: str, name: str) -> Part | None:
    """Return a part by its name or alias, or None; hyphens may be written as underscores."""
    _load()
    table = TABLE.get(kind, {})
    for key in (name.strip().lower(), name.strip().lower().replace("_", "-")):
        key = _ALIASES.get((kind, key), key)
        if key in table:
            found: Part = table[key]
            return found
    return None


def near(kind: str, name: str) -> str:
    """Return the hint for an unknown name: similar names, and the command that lists all names."""
    aliases = (alias for of, alias in _ALIASES if of == kind and "_" not in alias)
    return meant(name, [*known(kind), *aliases], f"use one of {LISTED}")


def read(kind: str, where: str, text: Any, trusted: bool = True) -> tuple[Part, dict[str, Any]]:
    """Parse ``name`` or ``name(key=value, ...)``; return the part and its checked settings.

    Args:
        where: name of the setting that chooses the part, for errors.
        trusted: see :meth:`Parameter.check`.

    Raises:
        InvalidInput: if the part is unknown or a setting is wrong; the error names ``where``.
    """
    name, given = name_and_settings(text) if isinstance(text, str) and text.strip() else ("", {})
    found = find(kind, name)
    if found is None:
        raise InvalidInput(where, text, meant(name, known(kind)))
    return found, checked(found, f"{where}={found.name}", given, trusted)


def make(kind: str, text: str, where: str = "", **more: Any) -> Any:
    """Build the part that a text describes; ``more`` are further arguments of its constructor."""
    found, settings = read(kind, where or kind, text)
    return found.build(**settings, **more)


def checked(
    part: Part, where: str, given: Mapping[str, Any], trusted: bool = True
) -> dict[str, Any]:
    """Check a part's settings, given by names or aliases; return them under their own names.

    Raises:
        InvalidInput: if a setting is unknown, has a wrong value, or is given under two names.
    """
    entries = {entry.name: entry for entry in part.parameters}
    settings = {}
    for key, value in own_names(given, part.names, f"{where}.").items():
        if key not in entries:
            listed = f"use one that `paradecode methods {part.name}` lists"
            listed = listed if entries else f"{part.name} has no settings"
            fix = meant(key, [*entries, *part.names], listed)
            raise InvalidInput(f"{where} setting", key, fix)
        settings[key] = entries[key].check(where, value, trusted)
    return settings


def written(name: str, settings: Mapping[str, Any]) -> str:
    """Write a part as the text ``name(key=value,...)``, which :func:`read` reads."""
    inside = ",".join(f"{key}={_written(value)}" for key, value in settings.items())
    return f"{name}({inside})" if inside else name


def _written(value: Any) -> str:
    return repr(value) if isinstance(value, str) and not value.isidentifier() else str(value)


def parameters_of(cls: type) -> tuple[Parameter, ...]:
    """Return the fields of a dataclass that declare settings, as :class:`Parameter` objects."""
    return tuple(_parameter(entry) for entry in fields(cls) if "help" in entry.metadata)


def _parameter(entry: Field[Any]) -> Parameter:
    return Parameter(
        entry.name, entry.default, **{"low": None, "high": None, "choices": (), **entry.metadata}
    )


class Told(TypedDict):
    """The sections of a part's docstring; see :func:`told`."""

    summary: str
    idea: str
    when: str


def told(docstring: str | None) -> Told:
    """Split a part's docstring into ``summary`` (its first line), ``when`` and ``idea``.

    ``when`` is the paragraph that begins with "When: ", or empty. ``idea`` is all other paragraphs,
    with empty lines between them.
    """
    first, *rest = cleandoc(docstring or "").split("\n\n")
    marked = [text for text in rest if text.startswith("When: ")]
    return {
        "summary": first.partition("\n")[0],
        "idea": "\n\n".join(text for text in rest if text not in marked),
        "when": " ".join(text.removeprefix("When: ") for text in marked),
    }


def _read_text(where: str, value: Any, reads: Callable[[str], Any]) -> str:
    if not isinstance(value, str) or len(value) > MAX_SPEC:
        raise InvalidInput(where, value, f"give a text of at most {MAX_SPEC} characters")
    try:
        reads(value)
    except ValueError as error:
        raise InvalidInput(where, value, str(error)) from None
    return value


@cache
def load_room(name: str) -> None:
    """Import all modules of a package, so that each module adds its parts to the registry."""
    for module in walk_packages(import_module(name).__path__, name + "."):
        import_module(module.name)


@cache
def _load() -> None:
    """Import the methods of this package, and the entry points of other packages."""
    load_room(__name__.rpartition(".")[0])
    for entry in entry_points(group="paradecode.decoders"):
        entry.load()
