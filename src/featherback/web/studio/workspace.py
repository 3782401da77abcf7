"""What the page may use: models of this machine, and the data and runs of the folder that the user opened."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from threading import Lock
from typing import Any

from featherback.core import private
from featherback.core.files import link_file
from featherback.data.containers import looks_like_data, may_be_data, suffixes
from featherback.engine.formats.split import part_names
from featherback.errors import FeatherbackError, excerpt
from featherback.models.hub.stores.base import files, files_below, is_plain, subfolders
from featherback.models.hub.survey import Listed, listed, survey
from featherback.runs.run_directory import RUN_FILE, RunDirectory
from featherback.web.refusal import RefusedError
from featherback.web.studio.commands import path_word

OWN = ".featherback"
"""The studio's own folder in the folder that the user opened. Only its owner can enter it."""
UPLOADS, LOGS = "uploads", "logs"
UPLOAD_BYTES = 1_000_000_000
_MOST_FILES = 500
_DEPTH = 1  # levels of subfolders in which data and runs are found
_NAME = re.compile(r"[\w][\w .()+-]{0,99}")


@dataclass(frozen=True)
class DataFile:
    """A data file or folder of texts that the page offers."""

    path: str
    """Relative to the opened folder, if it is in there; as the user types it."""
    bytes: int | None
    uploaded: bool


