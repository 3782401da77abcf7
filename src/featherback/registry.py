"""What can be chosen by name: one module each in a folder, discovered there and imported on first use."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from pkgutil import iter_modules
from typing import Generic, TypeVar

from featherback.errors import FeatherbackError

T = TypeVar("T")


class Registry(Generic[T]):
    """Every module of `package` but those in `shared` is an entry: its name, and as its value its `attribute`.

    `kind` is what an error calls an entry. `shared`: modules that entries have in common.
    """

    def __init__(self, package: str, attribute: str, kind: str, shared: Collection[str] = ()) -> None:
        self._package, self._attribute, self.kind = package, attribute, kind
        modules = iter_modules(import_module(package).__path__)
        self.names = tuple(sorted({module.name for module in modules} - set(shared)))

    def __getitem__(self, name: str) -> T:
        """The entry of this name; FeatherbackError if there is none."""
        if name not in self.names:
            raise FeatherbackError(f"Unknown {self.kind} {name!r}; choose from {', '.join(self.names)}.")
        found: T = getattr(import_module(f"{self._package}.{name}"), self._attribute)
        return found
