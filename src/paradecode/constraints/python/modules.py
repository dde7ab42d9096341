"""Finds the attributes of modules and classes by reading their source files."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import SimpleNamespace

from paradecode.core.errors import InvalidInput

MAX_FILES, MAX_SOURCE = 256, 1 << 20
FIELD = "constraint.value.files"
PLAIN_DECORATORS = {"dataclass", "final", "total_ordering", "unique", "runtime_checkable"}
"""Class decorators that do not change the attributes of a class."""
PROPERTIES = {"property", "cached_property"}
NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)
"""The errors that ``ast.parse`` may raise."""
Values = dict[str, ast.expr | None]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Class:
    """A class of a source file: its own attributes, and its base classes.

    Attributes:
        names: attributes and methods of the class itself.
        on_self: attributes that the class's methods set on ``self``.
        types: attribute -> the expression of its value, or None if there are several.
        returns: method -> the expression of its return value, or None if there are several.
        bases: expressions of the base classes, as written.
        open: True if the class may have attributes that cannot be read from the source, because of
            `__getattr__`, a metaclass or a decorator.
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
    """The top level of a source file.

    Attributes:
        names: all names that the file binds.
        imports: local name -> dotted name of the imported module or object.
        types, returns: the types of variables and the return values of functions, as in
            :class:`Class`.
        open: True if the file may have more names, because of ``import *`` or `__getattr__`.
    """

    name: str
    names: set[str] = field(default_factory=set)
    classes: dict[str, Class] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    types: Values = field(default_factory=dict)
    returns: Values = field(default_factory=dict)
    open: bool = False


def check_files(files: Mapping[str, str]) -> None:
    """Raise InvalidInput if the files are too many or too large, or are not texts."""
    if not isinstance(files, Mapping) or not 0 < len(files) <= MAX_FILES:
        raise InvalidInput(FIELD, files, f"map 1 to {MAX_FILES} file names to their text")
    if not all(isinstance(name, str) and isinstance(text, str) for name, text in files.items()):
        raise InvalidInput(FIELD, [*files], "map file names to their text")
    if sum(map(len, files.values())) > MAX_SOURCE:
        raise InvalidInput(FIELD, [*files], f"give at most {MAX_SOURCE} characters in all")


def read_modules(files: Mapping[str, str]) -> dict[str, Module]:
    """Parse source files, and return their modules by dotted name.

    ``pkg/shop.py`` is ``pkg.shop``, and also ``shop`` if no other file has this name.

    Raises:
        InvalidInput: if the files are too large, or one is not Python.
    """
    check_files(files)
    modules: dict[str, Module] = {}
    for name, text in files.items():
        path = PurePosixPath(name.removesuffix(".py"))
        parts = [part for part in path.parts if part.isidentifier()]
        parts = parts[:-1] if parts[-1:] == ["__init__"] else parts
        if not parts:
            raise InvalidInput(FIELD, name, "name files like modules: pkg/shop.py")
        module = Module(".".join(parts))
        try:
            _read_body(ast.parse(text).body, module)
        except NOT_PYTHON as error:
            raise InvalidInput(FIELD, name, f"give Python source: {error}") from None
        modules[module.name] = module
        for start in range(1, len(parts)):
            modules.setdefault(".".join(parts[start:]), module)
    return modules


