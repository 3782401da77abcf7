"""The adapters of a server: their names, where they may come from, and which of them are in memory.

An adapter is loaded when it is first asked for, and again when its files have changed. Requests that are being answered
keep the values that they began with.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal

from featherback.core import private
from featherback.core.naming import argument
from featherback.errors import FeatherbackError, excerpt, expected
from featherback.exports import formats
from featherback.models.adapter import Adapter
from featherback.models.model import Model
from featherback.web.refusal import RefusedError

MOST_ENTRIES = 1000
"""The most entries of a folder that are looked at."""
MOST_NAMED = 256
"""The most adapters that requests have named."""
MOST_LOADED = 32
"""The most adapters in memory, besides those that the user named. Those that were not used for the longest time go."""
_LONGEST_NAME = 200
_FILES = (".safetensors", ".gguf", ".json")

State = tuple[tuple[str, int, int, int], ...]
"""What tells whether an adapter's files have changed: name, time, size and number of each."""


class Loaded:
    """An adapter in memory, under one or more names. It is closed when no name has it and nobody uses it any more."""

    def __init__(self, adapter: Adapter, state: State) -> None:
        self.adapter, self.state = adapter, state
        self._lock, self._users, self._names = Lock(), 0, 1

    def acquire(self) -> Loaded:
        """Keep the adapter open until `release`."""
        with self._lock:
            self._users += 1
        return self

    def release(self) -> None:
        """End one use."""
        with self._lock:
            self._users -= 1
            self._close_if_unused()

    def share(self) -> Loaded:
        """Keep the adapter open under another name, until `retire`."""
        with self._lock:
            self._names += 1
        return self

    def retire(self) -> None:
        """End the use of one name."""
        with self._lock:
            self._names -= 1
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if not self._names and not self._users:
            self.adapter.close()


@dataclass
class Entry:
    """An adapter that has a name."""

    name: str
    path: Path
    origin: Literal["option", "request", "folder"]
    """Who named it: the command line, a request, or the folder in which it appeared."""
    loaded: Loaded | None = None
    used: int = 0
    """The number of its last use among all uses of adapters."""

    def close(self) -> None:
        """Forget what is loaded."""
        if self.loaded is not None:
            self.loaded.retire()
        self.loaded = None


