"""Check a table in tokenizer.json. If it is damaged, the `tokenizers` library would abort the process."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from featherback.errors import FeatherbackError

_TABLE = "precompiled_charsmap"
_SIZE = struct.Struct("<I")


def check_precompiled(path: Path, normalizer: Any) -> None:
    """Raise FeatherbackError if the table of a Precompiled normalizer is invalid.

    The table is base64 of: the size of a trie in bytes (u32), the trie as u32 numbers, and the replacements in UTF-8.
    """
    for encoded in _tables(normalizer):
        try:
            table = base64.b64decode(encoded, validate=True)
            (size,) = _SIZE.unpack_from(table)
            end = _SIZE.size + size // 4 * 4
            if end > len(table):
                raise ValueError
            table[end:].decode()
            _check_trie(np.frombuffer(table[_SIZE.size : end], "<u4"), np.frombuffer(table[end:], np.uint8))
        except (ValueError, TypeError, struct.error):
            raise FeatherbackError(
                f"{path} is damaged: the table of its normalizer (precompiled_charsmap) cannot be read."
            ) from None


def _tables(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from (inner for key, inner in value.items() if key == _TABLE)
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _tables(inner)


def _check_trie(units: NDArray[np.uint32], text: NDArray[np.uint8]) -> None:
    """Raise ValueError if a double-array trie (Darts-clone) links outside itself, or a value outside `text`.

    A unit is a value (bit 31 set) or a node. In a node, bits 10 to 30 and 9 hold the offset (XOR) from its own index to
    that of its value, which exists if bit 8 is set. A child's index is that index XOR a byte.
    """
    if units.size == 0:
        raise ValueError
    places = np.arange(units.size)
    values = places ^ ((units >> 10).astype(np.int64) << ((units & 1 << 9) >> 6))
    nodes = units >> 31 == 0
    if np.any(values[nodes] | 255 >= units.size):
        raise ValueError
    found = units[values[nodes & (units >> 8 & 1 == 1)]] & 0x7FFFFFFF
    if np.any(found >= text.size) or np.any(text[found] >> 6 == 0b10):
        raise ValueError
