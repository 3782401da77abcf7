"""Use the `tokenizers` library for tokenizers of Hugging Face folders that the native encoders do not support.

It keeps every token as a string, which takes about 150 MB for a vocabulary of 150,000.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Encoding, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from featherback._native import SPACED
from featherback.data.tokenizers.precompiled import check_precompiled
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
