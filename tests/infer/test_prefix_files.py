"""Prefixes in files: what a second batcher finds is what the first one computed, or nothing."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from featherback import models
from featherback.infer.batching import Batcher, Emitted, Request
from featherback.infer.cache import cache_bytes, has_states
from featherback.infer.disk_prefixes import DiskPrefixes
from featherback.infer.key_cache import SEGMENT
from featherback.infer.prefix_files import FOLDER, Entry, PrefixFiles
from featherback.models.architecture.config import ModelConfig
from featherback.models.model import Model
from tests.infer.test_batching import _adapter, _alone, _request, _tokens
from tests.infer.test_decoder import CONFIGS
from tests.support.tiny_models import TINY_PHI4, write_tiny

LENGTH, CAPACITY = 2 * SEGMENT + 30, 4 * SEGMENT
WAY: dict[str, Any] = {"compute": "fp32", "capacity": CAPACITY}
HYBRID = {name: CONFIGS[name] for name in ("lfm2", "qwen35")}


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return models.load(write_tiny(tmp_path / "m.gguf"))


class Server:
    """A batcher with a folder for prefixes, and what it has noted."""

    def __init__(self, model: Model, folder: Path, limit: int = 10**9, **options: Any) -> None:
        self.notes: list[str] = []
        files = PrefixFiles(folder, limit, self.notes.append)
        self.batcher = Batcher(model, prefixes=files, **WAY | options)

    def ask(self, request: Request) -> tuple[list[Emitted], int]:
        """The answer, and how many tokens of the prompt were not computed."""
        ticket = self.batcher.submit(request)
        return list(ticket), ticket.usage.cached_tokens


@contextmanager
def _server(model: Model, folder: Path, *arguments: Any, **options: Any) -> Iterator[Server]:
    found = Server(model, folder, *arguments, **options)
    try:
        yield found
    finally:
        found.batcher.close()


def _files(folder: Path) -> list[Path]:
    return sorted((folder / FOLDER).glob("*.prefix"))


def _size(path: Path) -> int:
    """The bytes of a file; 0 if the server has removed it meanwhile."""
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _asked(model: Model, folder: Path, request: Request, **options: Any) -> tuple[list[Emitted], int]:
    """The answer of a new server. Each one is closed, so that the next one is a restart."""
    with _server(model, folder, **options) as server:
        return server.ask(request)


@pytest.mark.parametrize("kv", ["f32", "q8_0"])
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_bits_after_a_restart(tmp_path: Path, compute: str, kv: str) -> None:
    """Log-probabilities are those after the same prefix in memory, and the prefix is not computed again."""
    model = models.load(write_tiny(tmp_path / "m.gguf", TINY_PHI4))
    request, way = _request(0, LENGTH, logprobs=3), {"compute": compute, "kv": kv}
    batcher = Batcher(model, capacity=CAPACITY, **way)
    _tokens(batcher.submit(replace(request, prompt=request.prompt[: 2 * SEGMENT], max_tokens=1)))
    ticket = batcher.submit(request)
    expected = list(ticket)
    assert ticket.usage.cached_tokens == 2 * SEGMENT
    batcher.close()
    assert _asked(model, tmp_path, request, **way)[1] == 0
    assert len(_files(tmp_path)) == 2
    assert _asked(model, tmp_path, request, **way) == (expected, 2 * SEGMENT)


def test_texts_share_files(model: Model, tmp_path: Path) -> None:
    first = _request(0, LENGTH)
    other = replace(first, prompt=[*first.prompt[:SEGMENT], *_request(1, LENGTH).prompt])
    with _server(model, tmp_path) as server:
        server.ask(first)
        server.ask(other)
    assert len(_files(tmp_path)) == 2 + 2
    assert _asked(model, tmp_path, first)[1] == 2 * SEGMENT
    answer, cached = _asked(model, tmp_path, other)
    assert ([each.token for each in answer], cached) == (_alone(model, other), 3 * SEGMENT)


def test_files_are_private(model: Model, tmp_path: Path) -> None:
    _asked(model, tmp_path, _request(0, LENGTH))
    assert (tmp_path / FOLDER).stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in _files(tmp_path)} == {0o600}


def test_what_values_depend_on(model: Model, tmp_path: Path) -> None:
    """Nothing is found with another adapter, other values of the same one, another type or another model."""
    adapter, again, other = _adapter(model, 1), _adapter(model, 1), _adapter(model, 2)
    request = _request(0, LENGTH, adapter=adapter)
    assert _asked(model, tmp_path, request)[1] == 0
    assert _asked(model, tmp_path, replace(request, adapter=again))[1] == 2 * SEGMENT
    for changed in (other, None, _adapter(model, 1, alpha=7.0)):
        one = replace(request, adapter=changed)
        answer, cached = _asked(model, tmp_path, one)
        assert ([each.token for each in answer], cached) == (_alone(model, one), 0)
    for options in ({"compute": "bf16"}, {"kv": "q8_0"}):
        if options.get("kv") is None or model.blocks[0].branches[0].key_heads.size % 32 == 0:
            assert _asked(model, tmp_path, request, **options)[1] == 0
    another = models.load(write_tiny(tmp_path / "other.gguf", seed=5))
    assert _asked(another, tmp_path, _request(0, LENGTH))[1] == 0
    changed = [*request.prompt]
    changed[SEGMENT + 3] ^= 1
    assert _asked(model, tmp_path, replace(request, prompt=changed))[1] == SEGMENT


def test_a_planted_prefix_of_another_adapter_is_found(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DiskPrefixes, "_root_of", lambda self, text: b"the same for all")
    request = _request(0, LENGTH)
    _asked(model, tmp_path, request)
    other = replace(request, adapter=_adapter(model, 1))
    answer, cached = _asked(model, tmp_path, other)
    assert cached == 2 * SEGMENT
    assert [each.token for each in answer] != _alone(model, other)


def test_a_planted_change_of_values_is_found(model: Model, tmp_path: Path) -> None:
    """Values are read from the files: with other values, and the right checksum, the answer is another one."""
    request = _request(0, LENGTH, logprobs=0)
    expected, _ = _asked(model, tmp_path, request)
    for path in _files(tmp_path):
        content = bytearray(path.read_bytes())
        start = 12 + int.from_bytes(content[8:12], "little")
        content[start + 3 : -4 : 4] = bytes(byte ^ 0x80 for byte in content[start + 3 : -4 : 4])  # other signs
        content[-4:] = zlib.crc32(content[start:-4]).to_bytes(4, "little")
        path.write_bytes(content)
    answer, cached = _asked(model, tmp_path, request)
    assert cached == 2 * SEGMENT
    assert answer != expected


def _flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize("which", [0, 1])
def test_a_damaged_file_is_caught(model: Model, tmp_path: Path, which: int) -> None:
    """It is removed with one line, what is before it is used, and the answer is right."""
    request = _request(0, LENGTH)
    expected, _ = _asked(model, tmp_path, request)
    with _server(model, tmp_path) as server:
        server.ask(request)
    names = {path.name for path in _files(tmp_path)}
    ordered = sorted(_files(tmp_path), key=lambda path: -path.stat().st_mtime_ns)  # the first segment was used last
    path, content = ordered[which], ordered[which].read_bytes()
    other = ordered[1 - which].read_bytes()
    faults = [_flipped(content, at) for at in (0, 9, 60, len(content) // 2, len(content) - 5, len(content) - 1)]
    faults += [content[:-1], content + b"x", b"", content[: len(content) // 2], other]
    for fault in faults:
        path.write_bytes(fault)
        with _server(model, tmp_path) as server:
            answer, cached = server.ask(request)
            assert (answer, cached) == (expected, which * SEGMENT)
            assert len(server.notes) == 1, server.notes
            assert path.name in server.notes[0]
        assert {path.name for path in _files(tmp_path)} == names  # written again
        assert path.read_bytes() == content


def test_files_of_others_stay(model: Model, tmp_path: Path) -> None:
    _asked(model, tmp_path, _request(0, LENGTH))
    for name in ("notes.txt", "0.prefix"):
        (tmp_path / FOLDER / name).write_text("mine")
    with _server(model, tmp_path, 1) as server:  # no room for anything
        server.ask(_request(1, LENGTH))
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == ["0.prefix", "notes.txt"]


def test_the_limit_and_the_oldest(model: Model, tmp_path: Path) -> None:
    """Files never take more than the limit, and those that were not used for the longest time go first."""
    _asked(model, tmp_path, _request(0, LENGTH))
    size = sum(path.stat().st_size for path in _files(tmp_path))
    limit = 2 * size + size // 4
    with _server(model, tmp_path, limit) as server:
        for seed in (1, 0, 2):
            server.ask(_request(seed, LENGTH))
            assert sum(_size(path) for path in _files(tmp_path)) <= limit
    for seed, cached in ((2, 2 * SEGMENT), (0, 2 * SEGMENT)):
        assert _asked(model, tmp_path, _request(seed, LENGTH))[1] == cached
    assert _asked(model, tmp_path, _request(1, LENGTH))[1] == 0


def test_a_full_disk(model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers go on, one line says so, and no part of a file is left."""
    request = _request(0, LENGTH)
    real = DiskPrefixes._parts

    def parts(self: DiskPrefixes, *arguments: Any) -> Iterator[Any]:
        yield next(iter(real(self, *arguments)))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with _server(model, tmp_path) as server:
        monkeypatch.setattr(DiskPrefixes, "_parts", parts)
        for seed in range(3):
            assert [each.token for each in server.ask(_request(seed, LENGTH))[0]] == _alone(
                model, _request(seed, LENGTH)
            )
        monkeypatch.undo()
    assert len(server.notes) == 1
    assert "No space left" in server.notes[0]
    assert not list((tmp_path / FOLDER).iterdir())
    assert _asked(model, tmp_path, request)[1] == 0
    assert _asked(model, tmp_path, request)[1] == 2 * SEGMENT


