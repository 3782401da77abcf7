"""A device with scratch memory."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from featherback.engine.backend.protocol import Array, Backend, Operations, Scratch


@dataclass(frozen=True)
class Device:
    """Operations, and memory for what they work on."""

    backend: Backend
    scratch: Scratch

    @property
    def ops(self) -> Operations:
        return self.backend.ops

    def frame(self) -> AbstractContextManager[None]:
        """Arrays taken inside are given back at the end."""
        return self.scratch.frame()

    def floats(self, name: str, *shape: int) -> Array:
        """An uninitialised float32 array of the current frame."""
        return self.scratch.take(name, shape)
