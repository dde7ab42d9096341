"""What modules and classes of given source files have, found by reading them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TypeGuard

from paradecode.core.errors import InvalidInput

MAX_FILES, MAX_SOURCE = 256, 1 << 20
FIELD = "constraint.value.files"
PLAIN_DECORATORS = {"dataclass", "final", "total_ordering", "unique", "runtime_checkable"}
"""Class decorators that leave the attributes as they are written."""
PROPERTIES = {"property", "cached_property"}
Values = dict[str, ast.expr | None]


@dataclass
class Class:
    """A class: what it has itself, and its bases.

    Attributes:
        names: attributes and methods of the class itself.
        on_self: what its methods set on ``self``.
        types: attribute -> an expression whose value it has, or None where there are several.
        returns: method -> the same for what it returns.
        bases: expressions, as written.
        open: it may have more than can be read: `__getattr__`, a metaclass, a decorator.
    """

    module: str
    names: set[str] = field(default_factory=set)
    on_self: set[str] = field(default_factory=set)
    types: Values = field(default_factory=dict)
    returns: Values = field(default_factory=dict)
    bases: list[ast.expr] = field(default_factory=list)
    open: bool = False


@dataclass
class Module:
    """A file's top level.

    Attributes:
        names: everything it binds.
        imports: name -> dotted name of what was imported under it.
        types, returns: of variables and functions, as for classes.
        open: it may have more: ``import *`` or `__getattr__`.
    """

    name: str
    names: set[str] = field(default_factory=set)
    classes: dict[str, Class] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    types: Values = field(default_factory=dict)
    returns: Values = field(default_factory=dict)
    open: bool = False


def read_modules(files: Mapping[str, str]) -> dict[str, Module]:
    """Modules by dotted name: ``pkg/shop.py`` is ``pkg.shop``, and ``shop`` if nothing else is.

    Raises:
        InvalidInput: too much, or a file that is not Python.
    """
    if not isinstance(files, Mapping) or not 0 < len(files) <= MAX_FILES:
        raise InvalidInput(FIELD, files, f"map 1 to {MAX_FILES} file names to their text")
    if not all(isinstance(name, str) and isinstance(text, str) for name, text in files.items()):
        raise InvalidInput(FIELD, [*files], "map file names to their text")
    if sum(map(len, files.values())) > MAX_SOURCE:
        raise InvalidInput(FIELD, [*files], f"give at most {MAX_SOURCE} characters in all")
    modules: dict[str, Module] = {}
    for name, text in files.items():
        parts = [
            part for part in PurePosixPath(name.removesuffix(".py")).parts if part.isidentifier()
        ]
        parts = parts[:-1] if parts[-1:] == ["__init__"] else parts
        if not parts:
            raise InvalidInput(FIELD, name, "name files like modules: pkg/shop.py")
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InvalidInput(FIELD, name, f"give Python source: {error}") from None
        module = read_module(tree, ".".join(parts))
        modules[module.name] = module
        for start in range(1, len(parts)):
            modules.setdefault(".".join(parts[start:]), module)
    return modules


def read_module(tree: ast.Module, name: str) -> Module:
    module = Module(name)
    _read_body(tree.body, module)
    return module


def _read_body(body: list[ast.stmt], module: Module) -> None:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            module.names.add(node.name)
            module.open |= node.name == "__getattr__"
            _bind(module.returns, node.name, as_value(node.returns))
        elif isinstance(node, ast.ClassDef):
            module.names.add(node.name)
            module.classes[node.name] = read_class(node, module.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            module.open |= any(alias.name == "*" for alias in node.names)
            imported = imports_of(node, module.name)
            module.imports |= imported
            module.names |= imported.keys()
        else:
            for target, kind in bindings(node):
                module.names.add(target)
                _bind(module.types, target, kind)
            for inner in blocks_of(node):
                _read_body(inner, module)


def read_class(node: ast.ClassDef, module: str) -> Class:
    made = Class(module, bases=list(node.bases), open=bool(node.keywords))
    made.open |= any(_called(each) not in PLAIN_DECORATORS for each in node.decorator_list)
    for statement in node.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            made.names.add(statement.name)
            made.open |= statement.name in ("__getattr__", "__getattribute__")
            called = {_called(each) for each in statement.decorator_list}
            kept = made.types if called & PROPERTIES else made.returns
            _bind(kept, statement.name, as_value(statement.returns))
            _read_self(statement, made)
        elif isinstance(statement, ast.ClassDef):
            made.names.add(statement.name)
        else:
            for target, kind in bindings(statement):
                made.names.add(target)
                _bind(made.types, target, kind)
            made.open |= any(blocks_of(statement))  # Conditional attributes: too clever for us.
    return made


def _read_self(method: ast.FunctionDef | ast.AsyncFunctionDef, made: Class) -> None:
    """What a method sets on its first argument."""
    arguments = [*method.args.posonlyargs, *method.args.args]
    if not arguments:
        return
    me = arguments[0].arg
    given = {argument.arg: as_value(argument.annotation) for argument in arguments}
    for node in ast.walk(method):
        if isinstance(node, ast.Call) and _called(node) in ("setattr", "update"):
            made.open = True
        targets, value = [], None
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign):
            targets, value = [node.target], as_value(node.annotation)
        elif _is_set(node, me):
            made.on_self.add(node.attr)
        for target in targets:
            if isinstance(target, ast.Attribute) and _is_name(target.value, me):
                # Names are the method's own: only its annotated arguments say what they are.
                known = given.get(value.id) if isinstance(value, ast.Name) else value
                _bind(made.types, target.attr, known)


def _is_set(node: ast.AST, me: str) -> TypeGuard[ast.Attribute]:
    if not isinstance(node, ast.Attribute):
        return False
    return isinstance(node.ctx, ast.Store) and _is_name(node.value, me)


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _bind(types: Values, name: str, value: ast.expr | None) -> None:
    """One binding says what a name is; two that differ say nothing."""
    if name in types and (value is None or ast.dump(value) != ast.dump(types[name] or value)):
        value = None
    types[name] = value if name not in types or types[name] is not None else None


def as_value(annotation: ast.expr | None) -> ast.expr | None:
    """An expression with a value of the annotated type: ``"Shop | None"`` is ``Shop()``."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            annotation = ast.parse(annotation.value, mode="eval").body
        except (SyntaxError, ValueError):
            return None
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        sides = [annotation.left, annotation.right]
        left = [side for side in sides if ast.dump(side) != "Constant(value=None)"]
        return as_value(left[0]) if len(left) == 1 else None
    if isinstance(annotation, ast.Subscript):
        if _called(annotation.value) == "Optional":
            return as_value(annotation.slice)
        annotation = annotation.value
    if isinstance(annotation, (ast.Name, ast.Attribute)):
        return ast.Call(annotation, [], [])
    return None


