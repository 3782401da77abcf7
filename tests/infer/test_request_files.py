"""Requests whose keys and values are in files: the same bits as in memory, within the same account."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from featherback import models
from featherback.engine import backend
from featherback.engine.budget import Budget
from featherback.engine.host.piece_file import PieceFile, PieceFileError
from featherback.infer import key_cache
from featherback.infer.batching import Batcher, BusyError, Emitted, Request
from featherback.infer.cache import cache_bytes, state_bytes
from featherback.infer.decoder import Decoder
from featherback.infer.joint_needs import SHORT, fitting_joint, in_file, joint_needs
from featherback.infer.key_cache import SEGMENT
from featherback.infer.layout import Layout, layouts
from featherback.infer.loaded import loaded_bytes
from featherback.infer.needs import CODE
from featherback.infer.scheduler import Scheduler
from featherback.infer.sequence import SequenceCache
from featherback.infer.tickets import Ticket, emitted
from featherback.models.architecture.config import ModelConfig
from featherback.models.model import Model
from tests.infer.test_batching import KINDS, _adapter, _alone, _request, _tokens
from tests.infer.test_decoder import CONFIGS
from tests.support.layouts import some_layouts
from tests.support.tiers import some
from tests.support.tiny_models import TINY_PHI4, tiny, write_tiny

HUGE = 1 << 40


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return models.load(write_tiny(tmp_path / "m.gguf"))


@pytest.fixture
def all_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request is in a file, which is read in pieces of one segment."""
    monkeypatch.setattr(Scheduler, "_needs_file", lambda self, _: self._folder is not None)
    monkeypatch.setattr(key_cache, "PIECE", 1)


def _open(model: Model, folder: Path, **options: Any) -> Batcher:
    return Batcher(model, folder=folder, **({"compute": "fp32", "memory": HUGE} | options))


def _staggered(batcher: Batcher, requests: Sequence[Request]) -> list[list[Emitted]]:
    """Answers whose prompts are computed one after the other; the rest is computed together."""
    answers, found = [], list[list[Emitted]]()
    for request in requests:
        answers.append(iter(batcher.submit(request)))
        found.append([next(answers[-1])])
    for each, answer in zip(found, answers):
        each.extend(answer)
    batcher.close()
    return found


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_family_to_the_last_bit(tmp_path: Path, all_in_files: None, config: ModelConfig) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf", config))
    layout = Layout(chunk=48)
    requests = [_request(i, length, 12, logprobs=2) for i, length in enumerate((3, SEGMENT - 4, 2 * SEGMENT + 5))]
    capacity = 3 * SEGMENT
    for request, each in zip(requests, _staggered(_open(model, tmp_path, layout=layout, capacity=capacity), requests)):
        decoder, following = Decoder(model, None, capacity, "fp32", layout), list(request.prompt)
        for token, logprob, top in each:
            logits = decoder.forward(following)
            assert (token, logprob, top) == emitted(logits, token, 2)
            following = [token]


@pytest.mark.parametrize("kv", ["f32", "q8_0", "q4_0"])
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_the_bits_of_memory(tmp_path: Path, all_in_files: None, compute: str, kv: str) -> None:
    model = models.load(write_tiny(tmp_path / "m.gguf", TINY_PHI4))
    requests = [_request(i, length, 12, logprobs=2) for i, length in enumerate((3, SEGMENT - 4, 2 * SEGMENT + 5))]
    options = {"compute": compute, "kv": kv, "capacity": 3 * SEGMENT}
    assert _staggered(_open(model, tmp_path, **options), requests) == _staggered(Batcher(model, **options), requests)


def test_a_planted_fault_in_a_file_is_found(model: Model, tmp_path: Path, all_in_files: None, monkeypatch: Any) -> None:
    """If a segment is read from another place, the answer is another one."""
    request, real = _request(0, 2 * SEGMENT), PieceFile.read
    monkeypatch.setattr(PieceFile, "read", lambda self, out, offset: real(self, out, 0))
    batcher = _open(model, tmp_path)
    assert _tokens(batcher.submit(request)) != _alone(model, request)
    batcher.close()


