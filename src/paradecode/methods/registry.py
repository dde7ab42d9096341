"""Methods by name, what of them can be set, and specs: a method with its settings."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields
from dataclasses import field as dataclass_field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from inspect import cleandoc
from pkgutil import walk_packages
from typing import Any, TypedDict

from paradecode import methods as rooms
from paradecode.core.aliases import own_names
from paradecode.core.decoder import Decoder, Guarantee, weakest
from paradecode.core.errors import InvalidInput
from paradecode.methods.spec_text import MAX_SPEC, name_and_settings, parts_of

LISTED = "those that `paradecode methods` lists"


@dataclass(frozen=True)
class Parameter:
    """One setting of a method: its default, its bounds (numbers) or choices (texts), what it is.

    ``local`` ones name a file of this machine: code and command lines may set them, a server must
    not take them from a request. ``parts`` are classes of which the text chooses one, with
    settings of its own: ``cache=prefix(refresh=8)``. ``reads`` understands a text of a form of its
    own, or raises ValueError.
    """

    name: str
    default: Any
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    help: str
    local: bool = False
    parts: Mapping[str, type] | None = None
    reads: Callable[[str], Any] | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """The texts that may be chosen."""
        return self.choices if self.parts is None else tuple(self.parts)

    def check(self, method: str, value: Any) -> Any:
        """The value, converted; raises InvalidInput if it does not fit."""
        where = f"{method}.{self.name}"
        if isinstance(self.default, bool):
            if not isinstance(value, bool):
                raise InvalidInput(where, value, "give true or false")
            return value
        if self.local:
            if not isinstance(value, str) or len(value) > MAX_SPEC or "\0" in value:
                raise InvalidInput(where, value, "give the path of a file")
            return value
        if self.parts is not None:
            return written(*_read_part(where, value, self.parts))
        if self.reads is not None:
            return _read_text(where, value, self.reads)
        if isinstance(self.default, str):
            if value not in self.choices:
                raise InvalidInput(where, value, f"use one of {', '.join(self.choices)}")
            return value
        whole = isinstance(self.default, int)
        kind = "a whole number" if whole else "a number"
        fix = f"give {kind} from {self.low:g} to {self.high:g}"
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            raise InvalidInput(where, value, fix)
        if not self.low <= value <= self.high:  # type: ignore[operator]  # False for NaN, too.
            raise InvalidInput(where, value, fix)
        return value if whole else float(value)


def parameter(default: Any, low: float, high: float, help: str) -> Any:
    """A number that users may set: a dataclass field with its default, bounds and meaning."""
    return dataclass_field(default=default, metadata={"low": low, "high": high, "help": help})


def choice(default: str, choices: tuple[str, ...], help: str) -> Any:
    """A text that users may set, out of ``choices``."""
    return dataclass_field(default=default, metadata={"choices": choices, "help": help})


def part(default: str, parts: Mapping[str, type], help: str) -> Any:
    """A replaceable part out of ``parts``: dataclasses by name, with settings of their own."""
    return dataclass_field(default=default, metadata={"parts": parts, "help": help})


def make_part(where: str, text: str, parts: Mapping[str, type]) -> Any:
    """The part that ``name`` or ``name(key=value, ...)`` describes.

    Raises:
        InvalidInput: naming ``where``, the setting that chooses it.
    """
    name, settings = _read_part(where, text, parts)
    return parts[name](**settings)


def _read_part(where: str, text: Any, parts: Mapping[str, type]) -> tuple[str, dict[str, Any]]:
    name, given = name_and_settings(text) if isinstance(text, str) and text.strip() else ("", {})
    name = name.strip().lower()
    if name not in parts:  # Written without quotes, a name cannot hold a hyphen.
        name = name.replace("_", "-")
    if name not in parts:
        raise InvalidInput(where, text, f"use one of {', '.join(parts)}")
    known = {entry.name: entry for entry in parameters_of(parts[name])}
    for key in given:
        if key not in known:
            raise InvalidInput(
                f"{where}={name} setting", key, f"use one of {', '.join(known) or '(none)'}"
            )
        if known[key].local:  # Parts come from requests, too.
            raise InvalidInput(f"{where}={name}.{key}", given[key], "set it on the method itself")
    return name, {key: known[key].check(f"{where}={name}", value) for key, value in given.items()}


def text(reads: Callable[[str], Any], help: str) -> Any:
    """A text, empty by default, that ``reads`` understands; it raises ValueError for others."""
    return dataclass_field(default="", metadata={"reads": reads, "help": help})


def _read_text(where: str, value: Any, reads: Callable[[str], Any]) -> str:
    if not isinstance(value, str) or len(value) > MAX_SPEC:
        raise InvalidInput(where, value, f"give a text of at most {MAX_SPEC} characters")
    try:
        reads(value)
    except ValueError as error:
        raise InvalidInput(where, value, str(error)) from None
    return value


def local_path(help: str) -> Any:
    """A file of this machine, empty for none; see :class:`Parameter`."""
    return dataclass_field(default="", metadata={"local": True, "help": help})


@dataclass(frozen=True)
class Method:
    """An entry of the registry.

    Attributes:
        name: what users write.
        family: ``autoregressive`` or ``diffusion``.
        guarantee: see :data:`paradecode.core.decoder.Guarantee`.
        training: what has to be trained first (``none``).
        paper, arxiv, url: where it comes from.
        summary: first line of its docstring.
        parameters: what can be set.
        aliases: other names, of other engines.
        names: other engines' parameter names -> ours.
        build: keyword settings -> decoder.
        models: names of the models it needs beside the target (``draft``).
        under: what is left of the guarantee under some settings; None if they do not matter.
        idea, when: how it works and where it pays, from its docstring (:func:`told`).
    """

    name: str
    family: str
    guarantee: Guarantee
    training: str
    paper: str
    arxiv: str | None
    url: str | None
    summary: str
    parameters: tuple[Parameter, ...]
    aliases: tuple[str, ...]
    names: Mapping[str, str]
    build: Callable[..., Decoder]
    models: tuple[str, ...] = ()
    under: Callable[[Mapping[str, Any]], Guarantee] | None = None
    idea: str = ""
    when: str = ""


METHODS: dict[str, Method] = {}
_ALIASES: dict[str, str] = {}


def register(method: Method) -> None:
    """Add a method; a name that is taken is an error, a second registration of one class is not."""
    known = METHODS.get(method.name)
    if known is not None and known.summary != method.summary:
        raise InvalidInput("method name", method.name, "choose a name that is not taken")
    METHODS[method.name] = method
    for alias in method.aliases:
        _ALIASES[alias] = method.name


def parameters_of(cls: type) -> tuple[Parameter, ...]:
    """The fields of a dataclass that were declared with ``parameter``, ``choice`` and the like."""
    return tuple(_parameter(entry) for entry in fields(cls) if "help" in entry.metadata)


def _parameter(entry: Field[Any]) -> Parameter:
    meta = entry.metadata
    return Parameter(
        entry.name, entry.default, meta.get("low"), meta.get("high"),
        meta.get("choices", ()), meta["help"], meta.get("local", False), meta.get("parts"),
        meta.get("reads"),
    )  # fmt: skip


class Told(TypedDict):
    """What a method's docstring says; see :func:`told`."""

    summary: str
    idea: str
    when: str


