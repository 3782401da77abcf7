"""Which requests take part in the next passes, and what memory they hold."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import disk_usage
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.core.naming import argument
from featherback.core.sizes import MB, shown_mb
from featherback.engine import backend
from featherback.engine.backend.protocol import Array
from featherback.engine.host.maps import MapWatch
from featherback.engine.host.piece_file import PieceFile, PieceFileError
from featherback.infer.cache import cache_bytes, has_states, key_bytes, state_bytes
from featherback.infer.disk_prefixes import DiskPrefixes, checksum_of
from featherback.infer.generate import check_logits
from featherback.infer.joint import JointPasses, Part
from featherback.infer.joint_needs import HasLayout, joint_needs
from featherback.infer.key_cache import BYTE
from featherback.infer.layout import Layout
from featherback.infer.loaded import Loaded, group_of, load, loaded_bytes
from featherback.infer.passes import FEW, Machine, piece
from featherback.infer.prefix_files import PrefixFiles, Restoring
from featherback.infer.prefixes import Kept, Prefixes, best_match
from featherback.infer.sequence import ROOM, Running, SequenceCache
from featherback.infer.tickets import BusyError, FinishReason, Ticket
from featherback.methods.memory.dry_run import BlankAdapter
from featherback.methods.memory.resources import source
from featherback.models.adapter import Adapter
from featherback.models.model import Model

CHUNK_BESIDE = 64
"""Tokens of prompts in a pass while answers wait for their next token."""
PREFIX_MEMORY = 256 * MB
"""Bytes of kept prefixes if the memory is not limited."""
PAGE = 4096
FILES_AT_ONCE = 16
"""Files of a prefix that are read before others get a turn, if no request waits for a pass."""


class Held(NamedTuple):
    """An adapter that is loaded. The adapter itself is not kept alive."""

    original: weakref.ref[Adapter]
    adapter: BlankAdapter
    loaded: Loaded
    nbytes: int


class Scheduler:
    """Admits requests, and makes their passes. Used by one thread, except `check_size`."""

    def __init__(
        self, model: Model, capacity: int, compute: str, layout: Layout, slots: int, memory: int | None, kv: str,
        wake: Callable[[], object], folder: Path | None = None, files: PrefixFiles | None = None,
    ) -> None:  # fmt: skip
        """`wake`: called in another thread when there is something to free. `folder`: for files with the keys and
        values of requests that do not fit in the memory; None: these are rejected. `files`: for prefixes that later
        processes find; None: these stay in memory.
        """
        self._folder = None if memory is None else folder
        self._model, self._capacity, self._compute, self._layout = model, capacity, compute, layout
        self._slots, self._memory, self._kv = slots, memory, kv
        self._has_states = has_states(model.blocks)
        self._maps = MapWatch(model.maps, model.close)
        self._device = device = backend.of(compute, layout.is_fast, decoding=True)
        needed = joint_needs(model, [], slots, capacity, compute, layout, kv)
        self._scratch = self._least_scratch = needed.scratch
        weights = source(model, device, layout.weights, layout.vocab_tile or model.head.weight.rows)
        machine = Machine(model, compute, layout, device, device.arena(needed.scratch), weights)
        self._passes = JointPasses(machine, device.arena(needed.held))
        way = compute, layout.decode, kv
        self._disk = None if files is None else DiskPrefixes(files, model, device, way)
        self._logits = np.empty((slots, model.config.vocab_size), np.float32)
        self._running: list[Running] = []  # in the order of admission
        self._ended: list[Ticket] = []
        self._holding: list[Ticket] = []  # whose askers still hold what they brought
        self._prefixes = Prefixes(self._save)
        self._adapters: dict[int, Held] = {}  # by the adapter's id
        self._gone: deque[int] = deque()  # ids of adapters to be forgotten
        self._watches: list[weakref.finalize[Any, Any]] = []
        self._wake = wake
        self._counted: dict[tuple[int, ...], int] = {}  # adapters, and whether there are files -> scratch memory
        self._turns = 0
        self._owed = 0.0  # seconds of passes for texts in memory that are due, because one with a file took so long
        self._for_files = self._scratch_with(files=True) if self._folder else 0

    @property
    def busy(self) -> bool:
        """Whether a step would do something."""
        return bool(self._running or self._ended or self._gone or (self._disk and self._disk.pending))

    def check_size(self, ticket: Ticket) -> None:
        """Raise BusyError if the memory is too small for a request, even without any other."""
        if self._memory is None:
            return
        adapter = ticket.request.adapter
        needed = self._cache_bytes(self._rows(ticket))
        if self._folder is not None:
            needed = min(needed, state_bytes(self._model.blocks) + self._for_files - self._least_scratch)
        needed += ticket.request.holds + (0 if adapter is None else loaded_bytes(adapter))
        if needed > self._memory:
            raise self._too_large(ticket, needed)

    def admit(self, ticket: Ticket) -> bool:
        """Let a request take part in the next passes. Return whether it does, or has failed.

        If not, it must wait until others have ended.
        """
        if len(self._running) == self._slots:
            return False
        request = ticket.request
        try:
            in_file = self._needs_file(ticket)
            if not self._make_room(ticket, in_file):
                if self._running:
                    return False
                raise self._too_large(ticket, self._needed(ticket, in_file))
            loaded = self._loaded(request.adapter, in_file)
            blocks = self._model.blocks if loaded is None else loaded.blocks
            file = self._file if in_file else None
            if in_file:
                self._check_disk(key_bytes(blocks, len(request.prompt) + 1, self._kv))
            cache = SequenceCache(blocks, self._rows(ticket), self._kv, self._device.arena, file)
            self._running.append(Running(self._model, ticket, loaded, cache))
            if request.holds:
                self._holding.append(ticket)
        except Exception as error:
            ticket.finish(error=error)
            self._ended.append(ticket)
        return True

    def forget(self, adapter: Adapter) -> None:
        """Free what is kept of an adapter, once no request uses it."""
        self._gone.append(id(adapter))

    def step(self) -> list[Ticket]:
        """Make a pass for prompts and a pass for answers, where there are any. Return the tickets that have ended."""
        for each in [each for each in self._running if each.ticket.cancelled]:
            self._end(each, "cancelled")
        for each in self._running:
            each.check_rotations()
        self._start()
        taking_part = self._taking_part()
        self._compute_prompts(taking_part)
        self._compute_answers(taking_part)
        self._forget()
        if self._disk is not None and self._disk.pending:
            with self._room() as room:
                self._disk.write(room)
        ended, self._ended = self._ended, []
        return ended

    def close(self, error: Exception | None = None) -> None:
        """End all answers, with an error if there is one, and free the memory."""
        if self._disk is not None and error is None:
            with self._room() as room:
                self._disk.close(room)
        self._disk = None
        for each in list(self._running):
            self._end(each, "cancelled" if error is None else None, error)
        for watch in self._watches:  # an adapter that lives on would keep this object alive
            watch.detach()
        self._passes.close()
        self._passes.machine.weights.close()
        del self._passes, self._prefixes, self._adapters

    # Passes.

    def _start(self) -> None:
        """Copy to new sequences what earlier ones, or kept ones, have in common with them.

        A sequence whose prefix is being computed for another one does not start before it is done.
        """
        for place, each in enumerate(self._running):
            if each.started:
                continue
            earlier = [other for other in self._running[:place] if not other.is_hidden]
            match = None
            if not each.is_hidden and each.restoring is None:
                match = best_match(each, [*self._prefixes, *earlier], self._has_states)
                each.restoring = self._on_disk(each, 0 if match is None else match.shared)
            if each.restoring is not None:
                if not self._restore(each, each.restoring):
                    continue
            elif match is not None:
                if not match.ready:
                    continue
                with self._room() as room:
                    each.cache.copy_from(match.source.cache, match.shared, self._device, room)
                each.done = match.shared
                self._prefixes.used(match.source)
            each.ticket.usage = replace(each.ticket.usage, cached_tokens=each.done)
            each.started = True

    def _on_disk(self, sequence: Running, shared: int) -> Restoring | None:
        """Return the files that have more of a sequence's beginning than the `shared` tokens that are in memory."""
        if self._disk is None or sequence.most_copied(self._has_states) <= shared:
            return None
        if sequence.files is None:
            sequence.files = [self._disk.find(sequence)]
        found = sequence.files[0]
        return found if found is not None and found.tokens > shared else None

    def _restore(self, sequence: Running, files: Restoring) -> bool:
        """Read files into a sequence's cache, one if others wait for passes. Return whether it is done."""
        assert self._disk is not None
        busy = any(each.started for each in self._running)
        with self._room() as room:
            return not all(self._disk.restore(sequence, files, room) for _ in range(1 if busy else FILES_AT_ONCE))

    def _taking_part(self) -> list[Running]:
        """Return the sequences that take part in this step's passes.

        Passes for texts in files are slow. So if there are others, both get the same time.
        """
        started = [each for each in self._running if each.started]
        in_memory = [each for each in started if not each.cache.in_file]
        if not in_memory:
            self._owed = 0.0
        return in_memory if self._owed > 0 else started

    def _compute_prompts(self, taking_part: Sequence[Running]) -> None:
        """Make a pass for a chunk of prompts with the same adapter. The one that has waited longest is among them."""
        waiting = [each for each in taking_part if each.pending > 1 or each.is_hidden]
        if not waiting:
            return
        first = min(waiting, key=lambda each: each.turn)
        group = [first]
        if not first.is_hidden:
            others = sorted((each for each in waiting if each is not first), key=lambda each: each.turn)
            others = [each for each in others if each.cache.in_file == first.cache.in_file]
            others = [each for each in others if each.adapter is first.adapter and not each.is_hidden]
            group += [each for each in others if first.pending > FEW and each.pending > FEW]
        answering = len(waiting) < len(self._running)
        left = min(CHUNK_BESIDE, self._layout.chunk) if answering else self._layout.chunk
        least = min(CHUNK_BESIDE, left)  # of a prompt, if it is divided
        sequences, parts = list[Running](), list[Part]()
        for number, each in enumerate(group):
            most = min(left, max(least, left // (len(group) - number)))
            if each.pending > most and most < least:
                continue
            count = piece(each.pending, most)
            left -= count
            sequences.append(each)
            parts.append(each.part(count))
        self._turns += 1
        if first.is_hidden:
            states = np.empty((len(parts[0].ids), self._model.config.hidden_size), np.float32)
            if self._run(sequences, parts, None, states) and first.add_states(states):
                self._end(first, "stop")
        else:
            last = np.cumsum([len(part.ids) for part in parts]) - 1
            whole = [len(part.ids) == each.pending for each, part in zip(sequences, parts)]
            self._continue(sequences, parts, last[whole], [each for each, w in zip(sequences, whole) if w])

    def _compute_answers(self, taking_part: Sequence[Running]) -> None:
        """Make a pass for the next token of each answer. Adapters that cannot share a pass have their own."""
        groups: dict[tuple[Hashable, bool], list[Running]] = {}
        for each in taking_part:
            if each.ticket.done or each.pending != 1 or each.is_hidden:
                continue
            groups.setdefault((group_of(each.adapter), each.cache.in_file), []).append(each)
        for group in groups.values():
            group.sort(key=lambda each: id(each.adapter))  # one adapter's rows are neighbours
            parts = [each.part(1) for each in group]
            self._continue(group, parts, np.arange(len(group)), group)

    def _continue(
        self, sequences: Sequence[Running], parts: Sequence[Part], rows: NDArray[np.integer[Any]], whole: list[Running]
    ) -> None:
        """Run the parts of sequences, and take the next token of those that are `whole` from the logits of `rows`."""
        logits = self._logits[: len(rows)]
        if not self._run(sequences, parts, rows.astype(np.int32), logits):
            return
        for each, row in zip(whole, logits):
            try:
                check_logits(row, self._model)
                token = each.request.sampler(row)
                if token in each.request.end_ids:
                    self._end(each, "stop")
                    continue
                each.add(token, row)
            except Exception as error:  # the other answers go on
                self._end(each, error=error)
            else:
                if each.emitted == each.request.max_tokens or each.done == self._capacity:
                    self._end(each, "length")

    def _run(
        self,
        sequences: Sequence[Running],
        parts: Sequence[Part],
        rows: NDArray[np.int32] | None,
        result: NDArray[np.float32],
    ) -> bool:
        """Run parts and write logits of `rows`, or hidden states if it is None. If it fails, the sequences end."""
        began = perf_counter()
        try:
            with self._maps as maps, self._device.held(result, changing=True) as out:
                if rows is None:
                    self._passes.hidden(parts, out)
                else:
                    self._passes.logits(parts, rows, out)
                maps.check()
        except PieceFileError as error:
            self._failed(sequences, error)
            return False
        except Exception as error:
            for each in sequences:
                self._end(each, error=error)
            return False
        took = perf_counter() - began
        self._owed = max(0.0, self._owed + (took if sequences[0].cache.in_file else -took))
        for each, part in zip(sequences, parts):
            each.done += len(part.ids)
            each.turn = self._turns
        return True

    def _failed(self, sequences: Sequence[Running], error: PieceFileError) -> None:
        """End the sequence whose file failed, unless kept prefixes can be dropped, so that there is space again.

        The others compute the failed pass again.
        """
        if not self._prefixes.drop_oldest(in_file=True):
            for each in [each for each in sequences if each.cache.file is error.file]:
                self._end(each, error=BusyError(str(error)))
        if self._has_states:  # they may be partly updated
            for each in sequences:
                each.restart()

    def _end(self, sequence: Running, reason: FinishReason | None = None, error: Exception | None = None) -> None:
        """End an answer. What was computed is kept for later requests, unless it failed."""
        self._running.remove(sequence)
        if error is None and not sequence.is_hidden and sequence.done:
            kept = self._prefixes.keep(sequence, self._touched(sequence))
            if self._disk is not None:
                self._disk.keep(kept)
            while self._prefixes.file_bytes > key_bytes(self._model.blocks, self._capacity, self._kv):
                self._prefixes.drop_oldest(in_file=True)
            limit = PREFIX_MEMORY if self._memory is None else self._memory - self._used + self._prefixes.nbytes
            while self._prefixes.nbytes > limit and self._prefixes.drop_oldest():
                pass
        if sequence.cache.in_file and not self._has_files:
            self._resize(self._scratch_with())
        sequence.ticket.finish(reason, error)
        self._ended.append(sequence.ticket)

    # Memory.

    def _rows(self, ticket: Ticket) -> int:
        return min(len(ticket.request.prompt) + ticket.request.max_tokens, self._capacity)

    def _cache_bytes(self, rows: int) -> int:
        return cache_bytes(self._model.blocks, rows, self._kv)

    @property
    def _has_files(self) -> bool:
        """Whether keys and values of running requests are in files."""
        return any(each.cache.in_file for each in self._running)

    def _needs_file(self, ticket: Ticket) -> bool:
        """Return whether a request's keys and values must be in a file: in memory, they would not fit beside those of
        the running requests.
        """
        if self._memory is None or self._folder is None:
            return False
        unused = sum(self._adapters[key].nbytes for key in self._unused(ticket.request.adapter))
        return self._used - self._prefixes.nbytes - unused + self._needed(ticket, False) > self._memory

    def _needed(self, ticket: Ticket, in_file: bool) -> int:
        """Return the bytes of memory that a request takes if it is admitted now."""
        adapter = ticket.request.adapter
        loading = 0 if adapter is None or self._held(adapter) is not None else loaded_bytes(adapter)
        more = [] if adapter is None or not loading else [adapter]
        scratch = self._scratch_with(*more, files=in_file or self._has_files) if more or in_file else self._scratch
        cache = state_bytes(self._model.blocks) if in_file else self._cache_bytes(self._rows(ticket))
        return cache + loading + ticket.request.holds + max(0, scratch - self._scratch)

    def _file(self, nbytes: int) -> PieceFile:
        assert self._folder is not None
        return PieceFile(self._folder, nbytes, "the keys and values of a text")

    def _check_disk(self, nbytes: int) -> None:
        """Drop kept prefixes until the disk has room for `nbytes`. Raises BusyError if it never has."""
        assert self._folder is not None
        while (free := disk_usage(self._folder).free) < nbytes:
            if not self._prefixes.drop_oldest(in_file=True):
                raise BusyError(
                    f"The request needs a file of {shown_mb(nbytes)}, but the disk of {self._folder} has only "
                    f"{shown_mb(free)} free. Send it again later."
                )

    @contextmanager
    def _room(self) -> Iterator[Array]:
        """Yield memory through which parts of caches are copied."""
        scratch = self._passes.machine.scratch
        with scratch.frame():
            yield scratch.take("part of a cache", (ROOM,), BYTE)

    def _save(self, kept: Kept) -> None:
        """Write a kept prefix that is about to be dropped."""
        if self._disk is not None:
            with self._room() as room:
                self._disk.finish(kept, room)

    def _touched(self, sequence: Running) -> int:
        """Return the resident bytes of a cache: its pages are used as it fills."""
        cache = sequence.cache
        edges = 2 * PAGE * sum(1 + len(each.states) for layer in cache.layers for each in layer)
        return min(cache.nbytes, self._cache_bytes(sequence.done) + edges)

    @property
    def _used(self) -> int:
        """Bytes of everything that changes with the requests."""
        caches = sum(each.cache.nbytes for each in self._running)
        adapters = sum(each.nbytes for each in self._adapters.values())
        self._holding = [each for each in self._holding if not each.released]
        held = sum(each.request.holds for each in self._holding)
        return caches + adapters + held + self._prefixes.nbytes + self._scratch - self._least_scratch

    def _make_room(self, ticket: Ticket, in_file: bool) -> bool:
        """Free kept prefixes, then adapters that no request uses, until a request fits. Return whether it does."""
        if self._memory is None:
            return True
        needed = self._needed(ticket, in_file)
        while self._used + needed > self._memory:
            if self._prefixes.nbytes and self._prefixes.drop_oldest():
                continue
            if not (unused := self._unused(ticket.request.adapter)):
                return False
            self._unload(unused[0])
            needed = self._needed(ticket, in_file)
        return True

    def _unused(self, wanted: Adapter | None) -> list[int]:
        """Return the adapters that no request uses, without one that is wanted now."""
        return [key for key, each in self._adapters.items() if key != id(wanted) and not self._in_use(each)]

    def _too_large(self, ticket: Ticket, needed: int) -> BusyError:
        assert self._memory is not None
        return BusyError(
            f"The request needs {shown_mb(needed)} for {self._rows(ticket)} tokens with their adapter and answer, "
            f"but only {shown_mb(self._memory)} are available for requests. Shorten the prompt, lower "
            f"{argument('max_tokens')}, or raise {argument('memory')}."
        )

    # Adapters.

    def _scratch_with(self, *more: HasLayout, files: bool | None = None) -> int:
        """Return the bytes of scratch memory for the loaded adapters and `more`.

        `files`: whether keys and values are in files; None: as they are now.
        """
        files = self._has_files if files is None else files
        key = *self._adapters, files
        if not more and key in self._counted:
            return self._counted[key]
        adapters = [each.adapter for each in self._adapters.values()]
        layout = replace(self._layout, cache="file" if files else "ram")
        settings = self._slots, self._capacity, self._compute, layout, self._kv
        found = joint_needs(self._model, [*adapters, *more], *settings).scratch
        if not more:
            self._counted[key] = found
        return found

    def _loaded(self, adapter: Adapter | None, in_file: bool) -> Loaded | None:
        """Return an adapter's values in memory. `in_file`: whether the request that uses it needs a file."""
        files = in_file or self._has_files
        if adapter is None:
            self._resize(self._scratch_with(files=files))
            return None
        if (held := self._held(adapter)) is None:
            self._resize(self._scratch_with(adapter, files=files))
            memory = self._device.arena(loaded_bytes(adapter))
            loaded = load(self._passes.machine, adapter, lambda shape: memory.take("adapter", shape))
            if self._disk is not None:
                loaded = loaded._replace(checksum=checksum_of(adapter))
            self._counted.clear()
            blank, nbytes = BlankAdapter(adapter.layout, draws=False), loaded_bytes(adapter)
            self._adapters[id(adapter)] = held = Held(weakref.ref(adapter), blank, loaded, nbytes)
            self._watches.append(weakref.finalize(adapter, self._note_gone, id(adapter)))
        else:
            self._resize(self._scratch_with(files=files))
        return held.loaded

    def _held(self, adapter: Adapter) -> Held | None:
        """Return an adapter that is loaded; None if it is not."""
        held = self._adapters.get(id(adapter))
        if held is not None and held.original() is not adapter:  # another one, which is gone, had this id
            self._unload(id(adapter))
            held = None
        return held

    def _resize(self, scratch: int) -> None:
        """Use a scratch arena of `scratch` bytes, if that is another size."""
        if scratch != self._scratch:
            self._passes.machine = replace(self._passes.machine, scratch=self._device.arena(scratch))
            self._scratch = scratch

    def _in_use(self, held: Held) -> bool:
        return any(each.adapter is held.loaded for each in self._running)

    def _unload(self, key: int) -> None:
        """Free an adapter's values, and the prefixes that were computed with it."""
        self._prefixes.drop_adapter(self._adapters.pop(key).loaded)
        self._counted.clear()
        self._passes.forget()
        self._resize(self._scratch_with())

    def _forget(self) -> None:
        """Free adapters that are forgotten, unless a request still uses them."""
        gone, later = [self._gone.popleft() for _ in range(len(self._gone))], list[int]()
        for key in dict.fromkeys(gone):
            if (held := self._adapters.get(key)) is None:
                continue
            if self._in_use(held):
                later.append(key)
            else:
                self._unload(key)
        self._gone.extend(later)

    def _note_gone(self, key: int) -> None:
        self._gone.append(key)
        self._wake()
