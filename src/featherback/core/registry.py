"""What can be chosen by name: one module each in a folder, discovered there and imported on first use.

An entry may have options of its own, which are the described fields of a dataclass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Generic, TypeVar

from featherback.core.naming import argument
from featherback.core.options import described, spelled
from featherback.errors import FeatherbackError, expected

T = TypeVar("T")


class Registry(Generic[T]):
    """Every module (not folder) of `package` but those in `shared` is an entry: its name, and its `attribute` as value.

    `kind` is what errors and the command line call an entry. `shared`: modules that entries have in common.
    """

    def __init__(self, package: str, attribute: str, kind: str, shared: Collection[str] = ()) -> None:
        self._package, self._attribute, self.kind = package, attribute, kind
        modules = iter_modules(import_module(package).__path__)
        self.names = tuple(sorted({module.name for module in modules if not module.ispkg} - set(shared)))

    def __getitem__(self, name: str) -> T:
        """The entry of this name; FeatherbackError if there is none."""
        if name not in self.names:
            raise FeatherbackError(f"Unknown {self.kind} {name!r}; {expected(name, self.names)}")
        found: T = getattr(import_module(f"{self._package}.{name}"), self._attribute)
        return found


class OwnOptions(Generic[T]):
    """The options of the entries of `registry`: those of the dataclass that `dataclass_of` gives for a name."""

    def __init__(self, registry: Registry[Any], dataclass_of: Callable[[str], type[T]]) -> None:
        self.registry, self._dataclass_of = registry, dataclass_of

    @property
    def choice(self) -> str:
        """What the entry is chosen with: "optimizer"."""
        return self.registry.kind

    @property
    def field(self) -> str:
        """The field that holds the chosen entry's options: "optimizer_options"."""
        return f"{self.choice}_options"

    def make(self, name: str, settings: Mapping[str, Any]) -> T:
        """The options of the entry `name`, those in `settings` with these values.

        FeatherbackError for an unknown name, an option that the entry does not have, or a value the option cannot have.
        """
        dataclass = self._dataclass_of(name)
        known = described(dataclass)
        for option in settings:
            if option not in known:
                own = ", ".join(spelled(dataclass, each) for each in known) or "none"
                raise FeatherbackError(
                    f"{spelled(dataclass, option)} is no option of the {self.choice} {name}, which has {own}; "
                    f"leave it out or choose another {argument(self.choice)}."
                )
        return dataclass(**settings)

    def among(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Those of `settings` that are options of the entry `name`."""
        known = described(self._dataclass_of(name))
        return {option: value for option, value in settings.items() if option in known}

    def by_option(self) -> dict[str, dict[str, type[T]]]:
        """Option -> the entries that have it: {entry's name: its dataclass}."""
        found: dict[str, dict[str, type[T]]] = {}
        for name in self.registry.names:
            dataclass = self._dataclass_of(name)
            for option in described(dataclass):
                found.setdefault(option, {})[name] = dataclass
        return found
