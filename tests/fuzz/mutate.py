"""Ways to damage a file. The same generator state gives the same damage."""

from __future__ import annotations

import re

import numpy as np

_NUMBER = re.compile(rb"-?\d+(\.\d+)?")
_STRING = re.compile(rb'"[^"\\]*"')
_ODD_NUMBERS = (b"0", b"-1", b"1e400", b"NaN", b"9" * 20, b"9" * 400, b"2147483648", b"0.5", b"null", b"true", b'"7"')
_ODD_TEXTS = (
    b'""', b'"\\u0000"', b'"\\ud800"', b'"\\u001b[2J"', b'"' + b"x" * 5000 + b'"', b"[]", b"{}", b"-3", b'"../../x"',
    b'"' + "é日👍\u202e".encode() + b'"',
)  # fmt: skip
_ODD_PIECES = (b"[" * 2000, b"{" * 50, b'{"a":' * 2000, b"\xff\xfe", b"\0", b"\n", b"'" * 9, b"*10**9", b"(" * 300)


def damaged(rng: np.random.Generator, good: bytes, header: int) -> bytes:
    """Truncate a binary file, or change a few bytes or bits in its first `header` bytes."""
    how = rng.integers(4)
    if how == 0:
        return good[: rng.integers(len(good))]
    data = bytearray(good)
    for _ in range(rng.integers(1, 4)):
        at = rng.integers(header)
        data[at] = rng.choice([0, 1, 127, 128, 255]) if how == 1 else data[at] ^ (1 << rng.integers(8))
    if how == 3:  # a number of 32 or 64 bits
        size = int(rng.choice([4, 8]))
        at = int(rng.integers(max(1, header - size)))
        value = int(rng.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1])) << (0 if size == 4 else int(rng.integers(32)))
        data[at : at + size] = value.to_bytes(8, "little")[:size]
    return bytes(data)


def reworded(rng: np.random.Generator, good: bytes, _: int) -> bytes:
    """Replace one to three numbers, strings or pieces of a text file."""
    data = good
    for _ in range(rng.integers(1, 4)):
        how = rng.integers(6)
        if how == 0:
            data = _replaced(rng, data, _NUMBER, _ODD_NUMBERS)
        elif how == 1:
            data = _replaced(rng, data, _STRING, _ODD_TEXTS)
        elif how == 2:  # a value moves
            data = _replaced(rng, data, _STRING, tuple(match[0] for match in _STRING.finditer(good)) or (b"",))
        else:
            a, b = sorted(int(at) for at in rng.integers(len(data) + 1, size=2))
            b = min(b, a + 60)
            if how == 3:
                data = data[:a] + data[b:]
            elif how == 4:
                data = data[:b] + data[a:b] * int(rng.integers(1, 40)) + data[b:]
            else:
                data = data[:a] + _ODD_PIECES[rng.integers(len(_ODD_PIECES))] + data[a:]
    return data


def _replaced(rng: np.random.Generator, data: bytes, what: re.Pattern[bytes], by: tuple[bytes, ...]) -> bytes:
    found = list(what.finditer(data))
    if not found:
        return data
    match = found[rng.integers(len(found))]
    return data[: match.start()] + by[rng.integers(len(by))] + data[match.end() :]
