"""Stores of models of other programs. Each module defines one store as `STORE`; to add a store, add a module.

The module's name is the part before the first colon: "ollama" in "ollama:qwen2.5:0.5b".
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from featherback.core.registry import Registry
from featherback.errors import FeatherbackError, excerpt
from featherback.models.hub.stores.base import Store, is_closed

STORES: Registry[Store] = Registry(__name__, "STORE", "store", shared=("base",))
_MOST_NEAR = 5


def find(name: str) -> Path | None:
    """Return the path of the model "STORE:NAME"; None if `name` does not begin with a store.

    Raises FeatherbackError if the store has no such model, with similar names, or if the model cannot be used.
    """
    prefix, colon, rest = name.partition(":")
    if not colon or prefix not in STORES.names:
        return None
    store = STORES[prefix]
    if (path := store.path(rest)) is not None:
        return path
    folders = [folder for folder in store.folders() if os.path.isdir(folder)]
    closed = [str(folder) for folder in store.folders() if is_closed(folder)]
    barred = f"; {', '.join(closed)} cannot be read by this user" if closed else ""
    if not folders:
        looked = ", ".join(map(str, store.folders()))
        absent = f"{store.title} is not on this machine ({looked})"
        raise FeatherbackError(f"There is no model {excerpt(name)}: {absent}{barred}.")
    near = [f"{prefix}:{other}" for other in _near(rest, list(store.names()))]
    similar = f"similar names: {', '.join(near)}" if near else "it holds no models"
    where = ", ".join(map(str, folders))
    raise FeatherbackError(
        f"There is no model {excerpt(name)} in {store.title} ({where}); {similar}{barred}. Get it with: {store.get}"
    )


def names() -> Iterator[str]:
    """Yield the name of every model in every store, in the form that `find` takes."""
    for prefix in STORES.names:
        for name in dict.fromkeys(STORES[prefix].names()):
            yield f"{prefix}:{name}"


def _near(wanted: str, known: list[str]) -> list[str]:
    """The known names that resemble `wanted` most; the first few if none does."""
    folded = {name.lower(): name for name in known}
    like = [name for name in folded if wanted.lower() in name]
    like += get_close_matches(wanted.lower(), folded, _MOST_NEAR, 0.4)
    return [folded[name] for name in dict.fromkeys(like or folded)][:_MOST_NEAR]
