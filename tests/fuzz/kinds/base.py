"""What every kind of file has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np

from tests.fuzz.mutate import damaged, reworded

SMALL = {"hidden_size": 32, "intermediate_size": 32, "head_dim": 8, "vocab_size": 3}
SAID = [{"role": "user", "content": "Capital of France?"}, {"role": "assistant", "content": "Paris."}]


class Kind(ABC):
    """A kind of input. It has its own `folder`, and `use` is called with many damaged versions of its files."""

    mutate: ClassVar[Callable[[np.random.Generator, bytes, int], bytes]] = staticmethod(reworded)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    @abstractmethod
    def files(self) -> list[Path]:
        """The good files, each of which may be damaged."""

    @abstractmethod
    def use(self, changed: Path) -> None:
        """Read the files as the commands do. `changed`: the file that may be damaged."""

    def header(self, good: bytes) -> int:
        """Return the number of leading bytes of a good file to damage."""
        return len(good)

    def spoilt(self, rng: np.random.Generator, path: Path, good: bytes, header: int) -> bytes:
        """Return a damaged version of one of the `files`."""
        return type(self).mutate(rng, good, header)


KINDS: dict[str, type[Kind]] = {}


def kind(entry: type[Kind]) -> type[Kind]:
    KINDS[entry.__name__.lower()] = entry
    return entry


class Several(Kind):
    """Files of text and binary ones that are read together."""

    def spoilt(self, rng: np.random.Generator, path: Path, good: bytes, header: int) -> bytes:
        how = reworded if path.suffix in (".json", ".jsonl") else damaged
        return how(rng, good, header)
