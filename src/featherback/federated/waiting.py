"""Updates wait on the disk until all are there and judged, so that the server holds one tensor of them at a time.

Flower's strategies read a tensor by `Array.numpy()`, add it to the mean and forget it. So arrays that read a file then
make the mean incremental, whatever the strategy.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord

from featherback.engine.host.positioned import read_at, write_at
from featherback.errors import FeatherbackError
from featherback.federated.messages import Tensors


class _Waiting(Array):
    """A float32 tensor in a file."""

    def __init__(self, file: IO[bytes], offset: int, shape: tuple[int, ...]) -> None:
        super().__init__(dtype="float32", shape=shape, stype="numpy.ndarray", data=b"")
        self._file, self._offset = file, offset

    def numpy(self) -> npt.NDArray[Any]:
        found = np.empty(self.shape, np.float32)
        if not read_at(self._file.fileno(), found, self._offset):
            raise EOFError("the file of waiting updates was cut short")
        return found


class WaitingRoom:
    """A nameless file in the folder `out`, which is gone when the context ends or the server dies."""

    def __init__(self, out: Path) -> None:
        self._out, self._end = out, 0
        self._file = cast("IO[bytes]", tempfile.TemporaryFile(dir=out, buffering=0))  # noqa: SIM115 - see __exit__

    def __enter__(self) -> WaitingRoom:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def keep(self, tensors: Tensors, names: list[str]) -> ArrayRecord:
        """Write these tensors, which are float32, and return a record that reads them, in the order of `names`.

        Raises FeatherbackError if the disk is full.
        """
        found = ArrayRecord()
        for name in names:
            array = tensors[name]
            offset = self._end
            try:
                write_at(self._file.fileno(), np.ascontiguousarray(array), offset)
            except OSError as error:
                raise FeatherbackError(
                    f"Cannot write updates to the folder {self._out}: {error.strerror}. Free space for one adapter "
                    "for each node there."
                ) from None
            self._end += array.nbytes
            found[name] = _Waiting(self._file, offset, array.shape)
        return found