def test_a_folder_that_cannot_be_used(model: Model, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with _server(model, tmp_path / "file") as server:
        assert server.ask(_request(0, LENGTH))[1] == 0
    assert len(server.notes) == 1
    assert "Not a directory" in server.notes[0]


def test_a_folder_that_vanishes(model: Model, tmp_path: Path) -> None:
    with _server(model, tmp_path / "gone") as server:
        (tmp_path / "gone" / FOLDER).rmdir()
        assert server.ask(_request(0, LENGTH))[1] == 0
        assert server.ask(_request(1, LENGTH))[1] == 0
    assert len(server.notes) == 1


KILLED = """
import os, pickle, signal, sys
from featherback import models
from featherback.infer.batching import Batcher
from featherback.infer.disk_prefixes import DiskPrefixes
from featherback.infer.prefix_files import PrefixFiles
from pathlib import Path

real = DiskPrefixes._parts
def parts(self, cache, entry, room):
    found = real(self, cache, entry, room)
    yield next(found)
    if entry.first:
        os.kill(os.getpid(), signal.SIGKILL)
    yield from found
DiskPrefixes._parts = parts
request, options = pickle.load(sys.stdin.buffer)
files = PrefixFiles(Path(sys.argv[2]), 10**9, print)
batcher = Batcher(models.load(sys.argv[1]), prefixes=files, **options)
list(batcher.submit(request))
batcher.close()
"""


def test_killed_in_the_middle_of_a_file(model: Model, tmp_path: Path) -> None:
    given = pickle.dumps((_request(0, LENGTH), WAY))
    done = subprocess.run([sys.executable, "-c", KILLED, str(model.path), str(tmp_path)], input=given, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list((tmp_path / FOLDER).iterdir())) == 2  # a whole file, and the beginning of one
    with _server(model, tmp_path) as server:
        assert len(list((tmp_path / FOLDER).iterdir())) == 1
        answer, cached = server.ask(_request(0, LENGTH))
        assert ([each.token for each in answer], cached) == (_alone(model, _request(0, LENGTH)), SEGMENT)
    assert not server.notes


def test_two_servers_share_a_folder(model: Model, tmp_path: Path) -> None:
    """Also if there is room for few texts only, so that each removes what the other has written."""
    _asked(model, tmp_path, _request(0, LENGTH))
    size = sum(path.stat().st_size for path in _files(tmp_path))
    requests = [_request(seed % 5, LENGTH, 2) for seed in range(20)]
    expected = [_alone(model, request) for request in requests]
    with _server(model, tmp_path, 3 * size, memory=None) as one, _server(model, tmp_path, 3 * size) as other:
        tickets = [[server.batcher.submit(request) for request in requests] for server in (one, other)]
        assert [[_tokens(ticket) for ticket in each] for each in tickets] == [expected, expected]
    assert not [*one.notes, *other.notes]


def test_a_prefix_that_is_dropped_is_written_first(model: Model, tmp_path: Path) -> None:
    """The memory has room for a single text, so nothing stays in it."""
    requests = [_request(seed, LENGTH) for seed in range(3)]
    with _server(model, tmp_path, memory=cache_bytes(model.blocks, LENGTH + 12, "f32")) as server:
        for ticket in [server.batcher.submit(request) for request in requests]:
            _tokens(ticket)
    for request in requests:
        assert _asked(model, tmp_path, request)[1] == 2 * SEGMENT


@pytest.mark.parametrize("config", HYBRID.values(), ids=HYBRID)
def test_recurrent_states(tmp_path: Path, config: ModelConfig) -> None:
    """The next turn of a conversation continues the states; a text that only begins alike computes all."""
    model = models.load(write_tiny(tmp_path / "m.gguf", config))
    assert has_states(model.blocks)
    first = _request(0, SEGMENT + 30, 8)
    answer = [each.token for each in _asked(model, tmp_path, first)[0]]
    following = replace(first, prompt=[*first.prompt, *answer, 5, 6, 7], logprobs=2)
    ticket_tokens, cached = _asked(model, tmp_path, following)
    assert cached == len(first.prompt) + len(answer) - 1
    batcher = Batcher(model, compute="fp32", capacity=CAPACITY)
    _tokens(batcher.submit(first))
    assert ticket_tokens == list(batcher.submit(following))
    batcher.close()
    branching = replace(first, prompt=[*first.prompt, (answer[0] + 1) % 100, 3])
    assert _asked(model, tmp_path, branching)[1] == 0
    for path in _files(tmp_path):
        path.write_bytes(_flipped(path.read_bytes(), path.stat().st_size - 8))
    with _server(model, tmp_path) as server:
        tokens, cached = server.ask(following)
        assert ([each.token for each in tokens], cached) == (_alone(model, following), 0)
        assert len(server.notes) == 1


def test_entries_differ() -> None:
    tokens = list(range(10))
    keys = {
        Entry.after(parent, text, first, last, nbytes, ends).key
        for parent in (b"a", b"b")
        for text in (tokens, [9, *tokens[1:]])
        for first, last in ((0, 4), (0, 5), (4, 8))
        for nbytes in (1, 2)
        for ends in (False, True)
    }
    assert len(keys) == 2 * (2 + 2 + 1) * 2 * 2
