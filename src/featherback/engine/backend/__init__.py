"""Devices: operations on arrays, scratch memory and stored matrices. `cpu` computes; `counting` only counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from featherback.core.naming import argument_is
from featherback.engine.backend.cpu import CPU
from featherback.engine.backend.protocol import Backend, Card
from featherback.errors import FeatherbackError, expected

USUAL = "cpu"
CARDS = dict.fromkeys(("cuda", "xpu", "mps", "cpu-torch"), "torch_device")
"""Devices beside the CPU, and the module in this folder whose `find` opens one. It is imported on first use."""
DEVICES = (USUAL, *CARDS)

_card: Card | None = None


def use(name: str = USUAL, limit: int | None = None) -> Card | None:
    """Let the process compute on the device `name`, and return it as plans see it; None for the CPU.

    `limit`: bytes of the device's memory that the process may take. Raises FeatherbackError for an unknown device, or
    one that is not there.
    """
    global _card
    if name not in DEVICES:
        raise FeatherbackError(f"{argument_is('device', repr(name))}; {expected(name, DEVICES)}")
    if name == USUAL:
        _card = None
    elif _card is None or (_card.name, _card.limit) != (name, limit):
        _card = import_module(f"{__name__}.{CARDS[name]}").find(name, limit)
    return _card


@contextmanager
def restored() -> Iterator[None]:
    """Within the context the process may `use` another device. At the end it computes on the one from before."""
    global _card
    before = _card
    try:
        yield
    finally:
        _card = before


def card() -> Card | None:
    """Return the device in use as plans see it; None for the CPU."""
    return _card


def of(compute: str, rounded: bool = False, decoding: bool = False) -> Backend:
    """Return the device on which everything runs, computing in "bf16", "int16" or "fp32".

    `decoding`: its operations are those of next tokens, in which a row has the same bits whatever the number of rows.
    `rounded`: besides, products round these rows to eight bits where that is faster. No other place chooses a device.
    """
    return CPU(compute, rounded, decoding) if _card is None else _card.open(compute, rounded, decoding)
