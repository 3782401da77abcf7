"""Kinds of files that data come in, one module each: bytes in, records or texts with their places out."""

from __future__ import annotations

import codecs
from pathlib import Path

from featherback.core.registry import Registry
from featherback.data.containers.base import Container
from featherback.data.inputs import Input
from featherback.errors import FeatherbackError

CONTAINERS: Registry[Container] = Registry(
    __name__, "CONTAINER", "format of data", shared=("base", "json_text", "separated")
)


def container_of(data: Input) -> Container:
    """The kind of `data`, by its name or, failing that, its first bytes.

    FeatherbackError if it is missing, empty, not readable, or of no kind that is known.
    """
    head = b"" if data.is_folder else data.head()
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise FeatherbackError(f"{data.name} is UTF-16 text: save it as UTF-8.")
    if found := _seeming(data, head):
        return found
    if data.is_stdin:
        return CONTAINERS["text"]
    known = [CONTAINERS[name] for name in CONTAINERS.names]
    kinds = ", ".join(f"{kind.suffixes[0]} ({kind.title})" for kind in known if kind.suffixes)
    raise FeatherbackError(f"The format of the data file {data.path} is not known: save or unpack it as {kinds}.")


def suffixes() -> set[str]:
    """Ends of the names of files that hold data, with their dots, in lower case."""
    return {suffix for name in CONTAINERS.names for suffix in CONTAINERS[name].suffixes}


def is_name_of_data(name: str) -> bool:
    """Whether a file called so would hold data, JSON aside."""
    return Path(name).suffix.lower() in suffixes() - {".json"}


def seems_data(path: Path, head: bytes) -> bool:
    """Whether a file that begins with `head` is of a known kind, or a folder has such in it, JSON aside: folders of
    many kinds have it."""
    data = Input(path)
    if data.is_folder:
        return any(is_name_of_data(file.name) for file in path.rglob("*"))
    return _seeming(data, head) is not None


def _seeming(data: Input, head: bytes) -> Container | None:
    """The kind of `data` by its name or, failing that, its first bytes; None if these say nothing."""
    if data.is_folder:
        return CONTAINERS["folder"]
    known = [CONTAINERS[name] for name in CONTAINERS.names]
    begin = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    named = [kind for kind in known if data.suffix in kind.suffixes and kind.fits(begin)]
    return next(iter(named or [kind for kind in known if kind.betrays(begin)]), None)
