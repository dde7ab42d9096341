"""Replaceable parts of a method by name: block rules and caches, with settings of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from pkgutil import iter_modules
from typing import Generic, TypeVar

T = TypeVar("T")


class Parts(Mapping[str, type[T]], Generic[T]):
    """Classes by name. The modules of a folder are loaded when first asked for.

    Args:
        setting: the method setting that chooses among them.
        package, path: the folder.
    """

    def __init__(self, setting: str, package: str, path: Iterable[str]) -> None:
        self.setting, self._package, self._path = setting, package, path
        self._classes: dict[str, type[T]] = {}

    def add(self, name: str) -> Callable[[type[T]], type[T]]:
        """Class decorator: make a dataclass available as ``name``."""

        def put(cls: type[T]) -> type[T]:
            self._classes[name] = cls
            return cls

        return put

    @cached_property
    def _loaded(self) -> Mapping[str, type[T]]:
        for module in iter_modules(self._path):
            import_module(f"{self._package}.{module.name}")
        return self._classes

    def __getitem__(self, name: str) -> type[T]:
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._loaded))

    def __len__(self) -> int:
        return len(self._loaded)