def _read_body(body: list[ast.stmt], module: Module) -> None:
    for node in body:
        if isinstance(node, Function):
            _define(node, module, module.returns)
        elif isinstance(node, ast.ClassDef):
            module.names.add(node.name)
            module.classes[node.name] = read_class(node, module.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            module.open |= any(alias.name == "*" for alias in node.names)
            imported = imports_of(node, module.name)
            module.imports |= imported
            module.names |= imported.keys()
        else:
            _bind_all(node, module)
            for inner in blocks_of(node):
                _read_body(inner, module)


def read_class(node: ast.ClassDef, module: str) -> Class:
    made = Class(module, bases=list(node.bases), open=bool(node.keywords))
    made.open |= any(_called(each) not in PLAIN_DECORATORS for each in node.decorator_list)
    for statement in node.body:
        if isinstance(statement, Function):
            called = {_called(each) for each in statement.decorator_list}
            _define(statement, made, made.types if called & PROPERTIES else made.returns)
            _read_self(statement, made)
        elif isinstance(statement, ast.ClassDef):
            made.names.add(statement.name)
        else:
            _bind_all(statement, made)
            made.open |= any(blocks_of(statement))  # Attributes set in blocks are not followed.
    return made


def _define(node: Function, owner: Class | Module, kept: Values) -> None:
    owner.names.add(node.name)
    owner.open |= node.name in ("__getattr__", "__getattribute__")
    _bind(kept, node.name, as_value(node.returns))


def _bind_all(node: ast.stmt, owner: Class | Module) -> None:
    for name, value in bindings(node):
        owner.names.add(name)
        _bind(owner.types, name, value)


def _read_self(method: Function, made: Class) -> None:
    """Record the attributes that a method sets on its first argument."""
    arguments = [*method.args.posonlyargs, *method.args.args]
    if not arguments:
        return
    me = arguments[0].arg
    given = {argument.arg: as_value(argument.annotation) for argument in arguments}
    for node in ast.walk(method):
        match node:
            case ast.Call() if _called(node) in ("setattr", "update"):
                made.open = True
            case ast.Attribute(ast.Name(name), attribute, ast.Store()) if name == me:
                made.on_self.add(attribute)
        for target, value in _assignments(node):
            match target:
                case ast.Attribute(ast.Name(name), attribute) if name == me:
                    # A name here is local to the method, and only the annotations of the arguments
                    # tell its type.
                    known = given.get(value.id) if isinstance(value, ast.Name) else value
                    _bind(made.types, attribute, known)


def _bind(types: Values, name: str, value: ast.expr | None) -> None:
    """Record the value of a name. If two bindings differ, the value is unknown."""
    before = types.get(name, value)
    same = before is not None and value is not None and ast.dump(before) == ast.dump(value)
    types[name] = value if same else None


def as_value(annotation: ast.expr | None) -> ast.expr | None:
    """Return an expression whose value has the annotated type.

    For example, ``"Shop | None"`` gives ``Shop()``.
    """
    match annotation:
        case ast.Constant(value=str(text)):
            try:
                return as_value(ast.parse(text, mode="eval").body)
            except NOT_PYTHON:
                return None
        case ast.BinOp(left, ast.BitOr(), right):
            sides = [side for side in (left, right) if ast.dump(side) != "Constant(value=None)"]
            return as_value(sides[0]) if len(sides) == 1 else None
        case ast.Subscript(value, inner):
            return as_value(inner if _called(value) == "Optional" else value)
        case ast.Name() | ast.Attribute():
            return ast.Call(annotation, [], [])
    return None


def bindings(node: ast.stmt) -> list[tuple[str, ast.expr | None]]:
    """Return the names that a statement binds, each with the expression of its type or value."""
    match _assignments(node):
        case [(ast.Name(name), value)]:
            return [(name, value)]
    stored = [
        each.id
        for part in ast.iter_child_nodes(node)
        if isinstance(part, (ast.expr, ast.withitem))
        for each in ast.walk(part)
        if isinstance(each, ast.Name) and isinstance(each.ctx, (ast.Store, ast.Del))
    ]
    return [(name, None) for name in stored]


def _assignments(node: ast.AST) -> list[tuple[ast.expr, ast.expr | None]]:
    """Return the targets of an assignment, each with the expression of its type or value."""
    if isinstance(node, ast.Assign):
        return [(target, node.value) for target in node.targets]
    if isinstance(node, ast.AnnAssign):
        return [(node.target, as_value(node.annotation))]
    return []


def blocks_of(node: ast.stmt) -> list[list[ast.stmt]]:
    """Return the bodies inside a compound statement that is neither a function nor a class."""
    bodies = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
    bodies += [handler.body for handler in getattr(node, "handlers", [])]
    bodies += [case.body for case in getattr(node, "cases", [])]
    return [body for body in bodies if body]


def imports_of(node: ast.Import | ast.ImportFrom, module: str) -> dict[str, str]:
    """Return local name -> dotted name of the object that an import statement binds to it."""
    found = {}
    if isinstance(node, ast.Import):
        for alias in node.names:
            first = alias.name.partition(".")[0]
            found[alias.asname or first] = alias.name if alias.asname else first
        return found
    above = module.split(".")[: -node.level] if node.level else []
    base = ".".join([*above, *([node.module] if node.module else [])])
    for alias in node.names:
        if alias.name != "*":
            found[alias.asname or alias.name] = f"{base}.{alias.name}"
    return found


def _called(node: ast.expr) -> str:
    """Return the last part of a dotted name or of the name of a called function, else ""."""
    match node:
        case ast.Call(function):
            return _called(function)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return str(name)
    return ""


# The type of an expression, as far as the source shows it, and the attributes of that type.

DEEPEST = 16
HERE = ""
"""Name of the module that is being written."""
PLAIN_BASES = {"object", "ABC", "Generic", "Protocol"}
BUILTINS = {
    kind.__name__: kind
    for kind in (str, int, float, complex, bool, bytes, list, dict, set, frozenset, tuple, object)
}
LITERALS: dict[type[ast.expr], type] = {
    ast.List: list, ast.ListComp: list, ast.Dict: dict, ast.DictComp: dict, ast.Set: set,
    ast.SetComp: set, ast.Tuple: tuple, ast.JoinedStr: str,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class InstanceOf:
    """A value of a class of the files (or of the text), or of a built-in type."""

    of: Class | type


@dataclass(frozen=True, eq=False)
class Returns:
    """A function, with its return value as an expression in a module."""

    value: ast.expr
    module: str


Type = Module | Class | type | InstanceOf | Returns
Scope = Mapping[str, "Type | None"]
"""Name -> its type, or None if the type is unknown. Names that are missing may be built-in."""


@dataclass
class Resolver:
    """Finds types and attributes of expressions in the modules that were read."""

    modules: dict[str, Module]
    _scopes: dict[str, dict[str, Type | None]] = field(default_factory=dict)

    def enter(self, names: dict[str, Type | None]) -> None:
        """Set the names of the output text itself. More names may be added to ``names`` later."""
        self._scopes[HERE] = names

    def what_is(self, node: ast.expr | None, scope: Scope, depth: int = 0) -> Type | None:
        """Return the type of an expression, or None if it is unknown."""
        if depth > DEEPEST or node is None:
            return None
        if type(node) in LITERALS:
            return InstanceOf(LITERALS[type(node)])
        match node:
            case ast.Constant(value):
                kind = BUILTINS.get(type(value).__name__)
                return None if kind is None else InstanceOf(kind)
            case ast.Name(name):
                return scope[name] if name in scope else BUILTINS.get(name)
            case ast.Attribute(value, name):
                return self.member(self.what_is(value, scope, depth + 1), name, depth + 1)
            case ast.Call(function):
                made = self.what_is(function, scope, depth + 1)
                if isinstance(made, (Class, type)):
                    return InstanceOf(made)
                if isinstance(made, Returns):
                    return self.what_is(made.value, self.scope_of(made.module), depth + 1)
        return None

    def member(self, owner: Type | None, name: str, depth: int = 0) -> Type | None:
        """Return the type of an attribute, or None if it is unknown."""
        if depth > DEEPEST:
            return None
        if isinstance(owner, Module):
            return self.scope_of(owner.name).get(name) or self.modules.get(f"{owner.name}.{name}")
        if not isinstance(owner, (InstanceOf, Class)):
            return None
        kind = owner.of if isinstance(owner, InstanceOf) else owner
        for each in self.line_of(kind) or []:
            if not isinstance(each, Class):
                continue
            if name in each.types:
                return self.what_is(each.types[name], self.scope_of(each.module), depth + 1)
            if name in each.returns:
                value = each.returns[name]
                return None if value is None else Returns(value, each.module)
            if name in each.names | each.on_self:
                return None
        return None

    def attributes(self, owner: Type | None) -> set[str] | None:
        """Return the attributes of a type, or None if some of them may be unknown."""
        if isinstance(owner, Module):
            inside = {
                name[len(owner.name) + 1 :].partition(".")[0]
                for name in self.modules
                if name.startswith(owner.name + ".")
            }
            return None if owner.open else owner.names | inside | MODULE_NAMES
        kind = owner.of if isinstance(owner, InstanceOf) else owner
        if isinstance(kind, type):
            return set(dir(kind))
        line = self.line_of(kind) if isinstance(kind, Class) else None
        if line is None:
            return None
        found = set(dir(object))
        for each in line:
            found |= set(dir(each)) if isinstance(each, type) else each.names
            if isinstance(each, Class) and isinstance(owner, InstanceOf):
                found |= each.on_self
        return found | (set() if isinstance(owner, InstanceOf) else set(dir(type)))

    def line_of(self, kind: Class | type, depth: int = 0) -> list[Class | type] | None:
        """Return a class and its bases, nearest first, or None if one is unknown or open."""
        if isinstance(kind, type):
            return [kind]
        if kind.open or depth > DEEPEST:
            return None
        line: list[Class | type] = [kind]
        for base in kind.bases:
            name = base.value if isinstance(base, ast.Subscript) else base
            if ast.unparse(name).rpartition(".")[2] in PLAIN_BASES:
                continue
            found = self.what_is(name, self.scope_of(kind.module), depth + 1)
            if found is None and isinstance(name, ast.Name):
                error = getattr(builtins, name.id, None)
                is_error = isinstance(error, type) and issubclass(error, BaseException)
                found = error if is_error else None
            more = self.line_of(found, depth + 1) if isinstance(found, (Class, type)) else None
            if more is None:
                return None
            line += more
        return line

    def scope_of(self, module: str) -> Scope:
        """Return the names at the top level of a file. They are resolved at the first call."""
        if module in self._scopes:
            return self._scopes[module]
        found = self.modules.get(module)
        scope: dict[str, Type | None] = {}
        self._scopes[module] = scope  # A module may refer to itself.
        if found is not None:
            scope |= dict.fromkeys(found.names)
            scope |= found.classes
            scope |= {name: self.imported(dotted) for name, dotted in found.imports.items()}
            for name, value in found.returns.items():
                scope[name] = None if value is None else Returns(value, found.name)
            for name, value in found.types.items():
                scope[name] = None if name in found.classes else self.what_is(value, scope)
        return scope

    def imported(self, dotted: str) -> Type | None:
        """Return the module or object that ``import`` finds in the given files."""
        if dotted in self.modules:
            return self.modules[dotted]
        owner, _, name = dotted.rpartition(".")
        return self.member(self.modules.get(owner), name) if owner else None


MODULE_NAMES = set(dir(SimpleNamespace())) | {
    "__name__", "__file__", "__path__", "__package__", "__spec__", "__loader__",
}  # fmt: skip
