"""Where rows of figures are measured: the folder of models and runs, and how much is measured there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.results import Row
from benchmarks.synthetic import write_synthetic
from featherback.errors import FeatherbackError

Say = Callable[[str], None]
SPARE = 2 * 10**9  # bytes of disk that stay free
TINY = "smollm2-135m"


class SkippedRowError(FeatherbackError):
    """A row that this machine cannot measure; the message says why."""


@dataclass
class Place:
    """What rows need: a folder for models and runs, and the model that has a vocabulary."""

    folder: Path
    say: Say
    chat_model: str = TINY
    tiny: bool = False
    """Few steps of a small model, to check that everything runs. The figures mean nothing."""
    patience: float = 600.0
    """Seconds to wait for a quiet machine before each trial."""
    _written: list[Path] = field(default_factory=list)

    def synthetic(self, name: str) -> Path:
        """The file of the shapes of `name` in Q4_0. It lasts as long as the disk has room for the others."""
        path = self.folder / f"{TINY if self.tiny else name}-q4_0.gguf"
        if not path.exists():
            needed = SIZES[path.name.removesuffix("-q4_0.gguf")]
            if shutil.disk_usage(self.folder).free < needed + SPARE:
                self.clear()
            free = shutil.disk_usage(self.folder).free
            if free < needed + SPARE:
                raise SkippedRowError(
                    f"it needs {(needed + SPARE) / 1e9:.0f} GB of free disk, and {free / 1e9:.0f} GB are free"
                )
            self.say(f"  writing {path.name}")
            write_synthetic(path, path.name.removesuffix("-q4_0.gguf"))
            self._written.append(path)
        return path

    def clear(self) -> None:
        """Delete the models that were written."""
        while self._written:
            self._written.pop().unlink(missing_ok=True)

    def tokens(self, count: int) -> int:
        """`count`, or few where everything is tiny."""
        return min(count, 64) if self.tiny else count

    def steps(self, count: int) -> int:
        """`count`, or two where everything is tiny."""
        return min(count, 2) if self.tiny else count


SIZES = {"smollm2-135m": 0.1e9, "qwen2.5-0.5b": 0.3e9, "qwen2.5-1.5b": 0.9e9, "qwen2.5-3b": 1.8e9, "qwen2.5-7b": 4.4e9}
"""Bytes of the synthetic models."""

Rows = Mapping[str, Callable[[], Row]]
