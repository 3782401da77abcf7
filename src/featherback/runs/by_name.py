"""Options of training by the names that people write in Python and in files: ours, or another tool's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from featherback.core.naming import in_python, spelled_option
from featherback.core.options import checked, described
from featherback.errors import FeatherbackError
from featherback.runs.names import aliases, fields_by_name, kinds_of
from featherback.runs.suggestions import advice


def field_of(name: str, what: str) -> str:
    """Return the field that is called `name`.

    Raises FeatherbackError, which lists similar names, if there is none. `what`: the function that was called, for
    messages.
    """
    field = fields_by_name().get(name.replace("-", "_"))
    if field is None:
        lists = "help(featherback.train)" if in_python() else "featherback train --help-all"
        raise FeatherbackError(f"{what} has no option {name!r}.{advice(name) or f' `{lists}` lists all options.'}")
    return field


def given(field: str, value: Any, name: str = "") -> Any:
    """Check the value that a person wrote, and return the field's value.

    Raises FeatherbackError if the field cannot have it.

    `name`: how the option was called, if that may be another tool's name for it. An option of several optimisers or
    methods is checked by the first; the one that is chosen checks it again.
    """
    kind, word = kinds_of(field)[0], name.replace("-", "_")
    about = described(kind)[field]
    value = value if about.given is None or value is None else about.given(value)
    return checked(kind, field, value, word if word in aliases() else "")


def fields_of(options: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Translate options, under our names or other tools', into fields and their values.

    Raises FeatherbackError for an unknown name or a bad value, or if an option is given by two names.
    """
    found: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in options.items():
        field = field_of(name, what)
        if field in found:
            raise FeatherbackError(same_option(names[field], name))
        found[field], names[field] = given(field, value, name), name
    return found


def same_option(first: str, second: str) -> str:
    """The message about two names of one option, given as words."""
    return f"{spelled_option(first)} and {spelled_option(second)} are the same option. Remove one of them."
