"""How messages name options: as flags on the command line ("--seq-len 8"), as arguments in Python ("seq_len=8").

Whoever writes a message names the option with `argument` or `argument_is`; the process knows who reads it.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

FACE = "FEATHERBACK_FACE"
"""Environment variable: "flags" in a process of the command line and in those that it starts."""
FLAGS = "flags"
_IN_PYTHON = {"from": "start"}
"""Options whose names are words that Python keeps to itself -> what they are called there."""


@contextmanager
def as_flags() -> Iterator[None]:
    """Inside, messages of this process, and of those that it starts, name options as flags."""
    before = os.environ.get(FACE)
    os.environ[FACE] = FLAGS
    try:
        yield
    finally:
        if before is None:
            del os.environ[FACE]
        else:
            os.environ[FACE] = before


def in_python() -> bool:
    """Whether the reader of messages writes Python, and not a command line."""
    return os.environ.get(FACE) != FLAGS


def argument(name: str, *value: object) -> str:
    """An option, with its value if one is given: `--seq-len 8`, or `seq_len=8` in Python.

    `name` is the flag's, with underscores: "seq_len", "lr", "from". True stands for a flag without a value: `--cut`,
    `cut=True`. A list is a flag given again and again: `--map a=b --map c=d`, `map=["a=b", "c=d"]`.
    """
    if in_python():
        name = _IN_PYTHON.get(name, name)
        return f"{name}={_python(value[0])}" if value else name
    flag = f"--{name.replace('_', '-')}"
    if not value or value[0] is True:
        return flag
    values = value[0] if isinstance(value[0], list) else value
    return " ".join(f"{flag} {shlex.quote(str(each))}" for each in values)


def argument_is(name: str, text: object) -> str:
    """The beginning of a complaint: `--seq-len is 0`, or `seq_len=0` in Python. `text` is the value as it is shown."""
    return f"{_IN_PYTHON.get(name, name)}={text}" if in_python() else f"{argument(name)} is {text}"


def arguments(*names: str, last: str = "or") -> str:
    """Several options: `--steps, --epochs or --patience`."""
    shown = [argument(name) for name in names]
    return f" {last} ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _python(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_python, value))}]"
    return repr(value) if isinstance(value, (bool, int, float)) else json.dumps(str(value), ensure_ascii=False)