def told(docstring: str | None) -> Told:
    """What a method's docstring says: ``summary`` (its first line), ``when``, and ``idea``.

    ``when`` is the paragraph that begins with "When: "; ``idea`` is the rest, paragraphs divided
    by an empty line.
    """
    first, *rest = cleandoc(docstring or "").split("\n\n")
    marked = [text for text in rest if text.startswith("When: ")]
    return {
        "summary": first.partition("\n")[0],
        "idea": "\n\n".join(text for text in rest if text not in marked),
        "when": " ".join(text.removeprefix("When: ") for text in marked),
    }


@dataclass(frozen=True)
class Spec:
    """A method with checked settings; calling it builds a fresh decoder for one request.

    Attributes:
        draft_model: the small model that the spec names for a method that needs one.
    """

    method: Method
    settings: Mapping[str, Any]
    draft_model: str | None = dataclass_field(default=None, kw_only=True)

    def __call__(self) -> Decoder:
        return self.method.build(**self.settings)

    @property
    def guarantee(self) -> Guarantee:
        """The method's guarantee, as far as the settings leave it."""
        under = self.method.under
        return weakest(self.method.guarantee, under(self.settings) if under else "exact")

    def changed(self, settings: Mapping[str, Any]) -> Spec:
        """The same with some settings replaced. Raises InvalidInput."""
        return configured(self.method, {**self.given, **settings})

    @property
    def given(self) -> dict[str, Any]:
        """What :func:`configured` makes this of."""
        model = {} if self.draft_model is None else {"model": self.draft_model}
        return {**self.settings, **model}

    def __str__(self) -> str:
        return written(self.method.name, self.settings)


