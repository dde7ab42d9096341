"""A Jinja sandbox with limits on time and memory, for templates from model files.

Jinja's own sandbox stops access to attributes. But ``{{ 'a' * 10**10 }}``, a string that a loop
doubles, or a macro that calls itself twice can still take all memory or run for ever. Here every
loop step and call uses up a part of one allowance. Operations that make text or lists pay for its
size, and operations that could make something large in one step are removed.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace

SECONDS = 5.0
MAX_VALUE = 1 << 23
MAX_TOTAL = 1 << 26
STEP = 32

FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float",
    "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min",
    "reject", "rejectattr", "replace", "reverse", "safe", "select", "selectattr", "sort",
    "string", "title", "trim", "unique", "upper",
)  # fmt: skip
TEXT_METHODS = frozenset(
    (
        "capitalize", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii",
        "isdigit", "islower", "isspace", "isupper", "join", "lower", "lstrip", "partition",
        "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit",
        "rstrip", "split", "splitlines", "startswith", "strip", "title", "upper",
    )
)  # fmt: skip


class _Allowance:
    """The rest of the time and size that one rendering may use."""

    def __init__(self) -> None:
        self.left = MAX_TOTAL
        self.deadline = time.monotonic() + SECONDS

    def pay(self, size: int) -> None:
        self.left -= size + STEP
        if size > MAX_VALUE or self.left < 0:
            raise SecurityError("the template makes too much text or too many steps")
        if time.monotonic() > self.deadline:
            raise SecurityError("the template takes too long")


_allowance: ContextVar[_Allowance] = ContextVar("template_allowance")


@contextmanager
def allowance() -> Iterator[None]:
    """Limit compiling and rendering inside of the block; too much raises SecurityError."""
    token = _allowance.set(_Allowance())
    try:
        yield
    finally:
        _allowance.reset(token)


def _pay(size: int) -> None:
    _allowance.get().pay(size)


def _measured(value: Any) -> Any:
    """Pay for the size of a value, and return it."""
    _pay(len(value) if isinstance(value, (str, list, tuple, dict)) else 0)
    return value


def _weighed(value: Any) -> Any:
    """Pay for a value with everything inside of it, and return it.

    Shared parts count as often as they occur: ``a = [a, a]`` forty times takes little memory, but
    writing or comparing it would never end.
    """
    pending = [value]
    while pending:
        inner = pending.pop()
        _pay(0)
        if isinstance(inner, dict):
            pending += [*inner, *inner.values()]
        elif isinstance(inner, (list, tuple)):
            pending += inner
    return value


def _steps(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        _pay(0)
        yield value


def _concat(parts: Iterable[str]) -> str:
    """Join texts; the size is checked before the text is made."""
    parts = list(_steps(parts))
    _pay(sum(map(len, parts)))
    return "".join(parts)


def _check_text_call(name: str, text: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Refuse a replace or join with a too large result; returns the arguments to use."""
    if name == "replace" and len(args) >= 2:
        old, new = str(args[0]), str(args[1])
        _pay(text.count(old) * max(len(new) - len(old), 0))
    if name == "join" and args:
        parts = list(_steps(args[0]))
        _pay(sum(len(str(part)) + len(text) for part in parts))
        return (parts, *args[1:])
    return args


class SandboxedEnvironment(ImmutableSandboxedEnvironment):
    """The environment of chat templates, with transformers' options and the limits above."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])
    concat = staticmethod(_concat)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlock]
        )
        own = {"indent": _indent, "join": _join, "replace": _replace, "tojson": _tojson}
        known = {name: own.get(name, self.filters[name]) for name in FILTERS} | own
        self.filters = {name: _paid(function) for name, function in known.items()}
        self.filters |= {
            "_measured": _measured, "_weighed": _weighed, "_steps": _steps, "_concat": _concat,
        }  # fmt: skip
        kept = ("range", "dict", "namespace")
        self.globals = {name: self.globals[name] for name in kept}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse, and add payments for ``~``, slices, loops and lists; Jinja intercepts none."""
        tree = Parser(self, source, name, filename).parse()
        for loop in tree.find_all(nodes.For):
            loop.iter = _filtered(loop.iter, "_steps")
        _rewrite(tree)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in TEXT_METHODS
        if isinstance(obj, (bytes, bytearray, int, float)):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """Formatting is refused by is_safe_attribute: "{:9999999999}" makes text of that size."""

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+" and isinstance(left, (str, list, tuple)) and hasattr(right, "__len__"):
            _pay(len(left) + len(right))
        elif operator == "*":
            sizes = [len(v) if hasattr(v, "__len__") else abs(int(v)) for v in (left, right)]
            whole = isinstance(left, (int, float)) and isinstance(right, (int, float))
            _pay(0 if whole else sizes[0] * sizes[1])
        elif operator == "%" and isinstance(left, str):
            raise SecurityError("templates may not format with %; use ~ to join text")
        elif operator == "**" and not (abs(left) <= 1 << 64 and abs(right) <= 64):
            raise SecurityError("the power is too large")
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and result.bit_length() > 1 << 12:
            raise SecurityError("the number is too large")
        return result

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _pay(0)
        owner = getattr(obj, "__self__", None)
        if obj in (dict, Namespace):
            _weighed([*args, *kwargs.values()])
        if isinstance(owner, str):
            args = _check_text_call(obj.__name__, owner, args)
        return _measured(super().call(context, obj, *args, **kwargs))


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _rewrite(node: nodes.Node) -> None:
    """Replace ``a ~ b`` by a measured join, measure slices, weigh lists; children first."""
    for field, value in node.iter_fields():
        if isinstance(value, list):
            for index, child in enumerate(value):
                if isinstance(child, nodes.Node):
                    value[index] = _rewritten(child)
        elif isinstance(value, nodes.Node):
            setattr(node, field, _rewritten(value))


def _rewritten(node: nodes.Node) -> nodes.Node:
    _rewrite(node)
    if isinstance(node, nodes.Concat):
        texts: list[nodes.Expr] = [_filtered(part, "string") for part in node.nodes]
        return _filtered(nodes.List(texts, lineno=node.lineno), "_concat")
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
    @functools.wraps(function)  # Keeps Jinja's marks of filters that need the context.
    def paid(*args: Any, **kwargs: Any) -> Any:
        return _measured(function(*args, **kwargs))

    return paid


def _replace(text: object, old: object, new: object, count: int | None = None) -> str:
    text, old, new = str(text), str(old), str(new)
    _check_text_call("replace", text, (old, new))
    return text.replace(old, new, -1 if count is None else count)


def _join(values: Iterable[Any], separator: object = "", attribute: Any = None) -> str:
    if attribute is not None:
        values = [value[attribute] for value in _steps(values)]
    texts = [str(value) for value in _steps(values)]
    _pay(sum(map(len, texts)) + len(str(separator)) * len(texts))
    return str(separator).join(texts)


def _indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    margin = width if isinstance(width, str) else " " * min(int(width), 256)
    lines = str(text).split("\n")
    _pay(len(lines) * len(margin) + len(text))
    rest = [margin + line if line or blank else line for line in lines[1:]]
    return "\n".join([margin + lines[0] if first else lines[0], *rest])


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: no HTML escapes."""
    if indent is not None and not 0 <= indent <= 16:
        raise SecurityError("indent by at most 16")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class GenerationBlock(Extension):
    """``{% generation %}`` marks assistant text for training; rendering ignores it."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
