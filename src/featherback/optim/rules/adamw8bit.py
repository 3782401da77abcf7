"""AdamW with moments stored in 8 bits, in blocks with a scale (after Dettmers et al., ICLR 2022, arXiv 2110.02861).

The encoding is `engine.backend.levels`. Rounding is stochastic: a second moment that decays by a thousandth per step
would otherwise never leave its level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from zlib import crc32

from featherback.engine.backend import levels
from featherback.engine.backend.device import Device
from featherback.engine.backend.protocol import Array
from featherback.optim.rules.adamw import AdamW

ROOM = "room for rounding"
_PURPOSE = crc32(b"adamw8bit")

FIRST = levels.Code(127, 1, least=0)
# A second moment that is rounded to zero while the first is not would make a step of any length.
SECOND = levels.Code(255, 2, least=1)


@dataclass(frozen=True, kw_only=True)
class AdamW8bit(AdamW):
    __doc__ = AdamW.__doc__

    @classmethod
    def held_size(cls, size: int) -> int:
        return levels.held_size(size)

    @contextmanager
    def unpacked(self, on: Device, held: Sequence[Array], size: int, key: tuple[int, ...]) -> Iterator[Sequence[Array]]:
        with on.frame():
            states = [on.floats(name, size) for name in self.STATES]
            on.floats(ROOM, levels.room(size))
            for row, code, state in zip(held, (FIRST, SECOND), states, strict=True):
                on.ops.unpack(row, code, state)
            yield states
            for number, (row, code, state) in enumerate(zip(held, (FIRST, SECOND), states, strict=True)):
                on.ops.pack(state, code, (_PURPOSE, *key, number), row)


RULE = AdamW8bit
