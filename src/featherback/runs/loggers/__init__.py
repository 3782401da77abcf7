"""Loggers: other programs that record runs (`--log-to`), one module each, imported only if the user asks for it.

An entry has the name of the program's package.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec

from featherback.core.naming import argument
from featherback.core.registry import Registry
from featherback.errors import FeatherbackError
from featherback.runs.callback import Callback

LOGGERS: Registry[type[Callback]] = Registry(
    "featherback.runs.loggers", "LOGGER", "program to log to", shared=("scalars",)
)


def check_installed(names: Iterable[str]) -> None:
    """Raise FeatherbackError, with the install command, if a program is missing. Imports none of them."""
    for name in names:
        if find_spec(name) is None:
            raise FeatherbackError(
                f"{argument('log_to', name)} needs {name}, which is not installed: pip install 'featherback[{name}]'."
            )


def loggers(names: Iterable[str]) -> Iterator[Callback]:
    """Yield a callback for each name; raises FeatherbackError like `check_installed`, or if an import fails."""
    for name in names:
        check_installed([name])
        try:
            logger = LOGGERS[name]
        except ImportError as error:
            raise FeatherbackError(
                f"{argument('log_to', name)} cannot be used: importing {name} failed: {error}."
            ) from error
        yield logger()
