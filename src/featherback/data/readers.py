"""Read examples from a data file, one at a time; every complaint names file and line."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from featherback.data.chat import check_messages
from featherback.errors import FeatherbackError
from featherback.files import open_regular

Format = Literal["jsonl", "txt"]
_SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "txt",
    ".md": "txt",
}
MOST_LINE = 16 << 20
"""Bytes of a line that are read at once; a JSON object may have no more."""
_UNSUPPORTED = ("tools", "functions")


@dataclass(frozen=True)
class Example:
    """One line of a data set, in one of three shapes: messages, prompt and completion, or text."""

    where: str
    """File and line, for complaints."""
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    completion: str | None = None
    system: str | None = None
    """What stands before prompt and completion."""
    text: str | None = None


def detect(path: str | os.PathLike[str]) -> Format:
    """The format of a data file, by its name or, failing that, its first character. Raises FeatherbackError
    if the file is missing, empty or not readable."""
    path = Path(path)
    try:
        with open_regular(path) as file:
            head = file.read(4096)
    except IsADirectoryError:
        raise FeatherbackError(f"The data {path} is a folder; name a .jsonl or .txt file in it.") from None
    except FileNotFoundError:
        raise FeatherbackError(f"The data file {path} does not exist.") from None
    except OSError as error:
        raise FeatherbackError(f"Cannot read the data file {path}: {error.strerror}.") from error
    if not head:
        raise FeatherbackError(f"The data file {path} is empty.")
    known = _SUFFIXES.get(path.suffix.lower())
    if known is None and head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{":
        known = "jsonl"
    if known is None:
        raise FeatherbackError(
            f"The format of the data file {path} is not known: name it .jsonl (one JSON object per line) or "
            ".txt (text)."
        )
    return known


Watch = Callable[[int], object]
"""Called with the bytes of each line that is read."""


def read_jsonl(path: str | os.PathLike[str], watch: Watch | None = None) -> Iterator[Example]:
    """The examples of a JSONL file; blank lines are passed over."""
    path = Path(path)
    found = False
    for number, line in enumerate(_lines(path, watch), 1):
        where = f"{path}, line {number}"
        if len(line) == MOST_LINE:
            raise FeatherbackError(f"{where}: longer than {MOST_LINE >> 20} MB; split the example.")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            raise FeatherbackError(f"{where}: not UTF-8 text.") from None
        if not text:
            continue
        found = True
        yield _example(text, where)
    if not found:
        raise FeatherbackError(f"The data file {path} holds no example, only blank lines.")


def read_text(path: str | os.PathLike[str], watch: Watch | None = None) -> Iterator[str]:
    """The lines of a text file, line breaks included (\\r\\n becomes \\n); one beyond MOST_LINE in pieces."""
    path = Path(path)
    decoder = codecs.getincrementaldecoder("utf-8-sig")()  # a line may come in pieces
    number = 0
    try:
        for line in _lines(path, watch):
            number += 1
            yield decoder.decode(line).replace("\r\n", "\n")
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise FeatherbackError(f"{path}, line {number}: not UTF-8 text.") from None


def _lines(path: Path, watch: Watch | None) -> Iterator[bytes]:
    try:
        with open_regular(path) as file:
            while line := file.readline(MOST_LINE):
                if watch is not None:
                    watch(len(line))
                yield line
    except OSError as error:
        raise FeatherbackError(f"Cannot read the data file {path}: {error.strerror}.") from error


def _example(line: str, where: str) -> Example:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        detail = (
            f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        )
        hint = " (a JSON array? Write one object per line.)" if line.startswith("[") else ""
        raise FeatherbackError(f"{where}: not valid JSON: {detail}.{hint}") from None
    if not isinstance(row, dict):
        raise FeatherbackError(f"{where}: expected a JSON object, found {_kind(row)}.")
    if unsupported := next((key for key in _UNSUPPORTED if row.get(key)), None):
        raise FeatherbackError(f'{where}: "{unsupported}" is not supported yet.')
    if "messages" in row:
        try:
            check_messages(row["messages"])
        except FeatherbackError as error:
            raise FeatherbackError(f"{where}: {error}") from None
        return Example(where, messages=_with_system(row, where))
    if "prompt" in row or "completion" in row:
        return Example(
            where,
            prompt=_string(row, "prompt", where),
            completion=_string(row, "completion", where),
            system=_system(row, where),
        )
    if "text" in row:
        if _system(row, where) is not None:
            raise FeatherbackError(f'{where}: "system" has no place beside "text"; write it into the text.')
        return Example(where, text=_string(row, "text", where))
    keys = ", ".join(map(repr, list(row)[:6])) or "none"
    raise FeatherbackError(
        f'{where}: expected "messages", "prompt" with "completion", or "text"; found the keys {keys}.'
    )


def _with_system(row: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The messages, led by the "system" that stands beside them."""
    messages: list[dict[str, Any]] = row["messages"]
    system = _system(row, where)
    if system is None:
        return messages
    if messages[0]["role"] == "system":
        raise FeatherbackError(f'{where}: "system" stands beside messages that begin with another one.')
    return [{"role": "system", "content": system}, *messages]


def _system(row: dict[str, Any], where: str) -> str | None:
    return _string(row, "system", where) if row.get("system") not in (None, "") else None


def _string(row: dict[str, Any], key: str, where: str) -> str:
    if key not in row:
        raise FeatherbackError(f'{where}: "{key}" is missing.')
    value = row[key]
    if not isinstance(value, str):
        raise FeatherbackError(f'{where}: "{key}" must be a string, not {_kind(value)}.')
    if not value and key != "prompt":
        raise FeatherbackError(f'{where}: "{key}" is empty.')
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
