"""What `featherback inspect` describes: each module here is one kind of thing and holds it as `KIND`. Adding a kind is
adding a file.
"""

from __future__ import annotations

from pathlib import Path

from featherback.cli.kinds.base import HEAD, Kind
from featherback.core.files import open_regular
from featherback.core.registry import Registry
from featherback.errors import FeatherbackError

KINDS: Registry[Kind] = Registry(__name__, "KIND", "kind", shared=("base",))


def kind_of(path: Path) -> Kind:
    """What is at `path`; FeatherbackError, saying what could be, if it is nothing that is known."""
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
    raise FeatherbackError(f"{path} is nothing that Featherback knows, which would be {titles}.")
