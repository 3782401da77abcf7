"""Registries of things that are chosen by name: one module each in a folder, found there and imported on first use.

An entry may have its own options: the described fields of a dataclass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any, Generic, TypeVar

from featherback.core.naming import argument
from featherback.core.options import described, spelled
from featherback.errors import FeatherbackError, expected

T = TypeVar("T")


class Registry(Generic[T]):
    """The entries of a package: all modules except those in `shared`. An entry's value is its module's `attribute`.

    `kind` is the word for an entry in errors and on the command line. `shared` names modules that hold common code.
    """

    def __init__(self, package: str, attribute: str, kind: str, shared: Collection[str] = ()) -> None:
        self._package, self._attribute, self.kind = package, attribute, kind
        spec = find_spec(package)  # does not import the package
        modules = iter_modules(None if spec is None else spec.submodule_search_locations)
        self.names = tuple(sorted({module.name for module in modules if not module.ispkg} - set(shared)))

    def __getitem__(self, name: str) -> T:
        """Return the entry with this name. Raises FeatherbackError, with the known names, if there is none."""
        if name not in self.names:
            raise FeatherbackError(f"Unknown {self.kind} {name!r}; {expected(name, self.names)}")
        found: T = getattr(import_module(f"{self._package}.{name}"), self._attribute)
        return found


class OwnOptions(Generic[T]):
    """The options of the entries of `registry`. `dataclass_of` maps an entry's name to the dataclass of its options.

    `usual`: the entry that is used if none is named.
    """

    def __init__(
        self, registry: Registry[Any], dataclass_of: Callable[[str], type[T]], usual: str | None = None
    ) -> None:
        self.registry, self._dataclass_of, self._usual = registry, dataclass_of, usual

    @property
    def choice(self) -> str:
        """The option that selects an entry: "optimizer"."""
        return self.registry.kind

    @property
    def field(self) -> str:
        """The field that holds the options of the selected entry: "optimizer_options"."""
        return f"{self.choice}_options"

    def make(self, name: str | None, settings: Mapping[str, Any]) -> T:
        """Return the options of the entry `name` (None: the usual one), with the values in `settings`.

        Raises FeatherbackError for an unknown entry, an option that the entry does not have, or a value that is not
        acceptable.
        """
        name = name or self._usual or ""
        dataclass = self._dataclass_of(name)
        known = described(dataclass)
        for option in settings:
            if option not in known:
                own = ", ".join(spelled(dataclass, each) for each in known)
                others = f". Its options are: {own}" if own else ", which has no options of its own"
                raise FeatherbackError(
                    f"{spelled(dataclass, option)} is not an option of the {self.choice} {name}{others}. Remove it, or "
                    f"choose another {argument(self.choice)}."
                )
        return dataclass(**settings)

    def among(self, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `settings` that are options of the entry `name`."""
        known = described(self._dataclass_of(name))
        return {option: value for option, value in settings.items() if option in known}

    def by_option(self) -> dict[str, dict[str, type[T]]]:
        """Return the entries that have each option: {option: {entry's name: its dataclass}}."""
        found: dict[str, dict[str, type[T]]] = {}
        for name in self.registry.names:
            dataclass = self._dataclass_of(name)
            for option in described(dataclass):
                found.setdefault(option, {})[name] = dataclass
        return found
