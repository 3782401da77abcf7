"""Which data are read, and how: what `train`, `evaluate` and `inspect` have in common."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from featherback.core.naming import argument, argument_is
from featherback.errors import FeatherbackError, shown

STDIN = "-"
"""How standard input is named."""


def called(path: str) -> str:
    """What messages call a file, a folder or standard input."""
    return "standard input" if path == STDIN else path


Long = Literal["refuse", "cut", "keep"]
Path = str | os.PathLike[str]


@dataclass(frozen=True)
class Source:
    """Files, read one after another."""

    paths: tuple[str, ...]
    """Files, folders of texts, or "-" for standard input."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Key that a shape of data reads ("prompt") -> the column that holds it ("question")."""
    skip_bad: bool = False
    """Whether records that cannot be used are left out and counted."""
    long: Long = "refuse"
    """What becomes of conversations beyond the sequence length: they are refused, cut at the end, or kept whole."""
    title: str | None = None
    """What messages call it where a path says nothing to anyone: it holds examples given from Python."""

    @classmethod
    def of(cls, data: Source | Path | Iterable[Path], **how: Any) -> Source:
        """`data` as a source: itself, or a path or several to be read so."""
        if isinstance(data, Source):
            return data
        paths = (data,) if isinstance(data, (str, os.PathLike)) else data
        return cls(tuple(os.fspath(path) for path in paths), **how)

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.title or ", ".join(map(called, self.paths))

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {**vars(self), "columns": dict(self.columns), "paths": list(self.paths)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Source:
        """The inverse of `to_json`."""
        return cls(**{**values, "paths": tuple(values["paths"])})


def what_is_long(seq_len: int | None, cut: bool) -> Long:
    """What becomes of conversations beyond this length, which is what the longest needs if None is named."""
    return "keep" if seq_len is None else "cut" if cut else "refuse"


def columns_of(pairs: Iterable[str]) -> dict[str, str]:
    """{"prompt": "question"} from "prompt=question"; FeatherbackError if it is not such."""
    columns = {}
    for pair in pairs:
        key, sign, column = pair.partition("=")
        if not sign or not key or not column or key in columns:
            raise FeatherbackError(
                f"{argument_is('map', shown(pair))}; write what a key is called in the data, each once: "
                f"{argument('map', 'prompt=question')}."
            )
        columns[key] = column
    return columns
