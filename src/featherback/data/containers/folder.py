"""A folder of texts and documents, with its subfolders. Each file is a document, in the order of the names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from featherback.core.naming import argument
from featherback.core.private import check_link_inside
from featherback.core.terminal import quoted, several
from featherback.data.containers import CONTAINERS, container_of
from featherback.data.containers.base import Document, Records, Texts
from featherback.data.containers.text import CONTAINER as TEXT
from featherback.data.inputs import Input
from featherback.errors import FeatherbackError

_NAMED = 6  # files listed in an error


class Folder(Texts):
    title = "folder of texts"

    def read(self, data: Input) -> Iterator[Document]:
        for path in texts_in(data.path)[0]:
            file = Input(path, data.watch, table=data.table)
            file.left_out = data.left_out
            if file.size:
                if not isinstance(kind := container_of(file), Texts):
                    raise FeatherbackError(
                        f"The folder {data.name} contains {path.name}, a {kind.title}, but in a folder only texts "
                        f"are read. Pass such files instead: {argument('data', [str(path)])}."
                    )
                yield from kind.read(file)

    def size(self, data: Input) -> int:
        return sum(Input(path).size for path in texts_in(data.path)[0])

    def not_read(self, data: Input) -> str | None:
        _, others = texts_in(data.path)
        if not others:
            return None
        *ends, last = _text_suffixes()
        several = f"{len(others)} files in {data.name} are not read (the first: {others[0]})"
        what = several if len(others) > 1 else f"{others[0]} is not read"
        return f"{what}. In a folder, only files whose names end in {', '.join(ends)} or {last} are read."


CONTAINER = Folder()


def texts_in(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the texts in `folder` and its subfolders, and the other files. Hidden files and folders are ignored.

    Raises FeatherbackError if there are no text files, if there are data files, which the user must pass themselves, or
    if a link leads out of the folder.
    """
    found, data, others = [], [], []
    kinds = [CONTAINERS[name] for name in CONTAINERS.names]
    known = {suffix for kind in kinds if isinstance(kind, Records) for suffix in kind.suffixes}
    texts = set(_text_suffixes())
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in (*folders, *names):
            if not name.startswith("."):
                check_link_inside(Path(at, name), folder)
        for name in sorted(names):
            path = Path(at, name)
            if name.startswith("."):
                continue
            if path.suffix.lower() in texts:
                found.append(path)
            elif path.suffix.lower() in known:
                data.append(path)
            else:
                others.append(path)
    if data:
        files = sorted([*data, *found])
        named = " ".join(f"--data {quoted(str(path))}" for path in files[:_NAMED])
        more = f", and {several(len(files) - _NAMED, 'more file')}" if len(files) > _NAMED else ""
        raise FeatherbackError(
            f"The folder {folder} contains data files such as {data[0].name}, but in a folder only text files "
            f"are read. Pass the files instead: {named}{more}."
        )
    if not found:
        raise FeatherbackError(
            f"The folder {folder} contains no file whose name ends in {' or '.join(_text_suffixes()[:2])}."
        )
    return found, others


def _text_suffixes() -> list[str]:
    """Return the suffixes of texts, those of plain text first."""
    kinds = [TEXT, *(CONTAINERS[name] for name in CONTAINERS.names)]
    return list(dict.fromkeys(suffix for kind in kinds if isinstance(kind, Texts) for suffix in kind.suffixes))
