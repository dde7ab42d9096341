"""The monitor for Python: only attributes of the value before a dot may follow the dot."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from paradecode.constraints.python.modules import (
    HERE,
    NOT_PYTHON,
    Function,
    Resolver,
    Type,
    as_value,
    bindings,
    blocks_of,
    imports_of,
    read_class,
    read_modules,
)

CUTS = 12
"""The most lines that are dropped from the end of an incomplete program until the rest parses."""

Names = dict[str, "Type | None"]


def names_at_end(code: str, indent: int, resolver: Resolver) -> Names | None:
    """Return the names visible after ``code`` (whole lines), in a line indented by ``indent``.

    Return None if the code cannot be parsed.
    """
    tree = _parsed(code, indent)
    if tree is None:
        return None
    names: Names = {}
    resolver.enter(names)
    _walk(tree.body, names, indent, resolver)
    return names


def _parsed(code: str, indent: int) -> ast.Module | None:
    lines = code.splitlines()
    for cut in range(min(CUTS, len(lines)) + 1):
        kept = "\n".join(lines[: len(lines) - cut])
        # ``pass`` takes the place of the line that is being written, or of the lines that were cut
        # away.
        for text in (f"{kept}\n{' ' * indent}pass\n", kept + "\n"):
            try:
                return ast.parse(text)
            except NOT_PYTHON:
                continue
    return None


def _walk(body: list[ast.stmt], names: Names, indent: int, resolver: Resolver) -> None:
    for node in body:
        # If this statement is the last one and the line is indented more, the code ends inside it.
        last = node is body[-1] and indent > node.col_offset
        if isinstance(node, Function):
            names[node.name] = None
            if last:
                _enter(node, names, resolver)
                _walk(node.body, names, indent, resolver)
        elif isinstance(node, ast.ClassDef):
            # A class that is still being written may get any attribute later.
            names[node.name] = None if last else read_class(node, HERE)
            if last:
                _walk(node.body, names, indent, resolver)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for name, dotted in imports_of(node, HERE).items():
                names[name] = resolver.imported(dotted)
        else:
            names |= {name: resolver.what_is(value, names) for name, value in bindings(node)}
            blocks = blocks_of(node)
            for block in blocks:
                if last and block is blocks[-1]:
                    _walk(block, names, indent, resolver)
                else:
                    _perhaps(block, names, resolver)


def _perhaps(block: list[ast.stmt], names: Names, resolver: Resolver) -> None:
    """Walk a block that may or may not run: names that it changes become unknown."""
    after = dict(names)
    _walk(block, after, 0, resolver)
    for name, kind in after.items():
        if name not in names or names[name] is not kind:
            names[name] = None


def _enter(node: Function, names: Names, resolver: Resolver) -> None:
    """Add the arguments of the function in which the code ends."""
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    found = {a.arg: resolver.what_is(as_value(a.annotation), names) for a in arguments}
    stars = [star for star in (node.args.vararg, node.args.kwarg) if star is not None]
    names |= {**found, **dict.fromkeys(star.arg for star in stars)}


RECEIVER = re.compile(r"(?<![\w.)\]}\"'])([^\W\d]\w*(?:\.[^\W\d]\w*)*)\.$")
FENCE = re.compile(r"^ {0,3}```.*$", re.MULTILINE)
QUOTED = re.compile(
    r"#[^\n]*|'''(?:\\.|[^\\])*?(?:'''|\Z)|\"\"\"(?:\\.|[^\\])*?(?:\"\"\"|\Z)"
    r"|'(?:\\.|[^'\\\n])*(?:'|\Z|(?=\n))|\"(?:\\.|[^\"\\\n])*(?:\"|\Z|(?=\n))",
    re.DOTALL,
)
"""Matches a comment or a string literal, which may be unfinished."""
MAX_NAMES = 4096
"""The most attributes of a constrained value. With more, computing the masks would take long."""
WORDS = re.compile(r"(\w+|:)(\s*:=)?")
WORD = frozenset(b"_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


class AttributesExist:
    """The monitor for Python (see :class:`paradecode.constraints.python.masks.Monitor`).

    It infers the type of the value before the dot from the given files and the code so far:
    imports, classes, assignments, annotations and annotated return values. Files are parsed, and
    are never imported or run. If the type is not known for sure, anything may follow.

    Args:
        files: file name -> source text.

    Raises:
        InvalidInput: if a file is not Python, or the files are too large.
    """

    triggers = frozenset(b".")

    def __init__(self, files: Mapping[str, str]) -> None:
        self._modules = read_modules(files)

    def ends(self, value: int) -> bool:
        return value not in WORD and value < 0x80

    def names(self, text: bytes) -> list[bytes] | None:
        code = current(text.decode("utf-8", "replace"))
        line = code[code.rfind("\n") + 1 :]
        found = RECEIVER.search(line)
        stripped = line.lstrip()
        if found is None or stripped.startswith(("import ", "from ")) or not _is_code(code):
            return None
        receiver = found[1].split(".")
        if _bound_here(receiver[0], line):
            return None
        try:
            attributes = self._attributes(code, line, receiver)
        except RecursionError:  # Nobody writes such code, so anything may follow.
            return None
        if attributes is None or len(attributes) > MAX_NAMES:
            return None
        return sorted(name.encode() for name in attributes)

    def _attributes(self, code: str, line: str, receiver: list[str]) -> set[str] | None:
        resolver = Resolver(self._modules)
        above = code[: len(code) - len(line)]
        scope = names_at_end(above, len(line) - len(line.lstrip()), resolver)
        if scope is None or receiver[0] not in scope:
            return None
        thing = scope[receiver[0]]
        for name in receiver[1:]:
            thing = resolver.member(thing, name)
        return resolver.attributes(thing)


def current(text: str) -> str:
    """Return the code that is being written: the text, or the part in its last open fence."""
    fences = list(FENCE.finditer(text))
    if not fences:
        return text
    if len(fences) % 2 == 0:
        return ""  # The end of the text is prose between blocks of code.
    return text[fences[-1].end() + 1 :]


def _is_code(code: str) -> bool:
    """Return whether the end of ``code`` is outside of string literals and comments."""
    end = 0
    for quoted in QUOTED.finditer(code):
        end = quoted.end()
    return end < len(code)


def _bound_here(name: str, line: str) -> bool:
    """Return whether the line that is being written binds ``name`` itself.

    A ``lambda`` binds the names before its colon, ``for`` binds the names before ``in``, and ``:=``
    binds the name before it.
    """
    binding = {"lambda": False, "for": False}
    for word, after in WORDS.findall(line):
        if word == name and (any(binding.values()) or after):
            return True
        opened = word == "lambda" or binding["lambda"]
        binding["lambda"] = opened and word != ":" and not after
        binding["for"] = word == "for" or (binding["for"] and word != "in")
    return False
