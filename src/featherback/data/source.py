"""Describe which data are read and how. Shared by `train`, `evaluate` and `inspect`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from featherback.core.naming import argument, argument_is
from featherback.errors import FeatherbackError, excerpt, expected

TABLE_KEYS = ("separator", "quotes", "header", "encoding", "sheet", "html")
"""What the option `table` can say."""
SEPARATOR_NAMES = {"comma": ",", "semicolon": ";", "tab": "\t", "bar": "|"}
PLAIN = "plain"
"""The usual form of data: answers to imitate."""
STDIN = "-"
"""The path that stands for standard input."""


def display_name(path: str) -> str:
    """Return the name of a file, a folder or standard input in messages."""
    return "standard input" if path == STDIN else path


Long = Literal["refuse", "cut", "keep"]
Path = str | os.PathLike[str]


@dataclass(frozen=True)
class Source:
    """Data files that are read one after another, and how to read them."""

    paths: tuple[str, ...]
    """Files, folders of texts, or "-" for standard input."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Key of a data shape ("prompt") -> column of the data ("question")."""
    skip_bad: bool = False
    """Whether bad records are skipped and counted."""
    long: Long = "refuse"
    """What to do with conversations longer than the sequence length: reject, cut at the end, or keep whole."""
    title: str | None = None
    """Name in messages for examples given from Python, whose path is a temporary file."""
    form: str = PLAIN
    """What examples hold: an entry of `data.forms`."""
    table: Mapping[str, str] = field(default_factory=dict)
    """How tables are written, where that is not found out: "separator" -> ";"."""
    me: tuple[str, ...] = ()
    """The names of the person whose messages in chats and mail are the answers."""
    room: int = 0
    """Tokens that each example needs besides its own: those of an answer that the model writes."""
    shares_prompts: bool = True
    """Whether the model can compute the prompt of several answers once."""

    @classmethod
    def of(cls, data: Source | Path | Iterable[Path], **how: Any) -> Source:
        """Make a Source from one path or several. A Source is returned unchanged."""
        if isinstance(data, Source):
            return data
        paths = (data,) if isinstance(data, (str, os.PathLike)) else data
        return cls(tuple(os.fspath(path) for path in paths), **how)

    @property
    def name(self) -> str:
        """The name in messages."""
        return self.title or ", ".join(map(display_name, self.paths))


def treatment_of_long(seq_len: int | None, cut: bool) -> Long:
    """Choose how to treat conversations longer than `seq_len`; with None, the longest one sets the length."""
    return "keep" if seq_len is None else "cut" if cut else "refuse"


def columns_of(pairs: Iterable[str]) -> dict[str, str]:
    """Parse "prompt=question" into {"prompt": "question"}; raises FeatherbackError if the form is wrong."""
    columns = {}
    for pair in pairs:
        key, sign, column = pair.partition("=")
        if not sign or not key or not column or key in columns:
            raise FeatherbackError(
                f"{argument_is('map', excerpt(pair))}; expected KEY=COLUMN, with each KEY once: "
                f"{argument('map', 'prompt=question')}."
            )
        columns[key] = column
    return columns


def table_options(pairs: Iterable[str]) -> dict[str, str]:
    """Parse "separator=;" into {"separator": ";"}. Raises FeatherbackError if a key or a value is unknown."""
    found = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not value:
            raise FeatherbackError(
                f"{argument('table', pair)}; expected KEY=VALUE: {argument('table', 'separator=;')}."
            )
        if key not in TABLE_KEYS:
            raise FeatherbackError(
                f"{argument('table', pair)}: unknown {excerpt(key)}; {expected(key, TABLE_KEYS)} For example "
                f"{argument('table', 'separator=tab')}."
            )
        if key in ("quotes", "header") and value not in ("yes", "no"):
            raise FeatherbackError(f"{argument('table', pair)}: expected {key}=yes or {key}=no.")
        if key == "html" and value not in ("text", "tags"):
            raise FeatherbackError(f"{argument('table', pair)}: expected html=text or html=tags.")
        if key == "separator" and len(SEPARATOR_NAMES.get(value, value)) != 1:
            raise FeatherbackError(
                f"{argument('table', pair)}: expected one character, or {', '.join(SEPARATOR_NAMES)}."
            )
        if key == "encoding" and not _is_encoding(value):
            raise FeatherbackError(f"{argument('table', pair)}: unknown encoding; for example cp1252 or utf-16.")
        found[key] = value
    return found


def _is_encoding(name: str) -> bool:
    try:
        b"ab".decode(name)
    except LookupError:
        return False
    except ValueError:  # too few bytes for this encoding
        pass
    return True