class Workspace:
    """The folder that the user opened, and what the user named besides. Nothing else can be read.

    Raises FeatherbackError if the folder cannot be used, or if a named model or file does not exist.
    """

    def __init__(self, folder: Path, model: str | None = None, data: Path | None = None) -> None:
        self.folder = folder.resolve()
        if not self.folder.is_dir():
            raise FeatherbackError(f"{folder} is not a folder.")
        self.own = self.folder / OWN
        try:
            for path in (self.own, self.own / UPLOADS, self.own / LOGS):
                if path.is_symlink():
                    raise FeatherbackError(f"{path} is a link. Delete it, and start the studio again.")
                private.make_private_folder(path)
        except OSError as error:
            raise FeatherbackError(f"Cannot write to {self.folder}: {error.strerror}. Open another folder.") from error
        if data is not None and not data.exists():
            raise FeatherbackError(f"The data file {data} does not exist.")
        self._given_path = Path(model).resolve() if model is not None and Path(model).exists() else None
        self.given_model = model if self._given_path is None else self._relative(self._given_path)
        self.given_data = None if data is None else self._relative(data.resolve())
        self._listing = Lock()
        self._models: list[Listed] | None = None

    def models(self, anew: bool = False) -> list[Listed]:
        """Return the models that can be chosen; a named one first. `anew`: look again."""
        with self._listing:
            if self._models is None or anew:
                named = [] if self.given_model is None else [listed(self.given_model, self._given_path)]
                found = {each.name: each for each in (*named, *survey(self.folder, self._is_model_inside))}
                self._models = list(found.values())
            return self._models

    def model(self, name: object) -> str:
        """Return the word for a model on the command line. Raises RefusedError if the page does not offer it."""
        if name not in [each.name for each in self.models()]:
            raise RefusedError(f"There is no model {excerpt(name)} here. Choose one of the list.", param="model")
        return path_word(str(name))

    def files(self) -> list[DataFile]:
        """Return the data that can be chosen: uploads, files of the opened folder, and folders of texts in it."""
        uploads = self.own / UPLOADS
        found = [self._data_file(path, True) for path in files(uploads)]
        runs = {path.parts[0] for path in map(PurePath, self.runs()) if len(path.parts) == 1}
        for name in files_below(self.folder, _DEPTH):
            first, *inner = PurePath(name).parts
            shown = may_be_data(name) and not (inner and first in runs)
            if shown and self._is_inside(self.folder / name):
                found.append(self._data_file(self.folder / name, False))
        folders = [path for path in subfolders(self.folder) if path.name not in runs and looks_like_data(path, b"")]
        found += [self._data_file(path, False) for path in folders if self._is_all_inside(path)]
        if self.given_data is not None and self.given_data not in [each.path for each in found]:
            found.insert(0, self._data_file(self.folder / self.given_data, False))
        return found[:_MOST_FILES]

    def _data_file(self, path: Path, uploaded: bool) -> DataFile:
        size = path.stat().st_size if path.is_file() else None
        return DataFile(self._relative(path), size, uploaded)

    def data(self, path: object, param: str = "data") -> str:
        """Return the word for a data file on the command line. Raises RefusedError if the page does not offer it."""
        if path not in [each.path for each in self.files()]:
            raise RefusedError(f"There is no data file {excerpt(path)} here. Choose one of the list.", param=param)
        return path_word(str(path))

    def _is_inside(self, path: Path) -> bool:
        """Whether a path leads into the opened folder, once links are followed."""
        return path.resolve().is_relative_to(self.folder)

    def _is_all_inside(self, folder: Path) -> bool:
        """Whether a folder, and each link below it, lead into the opened folder. A command reads the whole folder."""
        return self._is_inside(folder) and all(map(self._is_inside, filter(Path.is_symlink, folder.rglob("*"))))

    def _is_model_inside(self, path: Path) -> bool:
        """Whether a model's files, its other parts included, lead into the opened folder."""
        links = filter(Path.is_symlink, map(path.with_name, part_names(path.name)))
        return all(map(self._is_all_inside, (path, *links)))

    async def save(self, name: str, parts: AsyncIterator[bytes]) -> str:
        """Store an uploaded data file, and return its path as `files` has it. A name that is taken gets a number.

        Raises RefusedError for a name that is not a data file's.
        """
        if not is_plain(name) or not _NAME.fullmatch(name) or not may_be_data(name):
            known = ", ".join(sorted(suffixes()))
            raise RefusedError(
                f"{excerpt(name)} is not a data file. The name must end in one of: {known}.", param="name"
            )
        folder = self.own / UPLOADS
        temporary = folder / private.temporary_name(name, "part")
        try:
            with private.create_anew(temporary) as file:
                async for part in parts:
                    file.write(part)
            place = next(
                path for path in _numbered(folder / name) if not os.path.lexists(path) or _equal(path, temporary)
            )
            if not os.path.lexists(place):
                link_file(temporary, place)
        except OSError as error:
            raise RefusedError(f"Cannot store {name}: {error.strerror}.", 507) from error
        finally:
            temporary.unlink(missing_ok=True)
        return self._relative(place)

    def runs(self) -> list[str]:
        """Return the runs of the opened folder, as paths relative to it, the newest first."""
        found = []
        for folder in (self.folder, *subfolders(self.folder)):
            for path in subfolders(folder):
                if (path / RUN_FILE).is_file() and self._is_inside(path):
                    found.append((path.stat().st_mtime, path.relative_to(self.folder).as_posix()))
        return [name for _, name in sorted(found, reverse=True)]

    def run_path(self, name: object) -> Path:
        """Return the folder of a run. Raises RefusedError if the opened folder does not have it."""
        if name not in self.runs():
            raise RefusedError(f"There is no run {excerpt(name)} here.", 404, param="run")
        return self.folder / str(name)

    def run(self, name: object) -> RunDirectory:
        """Open a run. Raises RefusedError if the opened folder does not have it, FeatherbackError if it is damaged."""
        return RunDirectory.open(self.run_path(name))

    def new_run(self, name: object) -> str:
        """Return the name of a new run. Raises RefusedError if it is unsuitable or taken."""
        if not isinstance(name, str) or not is_plain(name) or not _NAME.fullmatch(name):
            raise RefusedError(
                f"{excerpt(name)} cannot be the name of a run. Use letters, digits, dots and dashes.", param="name"
            )
        if os.path.lexists(self.folder / name):
            raise RefusedError(f"There is a file or folder {name} already. Choose another name.", 409, param="name")
        return name

    def suggested_run(self) -> str:
        """Return a name for the next run that is free."""
        return next(path.name for path in _numbered(self.folder / "run") if not os.path.lexists(path))

    def _relative(self, path: Path) -> str:
        """Return a path as commands in the opened folder name it."""
        return os.path.relpath(path, self.folder)

    def to_json(self) -> dict[str, Any]:
        """Return what was named at the start."""
        return {"folder": str(self.folder), "model": self.given_model, "data": self.given_data}

    def files_json(self) -> list[dict[str, Any]]:
        return [asdict(each) for each in self.files()]


def _numbered(path: Path) -> Iterator[Path]:
    """Yield NAME.csv, NAME-2.csv, NAME-3.csv, ..."""
    yield path
    number = 2
    while True:
        yield path.with_name(f"{path.stem}-{number}{path.suffix}")
        number += 1


def _equal(one: Path, other: Path) -> bool:
    """Whether two files have the same bytes."""
    if one.is_symlink() or one.stat().st_size != other.stat().st_size:
        return False
    with one.open("rb") as a, other.open("rb") as b:
        while block := a.read(1 << 20):
            if block != b.read(1 << 20):
                return False
    return True
