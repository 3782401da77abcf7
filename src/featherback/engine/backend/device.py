"""A device together with its scratch memory."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from featherback.engine.backend.protocol import Array, Backend, Operations, Scratch


@dataclass(frozen=True)
class Device:
    """Operations, and the memory for their arrays."""

    backend: Backend
    scratch: Scratch

    @property
    def ops(self) -> Operations:
        return self.backend.ops

    def frame(self) -> AbstractContextManager[None]:
        """Free, at the end of the context, all arrays that were allocated inside."""
        return self.scratch.frame()

    def floats(self, name: str, *shape: int) -> Array:
        """Allocate an uninitialised float32 array in the current frame."""
        return self.scratch.take(name, shape)
