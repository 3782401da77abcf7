"""How messages name options: as flags on the command line ("--seq-len 8"), as arguments in Python ("seq_len=8").

Messages name an option with `argument` or `argument_is`. These choose the form that suits the reader.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from featherback.core.terminal import quote

_IN_PYTHON = {"from": "start"}
"""Options whose names are reserved words in Python, and the names they have there."""


_flags = False  # whether the reader writes a command line


def use_flags(flags: bool = True) -> None:
    """Name options as flags in the messages of this process, or as Python's arguments."""
    global _flags
    _flags = flags


@contextmanager
def as_flags(flags: bool = True) -> Iterator[None]:
    """Within the context, messages of this process name options as `use_flags` says."""
    before = _flags
    use_flags(flags)
    try:
        yield
    finally:
        use_flags(before)


def in_python() -> bool:
    """Return whether messages are read by someone who writes Python rather than a command line."""
    return not _flags


def argument(name: str, *value: object) -> str:
    """Return an option as the user types it, with its value if one is given: `--seq-len 8`, or `seq_len=8` in Python.

    `name` is the flag with underscores: "seq_len", "lr", "from". True stands for a flag without a value: `--cut`, or
    `cut=True`. A list repeats the flag: `--map a=b --map c=d`, or `map=["a=b", "c=d"]`.
    """
    written = spelled_option(name)
    if not value:
        return written
    if in_python():
        return f"{written}={_python(value[0])}"
    if value[0] is True:
        return written
    values = value[0] if isinstance(value[0], list) else value
    texts = [str(each).lower() if isinstance(each, bool) else str(each) for each in values]
    return " ".join(f"{written} {quote(text)}" for text in texts)


def argument_is(name: str, text: object, alias: str = "") -> str:
    """Return the start of an error about a value: `--seq-len is 0`, or `seq_len=0` in Python. `text` is the value.

    `alias`: another tool's name that the user wrote instead; then `--max-length (--seq-len) is 0`.
    """
    if alias:
        return f"{spelled_option(alias)} ({spelled_option(name)}) is {text}"
    return f"{spelled_option(name)}={text}" if in_python() else f"{spelled_option(name)} is {text}"


def spelled_option(name: str) -> str:
    """Return an option's name as the reader writes it: `--seq-len`, or `seq_len` in Python."""
    return _IN_PYTHON.get(name, name) if in_python() else f"--{name.replace('_', '-')}"


def arguments(*names: str, last: str = "or") -> str:
    """Join several options: `--steps, --epochs or --patience`. `last` is the word before the last one."""
    shown = [argument(name) for name in names]
    return f" {last} ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _python(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_python, value))}]"
    if isinstance(value, (bool, int, float)):
        return repr(value)
    from json import dumps  # takes memory in every process

    return dumps(str(value), ensure_ascii=False)
