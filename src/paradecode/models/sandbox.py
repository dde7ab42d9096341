"""A Jinja sandbox with limits on time and memory, for templates from model files.

Jinja's own sandbox stops access to attributes. But ``{{ 'a' * 10**10 }}``, a string that a loop
doubles, or a macro that calls itself twice can still use all memory or run forever. Here a template
has one allowance, and every loop step and every call takes a part of it. An operation that makes
text or a list takes as much as the size of the result. An operation that looks into a value takes
the size of everything inside the value. If an operation could make something large in one step, its
part is taken before it runs. The code calls this "to pay".
"""

from __future__ import annotations

import functools
import json
from collections.abc import (
    Callable,
    Collection,
    ItemsView,
    Iterable,
    Iterator,
    KeysView,
    ValuesView,
)
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_round
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from markupsafe import soft_str

from paradecode.models.template_allowance import (
    ENTRY,
    measured,
    pay,
    size_of,
    steps,
    weighed,
)
from paradecode.models.template_text import (
    MAX_SLOW,
    check_method,
    check_needle,
    formatting,
    percent,
    pretty,
    rounded_digits,
    short,
    total,
    words_in,
)

MAX_NODES = 1 << 13
"""Largest number of nodes in a template's syntax tree, which bounds the time to compile it.
Published templates have up to 800."""

FILTERS = (
    "abs", "attr", "count", "d", "default", "filesizeformat", "first", "float", "int", "items",
    "last", "length", "map", "random", "reject", "rejectattr", "reverse", "select", "selectattr",
)  # fmt: skip
DEEP_FILTERS = (
    "capitalize", "dictsort", "e", "escape", "forceescape", "lower", "safe", "slice", "string",
    "title", "truncate", "upper", "xmlattr",
)  # fmt: skip
"""Filters that write or compare everything inside a value."""
ENTRY_FILTERS = ("groupby", "max", "min", "sort", "unique")
"""Filters that compare the entries of a list, or the characters of a text."""
SLOW_FILTERS = ("striptags", "urlencode", "urlize", "wordwrap")
"""Filters that only accept short texts, because they scan a text repeatedly."""
TESTS = (
    "boolean", "callable", "defined", "escaped", "false", "filter", "float", "integer", "iterable",
    "mapping", "none", "number", "sameas", "sequence", "string", "test", "true", "undefined",
)  # fmt: skip
DEEP_TESTS = (
    "!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le",
    "lessthan", "lower", "lt", "ne", "upper",
)  # fmt: skip
NUMBER_TESTS = ("divisibleby", "even", "odd")
TEXT_METHODS = frozenset(
    name for name in dir(str) if not name.startswith("_") and name not in ("format", "format_map")
)
"""All methods of a text except formatting, which a separate function handles."""
_NUMBER_METHODS = (
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "hex", "imag",
    "is_integer", "numerator", "real",
)  # fmt: skip
_LONG = (str, dict, list, tuple)
_OF_JINJA = ("_loop_vars", "_block_vars")
"""Arguments that Jinja itself adds to a call: every variable that is set there."""
_METHODS: dict[Any, Collection[str]] = {
    str: TEXT_METHODS,
    dict: ("copy", "get", "items", "keys", "values"),
    (list, tuple): ("copy", "count", "index"),
    (int, float): _NUMBER_METHODS,
    bytes: ("decode", "hex"),
    (KeysView, ValuesView, ItemsView, bytearray, type): (),
}


def _concat(parts: Iterable[str]) -> str:
    """Join texts; the size is checked before the text is made."""
    parts = list(steps(parts))
    pay(sum(map(len, parts)))
    return "".join(parts)


def _tilde(values: Iterable[Any]) -> str:
    """Return the result of Jinja's ``~`` for any values."""
    return _concat(map(soft_str, weighed(list(values))))


def _sought(place: Any) -> Any:
    """Pay for the values that ``in`` compares, and return ``place``.

    ``in`` compares only the keys of an object.
    """
    if isinstance(place, dict):
        weighed([*place])
        return place
    return weighed(place)


