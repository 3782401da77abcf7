"""Functions that tests call in child processes. A fresh Python imports this module in no time."""

from __future__ import annotations

import os

from featherback.core.children import hand_over
from featherback.errors import FeatherbackError


def add(a: int, b: int) -> tuple[int, int]:
    return a + b, os.getpid()


def fail(message: str) -> None:
    raise FeatherbackError(message)


def leave(status: int) -> None:
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)


def hold(nbytes: int) -> int:
    return len(bytearray(nbytes))


def open_and_hand_over(path: str) -> None:
    hand_over(os.open(path, os.O_RDONLY))
