"""Binary tables. A process with a memory limit decodes them (`data.decoders`) and writes their rows as JSON lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import chain
from typing import IO, ClassVar, NoReturn

from featherback.core.naming import in_python
from featherback.core.system import processes, signals
from featherback.data.containers.base import Record, Records
from featherback.data.containers.lines import record_of_line
from featherback.data.decoders.process import SECONDS
from featherback.data.example import Bad
from featherback.data.inputs import Input, whole_lines
from featherback.data.record_size import MOST_DECODED, Expansion, RawSize
from featherback.errors import FeatherbackError

_LEAN = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # others reserve memory in advance, which counts for the limit
    "MALLOC_ARENA_MAX": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
_ROW = 100  # bytes of work that a row stands for, besides its own


class Decoded(Records):
    """A format that `decoder`, a module of `data.decoders`, reads with a package that the optional `extra` installs."""

    decoder: ClassVar[str]
    extra: ClassVar[str]
    package: ClassVar[str]
    module: ClassVar[str]
    called: ClassVar[str]
    """A file of this format, in an error: "a Parquet file"."""
    nothing = "only column names"
    table_keys: ClassVar[tuple[str, ...]] = ()

    def read(self, data: Input) -> Iterator[Record | Bad]:
        for number, line in self.lines(data):
            if record := record_of_line(line, f"{data.name}, row {number}", data.room):
                del line  # frees its memory while the record is used
                yield record

    def lines(self, data: Input) -> Iterator[tuple[int, bytes | RawSize]]:
        """Yield the numbers of the rows (from 1) and the rows, as lines of JSON."""
        if find_spec(self.module) is None:
            raise FeatherbackError(
                f"{data.name} is {self.called}. To read it, install {self.package}: "
                f"pip install 'featherback[{self.extra}]'."
            )
        expansion, number, alone = Expansion(data.name, data.size), 0, False
        while True:
            try:
                for line in self._rows(data, number, alone):
                    number += 1
                    expansion.add(_ROW + (line.size if isinstance(line, RawSize) else len(line)))
                    yield number, line
                return
            except _StoppedError as error:
                if alone or error.crash:
                    self._refuse(data, f"{data.name}, row {number + 1}", error)
                    return
                alone = True  # once more from here, with a row at a time

    def _rows(self, data: Input, start: int, alone: bool) -> Iterator[bytes | RawSize]:
        """Yield the rows from number `start` on as lines of JSON."""
        used = reported = 0
        with (
            data.descriptor() as file,
            started(self.decoder, file, start, alone, data.table.get("sheet", "")) as process,
        ):
            assert process.stdin is not None
            assert process.stdout is not None
            if (first := process.stdout.readline()) == b">\n":
                data.room.sample_memory(now=True)  # the library may take more memory than everything else
                if not (granted := data.room.lend(data.name)):
                    return
                process.stdin.write(b"%d\n" % granted)
                process.stdin.flush()
            most = data.room.most
            try:
                for line in chain([first], whole_lines(_pieces(process.stdout, most), most)):
                    if isinstance(line, RawSize) or line.startswith((b"{", b"[")):
                        yield line
                    elif line.startswith(b"#"):
                        data.watch(int(line[1:]) - reported)
                        reported = int(line[1:])
                    elif line.startswith(b"!"):
                        self._fail(data, **json.loads(line[1:]))
                    elif line.startswith(b"."):
                        used = int(line[1:])
                        return
                raise _StoppedError(process.wait())
            finally:
                data.room.take_back(used)

    def _fail(self, data: Input, problem: str, detail: str) -> NoReturn:
        if problem == "memory":
            raise _StoppedError(0)
        raise FeatherbackError(f"Cannot read the {self.title} file {data.name}: {detail}.")

    def _refuse(self, data: Input, where: str, error: _StoppedError) -> None:
        """Raise the error for a row that cannot be decoded, or let the budget refuse it."""
        if error.crash is not None:
            raise FeatherbackError(f"{where}: {self.package} {error.crash}. The file is damaged.")
        if data.room.lacks(where):
            raise FeatherbackError(
                f"{where}: decoding it takes more than {MOST_DECODED // 10**6} MB of memory. Split the example, or "
                "save the table as JSON lines."
            )


class _StoppedError(Exception):
    """The process needed more memory than it may have, or crashed. `status`: its exit status, or 0."""

    def __init__(self, status: int) -> None:
        self.crash: str | None = f"stops with {signals.name_of(status) or f'status {status}'}"
        if status == signals.TOO_LONG:
            self.crash = f"needs more than {SECONDS} s of CPU time for a row"
        elif status in (0, *signals.KILLED):  # libraries abort when memory runs out
            self.crash = None


@contextmanager
def started(decoder: str, file: int, start: int, alone: bool, sheet: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that decodes an open file, and stop it at the end."""
    words = [decoder, str(start), str(int(alone)), str(int(not in_python())), sheet]
    process = processes.start(
        [sys.executable, "-m", "featherback.data.decoders.process", *words],
        file,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **_LEAN},
    )
    try:
        yield process
    finally:
        process.kill()  # no effect on a process that has ended
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with suppress(OSError):  # it has unsent data
                stream.close()


def _pieces(output: IO[bytes], most: int) -> Iterator[bytes]:
    return iter(lambda: output.readline(most + 1), b"")
