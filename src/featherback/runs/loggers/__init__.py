"""Other programs that record runs (`--log-to`), one file each; a module imports its program, and is imported if asked.

An entry is called as its program's package is.
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
    """FeatherbackError, saying what to install, if a program is missing. Imports none."""
    for name in names:
        if find_spec(name) is None:
            raise FeatherbackError(
                f"{argument('log_to', name)} needs {name}, which is not installed: "
                f"pip install 'featherback[{name}]', or leave it out."
            )


def loggers(names: Iterable[str]) -> Iterator[Callback]:
    """A callback for each name; FeatherbackError as from `check_installed`."""
    for name in names:
        check_installed([name])
        try:
            logger = LOGGERS[name]
        except ImportError as error:
            raise FeatherbackError(f"{argument('log_to', name)}: {name} cannot be used: {error}.") from error
        yield logger()
