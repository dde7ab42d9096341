"""The type of an expression, as far as the source tells it, and its attributes."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace

from paradecode.constraints.python.modules import Class, Module

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
    """A function, with its return value as an expression of a module."""

    value: ast.expr
    module: str


Type = Module | Class | type | InstanceOf | Returns
Scope = Mapping[str, "Type | None"]
"""The type of each name; None if it is unknown. Other names may be built-in."""


@dataclass
class Resolver:
    """Answers questions about the modules that were read."""

    modules: dict[str, Module]
    _scopes: dict[str, dict[str, Type | None]] = field(default_factory=dict)

    def enter(self, names: dict[str, Type | None]) -> None:
        """Use these names for the text itself; more may be added later."""
        self._scopes[HERE] = names

    def what_is(self, node: ast.expr | None, scope: Scope, depth: int = 0) -> Type | None:
        """The type of an expression, or None."""
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
        """The type of an attribute, or None."""
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
        """The attributes of a type; None if some of them may be unknown."""
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
        """A class and its bases, nearest first; None if one of them is unknown or open."""
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
        """The names at the top level of a file; they are resolved at the first call."""
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
        """What ``import`` finds for a dotted name among the files that were read."""
        if dotted in self.modules:
            return self.modules[dotted]
        owner, _, name = dotted.rpartition(".")
        return self.member(self.modules.get(owner), name) if owner else None


MODULE_NAMES = set(dir(SimpleNamespace())) | {
    "__name__", "__file__", "__path__", "__package__", "__spec__", "__loader__",
}  # fmt: skip