def test_a_long_text_beside_short_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The account is never exceeded. Short texts stay in memory, and get tokens while the long one is computed."""
    config = tiny(num_hidden_layers=6, max_position_embeddings=8 * SEGMENT)
    model = models.load(write_tiny(tmp_path / "m.gguf", config))
    adapters = [None, _adapter(model, 1), None]
    long, capacity = _request(9, 5 * SEGMENT, 20), 8 * SEGMENT
    requests = [_request(i, 20, 40, adapter=adapters[i % 3]) for i in range(9)]
    batcher = _open(model, tmp_path, capacity=capacity)
    scheduler = batcher._scheduler
    file = scheduler._scratch_with(adapters[1], files=True) - scheduler._least_scratch + state_bytes(model.blocks)
    short = cache_bytes(model.blocks, 60, "f32") + loaded_bytes(adapters[1])
    scheduler._memory = limit = file + 3 * short
    assert cache_bytes(model.blocks, 5 * SEGMENT + 20, "f32") > limit
    used, places, real = list[int](), set[tuple[bool, int]](), Scheduler.step

    def step(self: Scheduler) -> list[Ticket]:
        used.append(self._used)
        places.update((each.cache.in_file, len(each.request.prompt)) for each in self._running)
        assert self._passes.machine.scratch.high_water <= self._scratch
        ended = real(self)
        used.append(self._used)
        return ended

    monkeypatch.setattr(Scheduler, "step", step)
    tickets = [batcher.submit(request) for request in (requests[0], long, *requests[1:])]
    assert [_tokens(ticket) for ticket in tickets] == [
        _alone(model, request) for request in (requests[0], long, *requests[1:])
    ]
    assert max(used) <= limit
    assert {(False, 20), (True, 5 * SEGMENT)} <= places
    assert not any(length > 20 for in_a_file, length in places if not in_a_file)
    assert scheduler._scratch == scheduler._scratch_with()
    batcher.close()


@pytest.mark.parametrize("source", [False, True])
@pytest.mark.parametrize("target", [False, True])
def test_prefixes_between_memory_and_files(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: bool, target: bool
) -> None:
    shared = _request(9, SEGMENT + 20).prompt
    first, second = (replace(_request(i), prompt=[*shared, *range(i, i + 5)]) for i in range(2))
    files = iter([source, target])
    monkeypatch.setattr(Scheduler, "_needs_file", lambda *_: next(files))
    batcher = _open(model, tmp_path)
    for request, cached in ((first, 0), (second, len(shared))):
        ticket = batcher.submit(request)
        assert _tokens(ticket) == _alone(model, request)
        assert ticket.usage.cached_tokens == cached
    batcher.close()


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_copies_to_the_last_bit(tmp_path: Path, config: ModelConfig) -> None:
    """Memory to file to file to memory: what comes back is what was there."""
    model = models.load(write_tiny(tmp_path / "m.gguf", config))
    device, rows = backend.of("fp32"), 2 * SEGMENT + 9
    room = np.empty(999, np.uint8)

    def made(in_a_file: bool) -> SequenceCache:
        file = (lambda nbytes: PieceFile(tmp_path, nbytes, "a text")) if in_a_file else None
        return SequenceCache(model.blocks, rows, "f32", device.arena, file)

    def arrays(cache: SequenceCache) -> list[NDArray[Any]]:
        each = [each for layer in cache.layers for each in layer]
        return [each.keys.data for each in each if each.keys is not None] + [
            state for each in each for state in each.states.values()
        ]

    caches = [made(False), made(True), made(True), made(False)]
    for array in arrays(caches[0]):
        array[...] = np.random.default_rng(array.size).integers(0, 100, array.shape)
    for one, other in pairwise(caches):
        other.copy_from(one, rows, device, room)
    for one, other in zip(arrays(caches[0]), arrays(caches[-1])):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("config", [CONFIGS["llama"], CONFIGS["qwen35"]], ids=["llama", "states"])
def test_a_full_disk_ends_one_request(
    tmp_path: Path, all_in_files: None, monkeypatch: pytest.MonkeyPatch, config: ModelConfig
) -> None:
    """The others of its pass are computed again."""
    model = models.load(write_tiny(tmp_path / "m.gguf", config))
    requests = [_request(i, 10 + i, 30) for i in range(3)]
    expected = [_alone(model, request) for request in requests]
    full, real = list[PieceFile](), PieceFile.write

    def write(self: PieceFile, values: Any, offset: int) -> None:
        if self in full:
            raise PieceFileError("Cannot write: No space left on device.", self)
        real(self, values, offset)

    monkeypatch.setattr(PieceFile, "write", write)
    batcher = _open(model, tmp_path)
    tickets = [batcher.submit(request) for request in requests]
    next(iter(tickets[1]))
    full.append(next(each.cache.file for each in batcher._scheduler._running if each.ticket is tickets[1]))
    with pytest.raises(BusyError, match="No space left"):
        _tokens(tickets[1])
    assert [_tokens(tickets[0]), _tokens(tickets[2])] == [expected[0], expected[2]]
    batcher.close()


def test_kept_files_go_first(model: Model, tmp_path: Path, all_in_files: None, monkeypatch: Any) -> None:
    """If the disk is full, kept prefixes in files are dropped, and nobody notices."""
    batcher = _open(model, tmp_path)
    _tokens(batcher.submit(_request(0, 20)))
    kept, real = next(iter(batcher._scheduler._prefixes)).cache.file, PieceFile.write

    def write(self: PieceFile, values: Any, offset: int) -> None:
        if not kept._file.closed:
            raise PieceFileError(os.strerror(errno.ENOSPC), self)
        real(self, values, offset)

    monkeypatch.setattr(PieceFile, "write", write)
    assert _tokens(batcher.submit(_request(1, 20))) == _alone(model, _request(1, 20))
    batcher.close()


def test_a_disk_without_room(model: Model, tmp_path: Path, all_in_files: None, monkeypatch: Any) -> None:
    monkeypatch.setattr("featherback.infer.scheduler.disk_usage", lambda _: _Free)
    batcher = _open(model, tmp_path)
    with pytest.raises(BusyError, match=r"needs a file of .* the disk of .* has only 0 MB free"):
        _tokens(batcher.submit(_request(0, 20)))
    batcher.close()


class _Free:
    free = 1000


def test_a_request_that_fits_nowhere(model: Model, tmp_path: Path) -> None:
    batcher = _open(model, tmp_path)
    batcher._scheduler._memory = 100
    with pytest.raises(BusyError, match="The request needs"):
        batcher.submit(_request(adapter=_adapter(model, 1)))
    batcher.close()


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
@pytest.mark.parametrize("layout", some(some_layouts("ram"), 2), ids=str)
def test_passes_take_what_they_were_counted_to(
    tmp_path: Path, all_in_files: None, monkeypatch: pytest.MonkeyPatch, compute: str, layout: Layout
) -> None:
    """Never more, and at least 0.8 of it, with every kind of adapter."""
    model = models.load(write_tiny(tmp_path / "m.gguf"))
    adapters = [_adapter(model, i, **options) for i, options in enumerate(KINDS.values())]
    capacity, slots = 4 * SEGMENT, 9
    batcher = _open(model, tmp_path, capacity=capacity, compute=compute, layout=layout, slots=slots)
    most, real = (0, 0), Scheduler.step

    def step(self: Scheduler) -> list[Ticket]:
        nonlocal most
        ended = real(self)
        arena = self._passes.machine.scratch
        most = max(most, (self._scratch, arena.high_water))
        return ended

    monkeypatch.setattr(Scheduler, "step", step)
    tickets = [
        batcher.submit(_request(i, capacity - 30, 24, adapter=each)) for i, each in enumerate([None, None, *adapters])
    ]
    for ticket in tickets:
        _tokens(ticket)
    assert 0.8 * most[0] <= most[1] <= most[0]
    batcher.close()


def test_the_layout_of_a_budget(model: Model, tmp_path: Path) -> None:
    """A context that does not fit in memory gets the fastest layout beside which a file fits."""
    capacity, slots = 2048, 4
    least = cache_bytes(model.blocks, SHORT, "f32")

    def needed(layout: Layout) -> int:
        return joint_needs(model, [], slots, capacity, "fp32", layout).total + CODE

    class Room(Budget):
        room = property(lambda self: self.limit)

    fastest, file = Layout(), in_file(model, slots, capacity, "fp32", Layout(), "f32")
    limit = needed(fastest) + file + 4 * least
    assert limit < needed(fastest) + cache_bytes(model.blocks, capacity, "f32")
    assert fitting_joint(model, slots, capacity, "fp32", Room(limit)) == (fastest, file + 4 * least)
    smallest = min((each for each in layouts() if each.cache == "ram"), key=needed)
    assert fitting_joint(model, slots, capacity, "fp32", Room(limit - 1)) == (smallest, limit - 1 - needed(smallest))