class Shelf:
    """The adapters of one model. May be used in several threads.

    `base`: the name of the model without an adapter. `folders`: where adapters that appear are found, and where
    requests may name some. `load` reads the adapter at a path. `note` is called with a sentence for the user about an
    adapter in a folder that cannot be used.
    """

    def __init__(
        self,
        model: Model,
        base: str,
        folders: Sequence[Path] = (),
        load: Callable[[Model, Path], Adapter] = formats.load,
        note: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.base = base
        self._model, self._load, self._note = model, load, note
        self._folders = [folder.resolve() for folder in folders]
        self._named: set[Path] = set()  # paths that the user named, which requests may name again
        self._entries: dict[str, Entry] = {}
        self._ignored: dict[Path, State] = {}  # found in a folder, but removed or of no use, until they change
        self._uses = 0
        self._lock = Lock()

    def add_named(self, name: str, path: Path) -> None:
        """Add and load an adapter that the user named when the server was started."""
        entry = Entry(name, path.resolve(), "option")
        self._check(entry)
        self._check_name(name)
        self._reload(entry)
        self._named.add(entry.path)
        self._entries[name] = entry

    def add(self, name: str, path: str) -> Entry:
        """Add and load an adapter that a request named. Raises RefusedError."""
        with self._lock:
            self._scan()
            place = self._allowed(path)
            known = self._entries.get(name)
            if known is not None and known.path == place:  # it appeared by itself, or this is asked again
                self._reload(known)
                return known
            try:
                self._check_name(name)
            except FeatherbackError as error:
                raise RefusedError(str(error), 409 if name in self._names() else 400, param="name") from None
            if sum(each.origin == "request" for each in self._entries.values()) >= MOST_NAMED:
                raise RefusedError(
                    f"Requests have added {MOST_NAMED} adapters, and the server keeps no more. Remove one: "
                    "DELETE /v1/adapters/NAME.",
                    409,
                    code="too_many_adapters",
                )
            entry = Entry(name, place, "request")
            self._reload(entry)
            self._entries[name] = entry
            return entry

    def remove(self, name: str) -> None:
        """Remove an adapter. Answers that use it go on. Raises RefusedError if there is none of this name."""
        with self._lock:
            self._scan()
            entry = self._entries.pop(self._adapter_name(name), None)
            if entry is None:
                raise self._unknown(name, "adapter")
            self._ignored[entry.path] = _state(entry.path)
            entry.close()

    def entries(self) -> list[Entry]:
        """All adapters, also those that have just appeared in a folder."""
        with self._lock:
            self._scan()
            return [*self._entries.values()]

    def take(self, name: str) -> Loaded | None:
        """Return the adapter of a model's name, which the caller must release; None for the base model.

        A model is named by the base model, by an adapter, or as BASE:ADAPTER; "" is the base model. Raises RefusedError
        if there is no such model.
        """
        if name in ("", self.base):
            return None
        with self._lock:
            entry = self._find(name)
            self._reload(entry)
            assert entry.loaded is not None
            return entry.loaded.acquire()

    def known(self, name: str) -> str:
        """Return the shortest name of a model. Raises RefusedError if there is none of this name."""
        with self._lock:
            return self.base if name == self.base else self._find(name).name

    def close(self) -> None:
        """Close all adapters that nobody uses."""
        with self._lock:
            for entry in self._entries.values():
                entry.close()
            self._entries.clear()

    def _find(self, name: str) -> Entry:
        wanted = self._adapter_name(name)
        if wanted not in self._entries:
            self._scan()
        if wanted not in self._entries:
            raise self._unknown(name, "model")
        return self._entries[wanted]

    def _adapter_name(self, name: str) -> str:
        return name if name in self._entries else name.removeprefix(f"{self.base}:")

    def _names(self) -> list[str]:
        return [self.base, *self._entries]

    def _unknown(self, name: str, kind: str) -> RefusedError:
        known = self._names() if kind == "model" else [*self._entries]
        found = expected(name[:_LONGEST_NAME], known) if known else "there are none."
        return RefusedError(f"There is no {kind} {excerpt(name)}; {found}", 404, param=kind, code=f"{kind}_not_found")

    def _check_name(self, name: str) -> None:
        """Raise FeatherbackError unless an adapter may have this name."""
        if not name or not name.isprintable() or len(name) > _LONGEST_NAME or name.startswith(".") or ":" in name:
            raise FeatherbackError(f"An adapter cannot be named {excerpt(name)}; use letters, digits and dashes.")
        if name in self._names():
            kind = "The base model" if name == self.base else "Another adapter"
            raise FeatherbackError(f"{kind} is named {name}. Give the adapter another name.")

    def _reload(self, entry: Entry) -> None:
        """Load an adapter, or load it again if its files have changed. If that fails, the old values stay in use.

        Raises FeatherbackError if it cannot be loaded and never was.
        """
        state = _state(entry.path)
        self._uses += 1
        entry.used = self._uses
        if entry.loaded is not None and entry.loaded.state == state:
            return
        try:
            self._check(entry)
            loaded = self._shared(entry.path, state) or Loaded(self._load(self._model, entry.path), state)
        except FeatherbackError:
            if entry.loaded is None:
                raise
            return  # it may be half written
        entry.close()
        entry.loaded = loaded
        self._unload()

    def _shared(self, path: Path, state: State) -> Loaded | None:
        """Return what another name has loaded from the same files."""
        for each in self._entries.values():
            if each.path == path and each.loaded is not None and each.loaded.state == state:
                return each.loaded.share()
        return None

    def _unload(self) -> None:
        """Close the adapters that were not used for the longest time, if too many are in memory."""
        loaded = dict[Loaded, list[Entry]]()
        for each in sorted(self._entries.values(), key=lambda each: -each.used):
            if each.loaded is not None and each.origin != "option":
                loaded.setdefault(each.loaded, []).append(each)
        for entries in [*loaded.values()][MOST_LOADED:]:
            for each in entries:
                each.close()

    def _check(self, entry: Entry) -> None:
        """Raise FeatherbackError if an adapter does not fit the model or cannot write. Its values are not read."""
        if entry.origin != "option" and entry.path.is_dir():
            private.check_links(entry.path)
        if formats.form(self._model, entry.path).outputs:
            raise FeatherbackError(
                f"The adapter {entry.name} ends in a head that scores texts, so it cannot write any; use `featherback "
                "classify`."
            )

    def _allowed(self, path: str) -> Path:
        """Return the resolved path of an adapter if a request may name it.

        The error is the same whether or not there is such a file, so that nobody learns what this machine holds.
        """
        with suppress(OSError, ValueError, RuntimeError):  # no path, or links in a circle
            given = Path(path)
            for folder in [Path.cwd(), *self._folders]:
                place = (folder / given).resolve()
                inside = any(place != each and place.is_relative_to(each) for each in self._folders)
                if (inside or place in self._named) and place.exists():
                    return place
        opened = "" if self._folders else f", because there are none: start it with {argument('adapters_folder')}"
        raise RefusedError(
            f"There is no adapter {excerpt(path)} in the folders that requests to this server may use{opened}.",
            403,
            param="path",
            code="path_not_allowed",
        )

    def _scan(self) -> None:
        """Add adapters that have appeared in the folders, and remove those that have gone."""
        for name in [name for name, entry in self._entries.items() if _is_gone(entry)]:
            self._entries.pop(name).close()
        known = {entry.path for entry in self._entries.values()}
        for place in self._appeared(known):
            state = _state(place)
            if not state or self._ignored.get(place) == state:
                continue
            entry = Entry(place.name.removesuffix(".gguf"), place, "folder")
            if not _is_adapter(place):
                continue
            try:
                self._check_name(entry.name)
                self._check(entry)
            except FeatherbackError as error:
                self._ignored[place] = state
                self._note(f"note: {place} is not served: {error}")
                continue
            self._ignored.pop(place, None)
            self._entries[entry.name] = entry

    def _appeared(self, known: set[Path]) -> Iterator[Path]:
        for folder in self._folders:
            with suppress(OSError), os.scandir(folder) as found:
                for _, each in zip(range(MOST_ENTRIES), found):
                    place = folder / each.name
                    if each.name.startswith(".") or place in known or each.is_symlink():
                        continue
                    if each.is_dir() or each.name.endswith(".gguf"):
                        yield place


def _is_adapter(place: Path) -> bool:
    """Whether a place in a folder holds an adapter, and no model or other files."""
    return bool(formats.formats_of(place)) and not formats.is_model(place)


def _is_gone(entry: Entry) -> bool:
    return entry.origin == "folder" and not entry.path.exists()


def _state(path: Path) -> State:
    """The state of an adapter's files; empty if there are none."""
    found = []
    with suppress(OSError):
        places = [path] if path.is_file() else [each for each in path.iterdir() if each.suffix in _FILES]
        for place in sorted(places):
            if place.name.startswith("adapter") or place == path:
                about = place.stat()
                found.append((place.name, about.st_mtime_ns, about.st_size, about.st_ino))
    return tuple(found)
