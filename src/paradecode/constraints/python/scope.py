"""The names that are visible at the end of unfinished code, and what they are."""

from __future__ import annotations

import ast

from paradecode.constraints.python.modules import (
    NOT_PYTHON,
    Function,
    as_value,
    bindings,
    blocks_of,
    imports_of,
    read_class,
)
from paradecode.constraints.python.types import HERE, Resolver, Type

CUTS = 12
"""The most lines that are dropped from the end of an incomplete program until the rest parses."""

Names = dict[str, "Type | None"]


def names_at_end(code: str, indent: int, resolver: Resolver) -> Names | None:
    """The names that are visible after ``code`` (whole lines) in a line indented by ``indent``.

    None if the code cannot be parsed.
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
        # ``pass`` takes the place of the line that is being written or of what was cut away.
        for text in (f"{kept}\n{' ' * indent}pass\n", kept + "\n"):
            try:
                return ast.parse(text)
            except NOT_PYTHON:
                continue
    return None


def _walk(body: list[ast.stmt], names: Names, indent: int, resolver: Resolver) -> None:
    for node in body:
        # The code ends in this statement if it is the last one and the line is indented more.
        last = node is body[-1] and indent > node.col_offset
        if isinstance(node, Function):
            names[node.name] = None
            if last:
                _enter(node, names, resolver)
                _walk(node.body, names, indent, resolver)
        elif isinstance(node, ast.ClassDef):
            # A class that is still being written may get any attribute.
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
    """A block that may have run or not: the names that it changes become unknown."""
    after = dict(names)
    _walk(block, after, 0, resolver)
    for name, kind in after.items():
        if name not in names or names[name] is not kind:
            names[name] = None


def _enter(node: Function, names: Names, resolver: Resolver) -> None:
    """The arguments of the function in which the code ends."""
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    found = {a.arg: resolver.what_is(as_value(a.annotation), names) for a in arguments}
    stars = [star for star in (node.args.vararg, node.args.kwarg) if star is not None]
    names |= {**found, **dict.fromkeys(star.arg for star in stars)}
