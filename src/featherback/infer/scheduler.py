"""Which requests take part in the next passes, and what memory they hold."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.core.naming import argument
from featherback.core.sizes import MB, shown_mb
from featherback.engine import backend
from featherback.engine.host.maps import MapWatch
from featherback.infer.cache import cache_bytes, has_states
from featherback.infer.generate import check_logits
from featherback.infer.joint import JointPasses, Part
from featherback.infer.joint_needs import HasLayout, joint_needs
from featherback.infer.layout import Layout
from featherback.infer.loaded import Loaded, load, loaded_bytes
from featherback.infer.passes import Machine
from featherback.infer.prefixes import Prefixes, best_match
from featherback.infer.sequence import Running, SequenceCache
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
        wake: Callable[[], object],
    ) -> None:  # fmt: skip
        """`wake`: called in another thread when there is something to free."""
        self._model, self._capacity, self._compute, self._layout = model, capacity, compute, layout
        self._slots, self._memory, self._kv = slots, memory, kv
        self._has_states = has_states(model.blocks)
        self._maps = MapWatch(model.files, model.close)
        self._device = device = backend.of(compute, layout.is_fast, decoding=True)
        needed = joint_needs(model, [], slots, capacity, compute, layout, kv)
        self._scratch = self._least_scratch = needed.scratch
        weights = source(model, device, layout.weights, layout.vocab_tile or model.head.weight.rows)
        machine = Machine(model, compute, layout, device, device.arena(needed.scratch), weights)
        self._passes = JointPasses(machine, device.arena(needed.held))
        self._logits = np.empty((slots, model.config.vocab_size), np.float32)
        self._running: list[Running] = []  # in the order of admission
        self._ended: list[Ticket] = []
        self._prefixes = Prefixes()
        self._adapters: dict[int, Held] = {}  # by the adapter's id
        self._gone: deque[int] = deque()  # ids of adapters to be forgotten
        self._wake = wake
        self._turns = 0

    @property
    def busy(self) -> bool:
        """Whether a step would do something."""
        return bool(self._running or self._ended or self._gone)

    def check_size(self, ticket: Ticket) -> None:
        """Raise BusyError if the memory is too small for a request, even without any other."""
        adapter = ticket.request.adapter
        needed = self._cache_bytes(self._rows(ticket)) + (0 if adapter is None else loaded_bytes(adapter))
        if self._memory is not None and needed > self._memory:
            raise self._too_large(ticket, needed)

    def admit(self, ticket: Ticket) -> bool:
        """Let a request take part in the next passes. Return whether it does, or has failed.

        If not, it must wait until others have ended.
        """
        if len(self._running) == self._slots:
            return False
        request = ticket.request
        try:
            needed = self._cache_bytes(self._rows(ticket)) + self._loading(request.adapter)
            if not self._make_room(needed, request.adapter):
                if self._running:
                    return False
                raise self._too_large(ticket, needed)
            loaded = self._loaded(request.adapter)
            blocks = self._model.blocks if loaded is None else loaded.blocks
            cache = SequenceCache(blocks, self._rows(ticket), self._kv, self._device.arena)
            self._running.append(Running(self._model, ticket, loaded, cache))
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
        self._compute_prompts()
        self._compute_answers()
        self._forget()
        ended, self._ended = self._ended, []
        return ended

    def close(self, error: Exception | None = None) -> None:
        """End all answers, with an error if there is one, and free the memory."""
        for each in list(self._running):
            self._end(each, "cancelled" if error is None else None, error)
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
            if not each.is_hidden:
                match = best_match(each, [*self._prefixes, *earlier], self._has_states)
            if match is not None:
                if not match.ready:
                    continue
                each.cache.copy_from(match.source.cache, match.shared, self._device)
                each.done = match.shared
                each.ticket.usage = replace(each.ticket.usage, cached_tokens=match.shared)
                self._prefixes.used(match.source)
            each.started = True

    def _compute_prompts(self) -> None:
        """Make a pass for a chunk of prompts with the same adapter. The one that has waited longest is among them."""
        waiting = [each for each in self._running if each.started and (each.pending > 1 or each.is_hidden)]
        if not waiting:
            return
        first = min(waiting, key=lambda each: each.turn)
        group = [first]
        if not first.is_hidden:
            others = sorted((each for each in waiting if each is not first), key=lambda each: each.turn)
            group += [each for each in others if each.adapter is first.adapter and not each.is_hidden]
        answering = len(waiting) < len(self._running)
        left = min(CHUNK_BESIDE, self._layout.chunk) if answering else self._layout.chunk
        sequences, parts = list[Running](), list[Part]()
        for number, each in enumerate(group):
            if left < 1:
                break
            count = min(each.pending, max(1, left // (len(group) - number)))
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

    def _compute_answers(self) -> None:
        """Make a pass for the next token of each answer. Adapters that cannot share a pass have their own."""
        groups: dict[int, list[Running]] = {}
        for each in self._running:
            if each.started and each.pending == 1 and not each.is_hidden:
                shares = each.adapter is None or each.adapter.shares
                groups.setdefault(0 if shares else id(each.adapter), []).append(each)
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
        try:
            with self._maps as maps, self._device.held(result, changing=True) as out:
                if rows is None:
                    self._passes.hidden(parts, out)
                else:
                    self._passes.logits(parts, rows, out)
                maps.check()
        except Exception as error:
            for each in sequences:
                self._end(each, error=error)
            return False
        for each, part in zip(sequences, parts):
            each.done += len(part.ids)
            each.turn = self._turns
        return True

    def _end(self, sequence: Running, reason: FinishReason | None = None, error: Exception | None = None) -> None:
        """End an answer. What was computed is kept for later requests, unless it failed."""
        self._running.remove(sequence)
        if error is None and not sequence.is_hidden and sequence.done:
            self._prefixes.keep(sequence, self._touched(sequence))
            limit = PREFIX_MEMORY if self._memory is None else self._memory - self._used + self._prefixes.nbytes
            while self._prefixes.nbytes > limit and self._prefixes.drop_oldest():
                pass
        sequence.ticket.finish(reason, error)
        self._ended.append(sequence.ticket)

    # Memory.

    def _rows(self, ticket: Ticket) -> int:
        return min(len(ticket.request.prompt) + ticket.request.max_tokens, self._capacity)

    def _cache_bytes(self, rows: int) -> int:
        return cache_bytes(self._model.blocks, rows, self._kv)

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
        return caches + adapters + self._prefixes.nbytes + self._scratch - self._least_scratch

    def _make_room(self, needed: int, wanted: Adapter | None) -> bool:
        """Free kept prefixes, then adapters that no request uses, until `needed` bytes fit. Return whether they do."""
        if self._memory is None:
            return True
        while self._used + needed > self._memory:
            if self._prefixes.drop_oldest():
                continue
            unused = [key for key, each in self._adapters.items() if key != id(wanted) and not self._in_use(each)]
            if not unused:
                return False
            self._unload(unused[0])
        return True

    def _too_large(self, ticket: Ticket, needed: int) -> BusyError:
        assert self._memory is not None
        return BusyError(
            f"The request needs {shown_mb(needed)} for {self._rows(ticket)} tokens and its adapter, but only "
            f"{shown_mb(self._memory)} are available for requests. Shorten the prompt, lower "
            f"{argument('max_tokens')}, or raise {argument('memory')}."
        )

    # Adapters.

    def _loading(self, adapter: Adapter | None) -> int:
        """Return the bytes that loading an adapter takes; 0 if it is loaded."""
        if adapter is None or self._held(adapter) is not None:
            return 0
        return loaded_bytes(adapter) + max(0, self._scratch_with(adapter) - self._scratch)

    def _scratch_with(self, *more: HasLayout) -> int:
        """Return the bytes of scratch memory for the loaded adapters and `more`."""
        adapters = [each.adapter for each in self._adapters.values()]
        settings = self._slots, self._capacity, self._compute, self._layout, self._kv
        return joint_needs(self._model, [*adapters, *more], *settings).scratch

    def _loaded(self, adapter: Adapter | None) -> Loaded | None:
        """Return an adapter's values in memory."""
        if adapter is None:
            return None
        if (held := self._held(adapter)) is None:
            self._resize(self._scratch_with(adapter))
            memory = self._device.arena(loaded_bytes(adapter))
            loaded = load(self._passes.machine, adapter, lambda shape: memory.take("adapter", shape))
            blank, nbytes = BlankAdapter(adapter.layout, draws=False), loaded_bytes(adapter)
            self._adapters[id(adapter)] = held = Held(weakref.ref(adapter), blank, loaded, nbytes)
            weakref.finalize(adapter, self._note_gone, id(adapter))
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