def _numbers(*values: Any) -> None:
    """Raise SecurityError for values that are not numbers."""
    if not all(isinstance(value, (int, float)) for value in values):
        raise SecurityError("this is for numbers; join text with ~")


class SandboxedEnvironment(ImmutableSandboxedEnvironment):
    """The environment of chat templates, with transformers' options and the limits above."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])
    concat = staticmethod(_concat)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlock],
            finalize=weighed,
        )  # fmt: skip
        own = {
            "batch": _batch, "center": _center, "format": _format, "indent": _indent,
            "join": _join, "pprint": pretty, "replace": _replace, "round": _round, "sum": _sum,
            "trim": _trim, "wordcount": words_in,
        }  # fmt: skip
        deep = {name: self.filters[name] for name in DEEP_FILTERS} | own
        deep |= {name: _of_entries(self.filters[name]) for name in ENTRY_FILTERS}
        deep |= {name: _of_short(self.filters[name]) for name in SLOW_FILTERS}
        plain = {name: self.filters[name] for name in FILTERS} | {"list": _list, "tojson": _tojson}
        self.filters = {name: _paid(_looking_in(function)) for name, function in deep.items()}
        self.filters |= {name: _paid(function) for name, function in plain.items()}
        # A template can call these, too.
        self.filters |= {
            "_measured": measured, "_weighed": weighed, "_steps": steps, "_tilde": _tilde,
            "_sought": _sought,
        }  # fmt: skip
        known: dict[str, Any] = self.tests
        self.tests = {name: known[name] for name in TESTS}
        self.tests |= {name: _looking_in(known[name]) for name in DEEP_TESTS}
        self.tests |= {name: _of_numbers(known[name]) for name in NUMBER_TESTS}
        kept = ("cycler", "dict", "joiner", "namespace", "range")
        self.globals = {name: self.globals[name] for name in kept}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse a template, and add calls that pay where Jinja has no hook (:func:`_rewritten`)."""
        tree = Parser(self, source, name, filename).parse()
        if sum(1 for _ in tree.find_all(nodes.Node)) > MAX_NODES:
            raise SecurityError(f"the template has more than {MAX_NODES} parts")
        for loop in tree.find_all(nodes.For):
            loop.iter = _filtered(loop.iter, "_steps")
        _rewrite(tree)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        for kinds, allowed in _METHODS.items():
            if isinstance(obj, kinds):
                return attr in allowed
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        return formatting(self, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = size_of(left), size_of(right)
        if operator == "+":
            pay(sum(sizes))
        elif operator == "*" and any(sizes):
            pay(max(sizes) * max(abs(v) for v in (left, right, 1) if isinstance(v, int)))
        elif operator == "%" and isinstance(left, str):
            return percent(left, weighed(right))
        elif operator != "*":
            _numbers(left, right)
        if operator == "**" and not (abs(left) <= 1 << 64 and abs(right) <= 64):
            raise SecurityError("the power is too large")
        result = super().call_binop(context, operator, left, right)
        size_of(result)
        return result

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        pay(0)
        named = [value for name, value in kwargs.items() if name not in _OF_JINJA]
        if not isinstance(obj, Macro):
            args = tuple(map(weighed, args))
            weighed(named)
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str):
            check_method(obj.__name__, owner, (*args, *named))
        if isinstance(owner, (list, tuple)):  # Its entries are compared with the argument.
            weighed(owner)
        return measured(super().call(context, obj, *args, **kwargs))


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _rewrite(node: nodes.Node) -> None:
    """Rewrite the nodes inside a node."""
    for field, value in node.iter_fields():
        if isinstance(value, list):
            for index, child in enumerate(value):
                if isinstance(child, nodes.Node):
                    value[index] = _rewritten(child)
        elif isinstance(value, nodes.Node):
            setattr(node, field, _rewritten(value))


