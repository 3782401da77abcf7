"""The kinds of things that `featherback inspect` describes. Each module here is one kind, as `KIND`.

To add a kind, add a file.
"""

from __future__ import annotations

from pathlib import Path

from featherback.cli.kinds.base import HEAD, Kind
from featherback.core.files import open_regular
from featherback.core.registry import Registry
from featherback.errors import FeatherbackError

KINDS: Registry[Kind] = Registry(__name__, "KIND", "kind", shared=("base",))


def kind_of(path: Path) -> Kind:
    """The kind of thing at `path`; raises FeatherbackError, with a list of the kinds, if it is none of them."""
    kinds = sorted((KINDS[name] for name in KINDS.names), key=lambda kind: kind.rank)
    head = b""
    if not path.is_dir():
        try:
            with open_regular(path) as file:
                head = file.read(HEAD)
        except OSError as error:
            raise FeatherbackError(f"Cannot read {path}: {error.strerror or error}.") from error
    for kind in kinds:
        if kind.recognises(path, head):
            return kind
    titles = "; ".join(kind.title for kind in kinds)
    raise FeatherbackError(f"{path} is of an unknown kind; expected one of: {titles}.")