def written(name: str, settings: Mapping[str, Any]) -> str:
    """``name(key=value,...)``, as :func:`parse` reads it."""
    inside = ",".join(f"{key}={_written(value)}" for key, value in settings.items())
    return f"{name}({inside})" if inside else name


def _written(value: Any) -> str:
    return repr(value) if isinstance(value, str) and not value.isidentifier() else str(value)


def parse(spec: str | Mapping[str, Any] | Spec | None, trusted: bool = True) -> Spec:
    """Read ``name``, ``name(key=value, ...)``, a JSON object, or a mapping with ``method``.

    ``a(x=1)+b`` is one method made of two drafters; in a mapping ``method`` may also be a list of
    them. None, ``none`` and ``""`` are plain decoding.

    Args:
        trusted: False for a spec that came over a network: it may not name files of this machine.

    Raises:
        InvalidInput: naming the method or the setting that is not understood, or that is given
            under two names.
    """
    if isinstance(spec, Spec):
        return spec
    if isinstance(spec, str):
        parts = parts_of(spec)
        name, given = name_and_settings(spec) if len(parts) == 1 else (spec, {})
    elif isinstance(spec, Mapping):
        given = dict(spec)
        name = given.pop("method", None)
        if isinstance(name, (list, tuple)) and all(isinstance(part, str) for part in name):
            name = "+".join(name)
        if not isinstance(name, str):
            raise InvalidInput("method", name, f"name one of {LISTED}")
    elif spec is None:
        name, given = "greedy", {}
    else:
        raise InvalidInput("decoder", spec, "give a text such as 'prompt-lookup(max_ngram=3)'")
    parts = parts_of(name)
    if len(parts) > 1:
        # Imported here: it needs this module, as every method does.
        from paradecode.methods.draft.fuse import fusion

        return fusion([name_and_settings(part) for part in parts], given, trusted)
    return configured(find(name), given, trusted)


def configured(method: Method, given: Mapping[str, Any], trusted: bool = True) -> Spec:
    """A method with settings by their names or aliases; ``model`` is a draft method's small model.

    Raises:
        InvalidInput: as :func:`parse`.
    """
    known = {entry.name: entry for entry in method.parameters}
    given = dict(given)
    draft_model = given.pop("model", None) if "draft" in method.models else None
    if not isinstance(draft_model, (str, type(None))):
        raise InvalidInput(f"{method.name}.model", draft_model, "name a model as a text")
    settings = {}
    for key, value in own_names(given, method.names, f"{method.name}.").items():
        if key not in known:
            raise InvalidInput(
                f"{method.name} setting", key, f"use one of {', '.join(known) or '(none)'}"
            )
        if known[key].local and not trusted:
            raise InvalidInput(f"{method.name}.{key}", value, "set it where the server is started")
        settings[key] = known[key].check(method.name, value)
    method.build(**settings)  # Rules between settings are the method's own to check.
    return Spec(method, settings, draft_model=draft_model)


def find(name: str) -> Method:
    """A method by name or alias."""
    table = methods()
    key = name.strip().lower()
    key = _ALIASES.get(key, key)
    if key not in table:
        key = _ALIASES.get(key.replace("_", "-"), key.replace("_", "-"))
    if key not in table:
        near = difflib.get_close_matches(key, [*table, *_ALIASES], 3)
        raise InvalidInput("decoder", name, f"use one of {', '.join(near) or LISTED}")
    return table[key]


def methods() -> Mapping[str, Method]:
    """Every method: built in, registered by the program, or installed (``paradecode.decoders``)."""
    _load()
    return METHODS


@cache
def _load() -> None:
    folder = rooms.__path__
    for module in walk_packages(folder, rooms.__name__ + "."):
        import_module(module.name)
    for entry in entry_points(group="paradecode.decoders"):
        entry.load()
