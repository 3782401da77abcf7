"""Files with the keys and values of texts, so that a server that starts again need not compute them again.

A text's keys and values are in a file for each segment, so texts that begin alike share files. A file's name is a hash
of everything that its values depend on: the model, its adapter, the way of computing, and all tokens up to the end of
the segment. If the model has recurrent states, a text has one more file with these and the rest of its tokens.

A file is a header, the values, and their checksum. The header must be exactly the expected one, so a file that is not
what its name says, or is damaged, is removed and not used. The file that was not used for the longest time is removed
first. Several servers may use one folder.
"""

from __future__ import annotations

import json
import os
import re
import stat
import struct
import time
import zlib
from _blake2 import blake2b  # hashlib would load OpenSSL: 3 MB
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.core import files, private
from featherback.core.sizes import shown_mb
from featherback.core.system import folders
from featherback.errors import FeatherbackError

FORMAT = 1
FOLDER = "featherback-prefixes"
"""Name of the folder with the files, inside the one that the user chose. Only the user can enter it."""
MAGIC = b"FBPREFIX"
_CHECKSUM = struct.Struct("<I")
_NAME = re.compile(r"[0-9a-f]{64}(-\d+)?\.prefix")
_SILENCE = 60.0
"""Seconds without writing after a file could not be written."""

Bytes = NDArray[np.uint8]
Section = tuple[int, Callable[[int, Bytes], None]]
"""Bytes of a part of a file, and a function that stores them from an offset on."""


class Entry(NamedTuple):
    """What a file contains: tokens [first, last) of a text, after those of another file, in `nbytes` of values."""

    key: bytes
    head: bytes
    first: int
    last: int
    nbytes: int
    ends: bool
    """Whether the text ends here, so that the file has the recurrent states."""

    @classmethod
    def after(cls, parent: bytes, tokens: Sequence[int], first: int, last: int, nbytes: int, ends: bool) -> Entry:
        """Return the entry of tokens [first, last) of a text. `parent`: the key of the entry before it."""
        own = [int(token) for token in tokens[first:last]]
        about = {"format": FORMAT, "after": parent.hex(), "bytes": nbytes, "ends": ends, "first": first, "tokens": own}
        text = json.dumps(about).encode()
        head = MAGIC + _CHECKSUM.pack(len(text)) + text
        return cls(blake2b(head, digest_size=32).digest(), head, first, last, nbytes, ends)

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.key.hex()}{f'-{self.last}' if self.ends else ''}.prefix"

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self.head) + self.nbytes + _CHECKSUM.size


class Restoring:
    """The files from which a sequence's first tokens are read, of which those in `left` have not been read yet."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries, self.left = entries, deque(entries)

    @property
    def tokens(self) -> int:
        """Tokens in all files."""
        return self.entries[-1].last

    @property
    def read(self) -> int:
        """Tokens in the files that have been read."""
        return self.left[0].first if self.left else self.tokens


class PrefixFiles:
    """A folder of files that take at most `limit` bytes. `note` is called with a sentence about each problem.

    No problem with a file or with the folder raises an error.
    """

    def __init__(self, folder: Path, limit: int, note: Callable[[str], object]) -> None:
        self.limit, self._note = limit, note
        self._folder = folder / FOLDER
        self._silent_until = 0.0
        try:
            private.make_private_folder(self._folder)
            about = os.lstat(self._folder)
            if not stat.S_ISDIR(about.st_mode) or not folders.is_owned(about) or folders.is_open_to_others(about):
                raise PermissionError(0, "others could read or change it")
            files.remove_abandoned_in(self._folder)
            self._make_room(0)
        except OSError as error:
            self._silent_until = float("inf")
            note(f"No prefixes are kept in {self._folder}: {error.strerror or error}.")

    def exists(self, entry: Entry) -> bool:
        """Return whether there is a file for an entry. Its content is checked by `read`."""
        return os.path.lexists(self._folder / entry.name)

    def ends(self) -> set[int]:
        """Return the lengths of the texts whose recurrent states are in files."""
        found = (_NAME.fullmatch(name) for name in self._names())
        return {int(match[1][1:]) for match in found if match and match[1]}

    def read(self, entry: Entry, sections: Iterable[Section], room: Bytes) -> bool:
        """Read an entry's values into `sections`. Return whether they are complete and undamaged; if not, the file is
        removed, and what was stored must not be used. `room` (n,): memory to use.
        """
        path = self._folder / entry.name
        try:
            with files.open_regular(path) as file:
                if os.fstat(file.fileno()).st_size != entry.size:
                    raise _DamagedError("its size is wrong")
                if file.read(len(entry.head)) != entry.head:
                    raise _DamagedError("it belongs to another text or model")
                known = 0
                for nbytes, store in sections:
                    for at in range(0, nbytes, len(room)):
                        part = room[: min(len(room), nbytes - at)]
                        if file.readinto(part.data) != len(part):  # type: ignore[attr-defined]
                            raise _DamagedError("it ends too early")
                        known = zlib.crc32(part.data, known)
                        store(at, part)
                if file.read() != _CHECKSUM.pack(known):
                    raise _DamagedError("it is damaged")
        except FileNotFoundError:  # another server has removed it
            return False
        except (_DamagedError, OSError) as error:
            self._note(f"Removed the kept prefix {path.name}: {getattr(error, 'strerror', None) or error}.")
            self._remove(path)
            return False
        return True

    def write(self, entry: Entry, parts: Iterable[Bytes]) -> bool:
        """Write a file, and remove others to keep the limit. Return whether it was written."""
        if time.monotonic() < self._silent_until:
            return False
        try:
            self._make_room(entry.size)
            with files.atomic_file(self._folder / entry.name, sync=False) as file:
                known = 0
                file.write(entry.head)
                for part in parts:
                    known = zlib.crc32(part.data, known)
                    file.write(part.data)
                file.write(_CHECKSUM.pack(known))
        except (FeatherbackError, OSError) as error:
            self._silent_until = time.monotonic() + _SILENCE
            self._note(f"A prefix was not kept: {str(error).rstrip('.')}. The next try is in a minute.")
            return False
        return True

    def used(self, entries: Sequence[Entry]) -> None:
        """Note that entries of a text were used. The first is the last to be removed, because others need it."""
        now = time.time_ns()
        for place, entry in enumerate(entries):
            with suppress(OSError):
                os.utime(self._folder / entry.name, ns=(now - place, now - place), follow_symlinks=False)

    def _make_room(self, nbytes: int) -> None:
        """Remove files until `nbytes` more are within the limit."""
        found: list[tuple[int, int, Path]] = []
        for name in self._names():
            with suppress(OSError):  # another server has removed it
                about = os.lstat(self._folder / name)
                found.append((about.st_mtime_ns, about.st_size, self._folder / name))
        total = nbytes + sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.limit:
                return
            self._remove(path)
            total -= size
        if total > self.limit:
            raise OSError(0, f"it has {shown_mb(nbytes)}, more than the limit")

    def _names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._folder) if _NAME.fullmatch(name)]
        except OSError:
            return []

    def _remove(self, path: Path) -> None:
        with suppress(OSError):
            path.unlink()


class _DamagedError(Exception):
    """What is wrong with a file."""