def bindings(node: ast.stmt) -> list[tuple[str, ast.expr | None]]:
    """The names that a statement binds, each with the expression of its type or value."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [(node.target.id, as_value(node.annotation))]
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        (target,) = node.targets
        if isinstance(target, ast.Name):
            return [(target.id, node.value)]
    stored = [
        each.id
        for part in ast.iter_child_nodes(node)
        if isinstance(part, (ast.expr, ast.withitem))
        for each in ast.walk(part)
        if isinstance(each, ast.Name) and isinstance(each.ctx, (ast.Store, ast.Del))
    ]
    return [(name, None) for name in stored]


def blocks_of(node: ast.stmt) -> list[list[ast.stmt]]:
    """The bodies inside of a compound statement that is neither function nor class."""
    bodies = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
    bodies += [handler.body for handler in getattr(node, "handlers", [])]
    bodies += [case.body for case in getattr(node, "cases", [])]
    return [body for body in bodies if body]


def imports_of(node: ast.Import | ast.ImportFrom, module: str) -> dict[str, str]:
    """Local name -> dotted name of what it is."""
    if isinstance(node, ast.Import):
        return {
            alias.asname or alias.name.partition(".")[0]: (
                alias.name if alias.asname else alias.name.partition(".")[0]
            )
            for alias in node.names
        }
    base = node.module or ""
    if node.level:
        parts = module.split(".")[: -node.level]
        base = ".".join([*parts, *([base] if base else [])])
    return {
        alias.asname or alias.name: f"{base}.{alias.name}"
        for alias in node.names
        if alias.name != "*"
    }


def _called(node: ast.expr) -> str:
    """The last part of a name, called or not."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
