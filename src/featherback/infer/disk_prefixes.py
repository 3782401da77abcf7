"""Keep prefixes of texts in files, and read them into the caches of new sequences, file by file between passes."""

from __future__ import annotations

import os
from _blake2 import blake2b  # hashlib would load OpenSSL: 3 MB
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np

from featherback import __version__
from featherback.core.files import checksum, open_regular
from featherback.engine import kernels
from featherback.engine.backend.protocol import Array, Backend
from featherback.engine.formats import fingerprint
from featherback.infer.cache import has_states
from featherback.infer.key_cache import SEGMENT, LayerKeys
from featherback.infer.prefix_files import Bytes, Entry, PrefixFiles, Restoring, Section
from featherback.infer.prefixes import Kept
from featherback.infer.sequence import Running, SequenceCache
from featherback.models.adapter import Adapter
from featherback.models.model import Model


class DiskPrefixes:
    """Writes what ended sequences have computed, and finds it again.

    `way`: how keys and values are computed and stored, as far as their bits depend on it.
    """

    def __init__(self, files: PrefixFiles, model: Model, backend: Backend, way: Sequence[str]) -> None:
        with open_regular(kernels.library()) as library:
            code = checksum(library, os.fstat(library.fileno()).st_size)
        self._root = [__version__, code, kernels.current(), fingerprint.of_store(model.store), *way]
        self._files, self._backend, self._has_states = files, backend, has_states(model.blocks)
        self._jobs: deque[tuple[Kept, Entry]] = deque()

    @property
    def pending(self) -> bool:
        """Whether there is something to write."""
        return bool(self._jobs)

    def find(self, wanted: Running) -> Restoring | None:
        """Return the files that have the longest beginning of a sequence that may be copied; None if none has."""
        most = wanted.most_copied(self._has_states)
        found = []
        for entry in self._segments(wanted, most // SEGMENT * SEGMENT):
            if not self._files.exists(entry):
                break
            found.append(entry)
        if self._has_states:  # only whole texts can be reused
            reached = (found[-1].last if found else 0) + SEGMENT
            for length in sorted(self._files.ends(), reverse=True):
                if length < min(reached, most + 1):
                    last = self._end(wanted, found[: length // SEGMENT], length)
                    if self._files.exists(last):
                        return Restoring([*found[: length // SEGMENT], last])
            return None
        return Restoring(found) if found else None

    def restore(self, wanted: Running, files: Restoring, room: Array) -> bool:
        """Read the next file into the cache of a sequence. Return whether there are more.

        If one is damaged, the tokens after those before it are computed, or all of them if the model has states.
        """
        entry = files.left[0]
        with self._backend.host(room, write=True) as memory:
            if self._files.read(entry, self._sections(wanted.cache, entry), memory):
                files.left.popleft()
                more = bool(files.left)
            else:
                more = False
        if not more:
            self._files.used(files.entries[: len(files.entries) - len(files.left)])
            wanted.done = 0 if files.left and self._has_states else files.read
        return more

    def keep(self, kept: Kept) -> None:
        """Let an ended sequence be written, as far as its beginning is not in files yet, and half the limit allows."""
        entries = list(self._segments(kept, kept.done // SEGMENT * SEGMENT))
        if self._has_states:
            entries.append(self._end(kept, entries, kept.done))
        sizes = np.cumsum([entry.size for entry in entries])
        fitting = int(np.searchsorted(sizes, self._files.limit // 2, side="right"))
        if self._has_states and fitting < len(entries):  # only whole texts can be reused
            return
        del entries[fitting:]
        self._files.used(entries)
        self._jobs.extend((kept, entry) for entry in entries if not self._files.exists(entry))

    def write(self, room: Array) -> None:
        """Write the next file."""
        kept, entry = self._jobs.popleft()
        if not self._files.write(entry, self._parts(kept.cache, entry, room)):
            self._jobs = deque(job for job in self._jobs if job[0] is not kept)  # the rest needs this one
        elif entry.last == kept.done or not any(job[0] is kept for job in self._jobs):
            self._files.used([*self._segments(kept, kept.done // SEGMENT * SEGMENT)])

    def finish(self, kept: Kept, room: Array) -> None:
        """Write all of a sequence now, because its memory is needed."""
        others = deque(job for job in self._jobs if job[0] is not kept)
        self._jobs = deque(job for job in self._jobs if job[0] is kept)
        while self._jobs:
            self.write(room)
        self._jobs = others

    def close(self, room: Array) -> None:
        """Write all that is left."""
        while self._jobs:
            self.write(room)

    def _segments(self, text: Running | Kept, stop: int) -> Iterator[Entry]:
        """Yield the entry of each whole segment of a text's first `stop` tokens."""
        key, nbytes = self._root_of(text), sum(keys.form.segment_bytes for keys in _keys(text.cache))
        for first in range(0, stop, SEGMENT):
            entry = Entry.after(key, text.tokens, first, first + SEGMENT, nbytes, False)
            key = entry.key
            yield entry

    def _end(self, text: Running | Kept, before: Sequence[Entry], length: int) -> Entry:
        """Return the entry of the last tokens of a text of some length, with its recurrent states."""
        first = length // SEGMENT * SEGMENT
        nbytes = sum(keys.form.nbytes(length - first) for keys in _keys(text.cache))
        nbytes += sum(state.nbytes for state in _states(text.cache))
        key = before[-1].key if before else self._root_of(text)
        return Entry.after(key, text.tokens, first, length, nbytes, True)

    def _root_of(self, text: Running | Kept) -> bytes:
        """Return a hash of all that a text's keys and values depend on, except its tokens."""
        adapter = "" if text.adapter is None else text.adapter.checksum
        return blake2b(repr([*self._root, adapter, list(text.stretched)]).encode(), digest_size=32).digest()

    def _parts(self, cache: SequenceCache, entry: Entry, room: Array) -> Iterator[Bytes]:
        """Yield the bytes of an entry from a cache."""
        for keys in _keys(cache):
            yield from keys.stored(self._backend, keys.form.nbytes(entry.first), keys.form.nbytes(entry.last), room)
        if entry.ends:
            for state in _states(cache):
                with self._backend.host(state) as values:
                    yield values.reshape(-1).view(np.uint8)

    def _sections(self, cache: SequenceCache, entry: Entry) -> Iterator[Section]:
        """Yield the parts of a cache to which the bytes of an entry belong, in the same order."""
        for keys in _keys(cache):
            start, stop = keys.form.nbytes(entry.first), keys.form.nbytes(entry.last)
            yield stop - start, partial(self._store_keys, keys, start)
        if entry.ends:
            for state in _states(cache):
                yield state.nbytes, partial(self._store_state, state)

    def _store_keys(self, keys: LayerKeys, start: int, offset: int, values: Bytes) -> None:
        keys.store(self._backend, start + offset, values)

    def _store_state(self, state: Array, offset: int, values: Bytes) -> None:
        with self._backend.host(state, write=True) as out:
            out.reshape(-1).view(np.uint8)[offset : offset + len(values)] = values


def checksum_of(adapter: Adapter) -> str:
    """Return a hash of an adapter's form and values."""
    found, flat = blake2b(repr(adapter.form).encode(), digest_size=32), np.empty(adapter.layer_size, np.float32)
    for layer in adapter.layout.adapted:
        adapter.parameters.read(layer, flat)
        found.update(b"%d" % layer)
        found.update(flat.data)
    return found.hexdigest()


def _keys(cache: SequenceCache) -> list[LayerKeys]:
    return [each.keys for each in chain(*cache.layers) if each.keys is not None]


def _states(cache: SequenceCache) -> list[Array]:
    return [each.states[name] for each in chain(*cache.layers) for name in sorted(each.states)]
