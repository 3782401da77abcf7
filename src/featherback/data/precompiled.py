"""A table in tokenizer.json that the `tokenizers` library does not check: where it is wrong, the library aborts."""

from __future__ import annotations

import base64
import json
import re
import struct
from pathlib import Path

from featherback.errors import FeatherbackError
from featherback.files import open_regular

_TABLE = re.compile(rb'"precompiled_charsmap"\s*:\s*("[^"]*"|[^,}\s]+)')
_SIZE = struct.Struct("<I")


def check_precompiled(path: Path) -> None:
    """FeatherbackError if the table of a Precompiled normalizer is not one.

    It is found in the text, as parsing the whole would take much memory.
    In base64: the size of a trie in bytes (u32), the trie as u32s, and the replacements in UTF-8.
    """
    with open_regular(path) as file:
        content = file.read()
    for match in _TABLE.finditer(content):
        try:
            table = base64.b64decode(json.loads(match[1]), validate=True)
            (size,) = _SIZE.unpack_from(table)
            end = _SIZE.size + size // 4 * 4
            if end > len(table):
                raise ValueError
            table[end:].decode()
        except (ValueError, TypeError, struct.error):
            raise FeatherbackError(
                f"{path} is damaged: the table of its normalizer (precompiled_charsmap) cannot be read."
            ) from None
