"""List the models on this machine, and say which of them can be trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from featherback import models
from featherback.data.tokenizers.loader import check_tokenizer
from featherback.errors import FeatherbackError
from featherback.models.hub import stores
from featherback.models.hub.catalogue import CATALOGUE
from featherback.models.hub.locate import locate, models_in
from featherback.models.model import formats, parameters


@dataclass(frozen=True)
class Listed:
    """A model on this machine, or a model that `fetch` can download."""

    name: str
    """What to type for it."""
    path: str | None
    architecture: str | None
    parameters: int | None
    type: str | None
    """The number format of most of its weights."""
    bytes: int | None
    trainable: bool
    reason: str | None
    """A sentence that says why it cannot be trained."""


def survey(folder: Path | None = None, is_allowed: Callable[[Path], bool] = lambda path: True) -> Iterator[Listed]:
    """Yield every model in `folder`, in our cache and in the stores of other programs. Only headers are read.

    A model in `folder` is named by its file name. `is_allowed`: which files and folders in `folder` may be opened.
    """
    for path in models_in(folder) if folder is not None else ():
        if is_allowed(path):
            yield _opened(path.name, path)
    for name in (*CATALOGUE, *stores.names()):
        yield listed(name)


def listed(name: str, path: Path | None = None) -> Listed:
    """Return the facts about the model that a user calls `name`, whether or not it can be opened.

    `path`: where it is, if that is known.
    """
    try:
        return _opened(name, path or locate(name))
    except FeatherbackError as error:
        return Listed(name, None, None, None, None, None, False, str(error))


def _opened(name: str, path: Path) -> Listed:
    try:
        model = models.load(path)
    except FeatherbackError as error:
        return Listed(name, str(path), None, None, None, _size(path), False, str(error))
    reason = None
    try:
        check_tokenizer(path)
    except FeatherbackError as error:
        reason = str(error)
    size = sum(file.stat().st_size for file in model.files)
    found = model.config.architecture, parameters(model), formats(model)[0]
    model.close()
    return Listed(name, str(path), *found, size, reason is None, reason)


def _size(path: Path) -> int | None:
    """Size in bytes of a file that could not be opened as a model."""
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None
