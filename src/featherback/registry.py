"""What can be chosen by name: one module each in a folder, discovered there and imported on first use."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Generic, TypeVar

from featherback.errors import FeatherbackError

T = TypeVar("T")


class Registry(Generic[T]):
    """Every module of `package` is an entry: its name is the module's, its value the module's `attribute`.

    `kind` is what an error calls an entry.
    """

    def __init__(self, package: ModuleType, attribute: str, kind: str) -> None:
        self._package, self._attribute, self._kind = package.__name__, attribute, kind
        self.names = tuple(sorted(module.name for module in iter_modules(package.__path__)))

    def __getitem__(self, name: str) -> T:
        """The entry of this name; FeatherbackError if there is none."""
        if name not in self.names:
            raise FeatherbackError(f"Unknown {self._kind} {name!r}; choose from {', '.join(self.names)}.")
        found: T = getattr(import_module(f"{self._package}.{name}"), self._attribute)
        return found