def _rewritten(node: nodes.Node) -> nodes.Node:
    """Return the node with calls that pay, after rewriting the nodes inside it.

    ``a ~ b`` and slices become operations whose result is measured. The values in lists and
    comparisons are measured before they are used.
    """
    _rewrite(node)
    if isinstance(node, nodes.Concat):
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "_tilde")
    if isinstance(node, nodes.Compare):
        node.expr = _filtered(node.expr, "_weighed")
        for operand in node.ops:
            seeks = operand.op in ("in", "notin")
            operand.expr = _filtered(operand.expr, "_sought" if seeks else "_weighed")
    if isinstance(node, (nodes.List, nodes.Dict)) or (
        isinstance(node, (nodes.Tuple, nodes.Name))
        and node.ctx == "load"
        and (isinstance(node, nodes.Tuple) or node.name in ("varargs", "kwargs"))
    ):
        return _filtered(node, "_weighed")
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _filtered(node, "_measured")
    return node


def _paid(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that it pays for its result's size, or for each step of an iterator."""

    @functools.wraps(function)  # Keeps Jinja's marks of filters that need the context.
    def paid(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        return steps(found) if isinstance(found, Iterator) else measured(found)

    return paid


def _looking_in(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that it pays for everything inside its arguments."""

    @functools.wraps(function)
    def looking_in(*args: Any, **kwargs: Any) -> Any:
        return function(*map(weighed, args), **{k: weighed(v) for k, v in kwargs.items()})

    return looking_in


def _of_entries(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def of_entries(environment: Any, values: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
        return function(environment, _list(values), *args, **kwargs)

    return of_entries


def _of_short(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def of_short(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        texts = [v if isinstance(v, str) else repr(v) for v in given if isinstance(v, _LONG)]
        sizes = [len(short(text)) for text in texts]
        pay(MAX_SLOW + max(sizes, default=0) * sum(sorted(sizes)[:-1]))
        return function(*args, **kwargs)

    return of_short


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def of_numbers(*args: Any) -> Any:
        _numbers(*args)
        return function(*args)

    return of_numbers


def _replace(text: object, old: object, new: object, count: int | None = None) -> str:
    text, old, new = str(text), str(old), str(new)
    check_method("replace", text, (old, new))
    return text.replace(old, new, -1 if count is None else count)


def _trim(text: object, characters: str | None = None) -> str:
    check_needle(characters)
    return soft_str(text).strip(characters)


def _format(text: object, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise TypeError("give values by place or by name")
    return percent(str(text), kwargs or args)


def _center(text: object, width: int = 80) -> str:
    check_method("center", str(text), (width,))
    return str(text).center(width)


def _batch(values: Iterable[Any], linecount: int, fill_with: Any = None) -> list[list[Any]]:
    given = _list(values)
    pay(ENTRY * max(linecount, len(given)))
    rows = [given[at : at + linecount] for at in range(0, len(given), linecount)]
    if rows and fill_with is not None:
        rows[-1] += [fill_with] * (linecount - len(rows[-1]))
    return rows


def _round(value: float, precision: int = 0, method: str = "common") -> float:
    _numbers(value)
    return do_round(value, rounded_digits(precision), method)  # type: ignore[arg-type]


def _sum(values: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
    given = _list(values)
    if attribute is not None:
        given = [each[attribute] for each in steps(given)]
    return total(given, start)


def _list(values: Iterable[Any]) -> list[Any]:
    return list(steps(values))


def _join(values: Iterable[Any], separator: object = "", attribute: Any = None) -> str:
    if attribute is not None:
        values = [value[attribute] for value in steps(values)]
    texts = [str(value) for value in steps(values)]
    pay(sum(map(len, texts)) + len(str(separator)) * len(texts))
    return str(separator).join(texts)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    margin = width if isinstance(width, str) else " " * min(int(width), 256)
    lines = str(text).split("\n")
    pay(len(lines) * len(margin) + len(text))
    rest = [margin + line if line or blank else line for line in lines[1:]]
    return "\n".join([margin + lines[0] if first else lines[0], *rest])


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON in transformers' format: without HTML escapes."""
    if indent is not None and not 0 <= indent <= 16:
        raise SecurityError("indent by at most 16")
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    parts = []
    for part in encoder.iterencode(value):  # Each pays before the next one is made.
        pay(len(part))
        parts.append(part)
    return "".join(parts)


class GenerationBlock(Extension):
    """``{% generation %}`` marks assistant text for training; rendering ignores it."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
