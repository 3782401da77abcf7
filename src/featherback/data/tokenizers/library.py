"""Use the `tokenizers` library for tokenizers of Hugging Face folders that the native encoders do not support.

It keeps every token as a string, which takes about 150 MB for a vocabulary of 150,000.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Encoding, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from featherback._native import SPACED
from featherback.data.tokenizers.tokenizer import Ids, Part
from featherback.errors import FeatherbackError, excerpt


class LibraryCore:
    """A tokenizer core that calls the library."""

    def __init__(self, library: Library, path: str) -> None:
        library.encode_special_tokens = True
        self._library, self._path = library, path

    @property
    def n_vocab(self) -> int:
        return int(self._library.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, parts: Sequence[Part], places: bool) -> tuple[Ids, NDArray[np.uint32] | None]:
        ids: list[int] = []
        offsets = [np.empty((0, 2), np.int64)]
        for token, start, end in parts:
            if token >= 0:
                ids.append(token)
                offsets.append(np.array([[start, end]]))
                continue
            prefix = " " * (token == SPACED)
            encoding = self._encoding(prefix + text[start:end])
            ids.extend(encoding.ids)
            if places:  # the prefix is not part of the text
                found = np.array(encoding.offsets, np.int64).reshape(-1, 2)
                offsets.append(np.maximum(found + (start - len(prefix)), start))
        return np.array(ids, np.uint32), np.concatenate(offsets).astype(np.uint32) if places else None

    def _encoding(self, text: str) -> Encoding:
        try:
            return self._library.encode(text, add_special_tokens=False)
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # panics of the library are not Exceptions
            text.encode()  # half a surrogate pair raises its own error
            raise FeatherbackError(
                f"The `tokenizers` library cannot encode {excerpt(text)} with {self._path}: {error}."
            ) from error

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._library.decode(ids, skip_special_tokens=False))

    def token_bytes(self, id: int) -> bytes:
        raise FeatherbackError(
            f"The `tokenizers` library, which encodes with {self._path}, does not give the bytes of single tokens."
        )


def library_core(path: str, steps: Mapping[str, Any], special: Sequence[str] = ()) -> LibraryCore:
    """Load a tokenizer.json with the library, and replace its "normalizer" and "pre_tokenizer" by `steps`.

    `special`: tokens of the vocabulary that the file does not mark as special.
    """
    check_precompiled(Path(path), steps["normalizer"])
    library = Library.from_file(path)
    library.no_truncation()
    library.no_padding()
    library.post_processor = None
    library.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    if steps["normalizer"] is not None:
        library.normalizer = _made(normalizers.Sequence([]), steps["normalizer"])
    if steps["pre_tokenizer"] is not None:
        library.pre_tokenizer = _made(pre_tokenizers.Sequence([]), steps["pre_tokenizer"])
    return LibraryCore(library, path)


def _made(empty: Any, state: Mapping[str, Any]) -> Any:
    empty.__setstate__(json.dumps(state).encode())
    return empty


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
