"""The table of a Precompiled normalizer: damaged tables give an error, and valid ones are read."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from featherback.data.tokenizers.loader import load_tokenizer
from featherback.errors import FeatherbackError

TRIE = bytes(1024)
GOOD = struct.pack("<I", len(TRIE)) + TRIE + "é\0".encode()


def _table(root: int, value: int = 0) -> str:
    """Make a trie of one node. If bit 8 is set, its value is the unit that the node links to."""
    units = [root | 1 << 10 if root >> 10 == 0 else root, value | 1 << 31, *[0] * 254]
    trie = struct.pack("<256I", *units)
    return base64.b64encode(struct.pack("<I", len(trie)) + trie + "é\0".encode()).decode()


def _folder(tmp_path: Path, table: Any, nested: bool = False) -> Path:
    normalizer: dict[str, Any] = {"type": "Precompiled", "precompiled_charsmap": table}
    if nested:
        normalizer = {"type": "Sequence", "normalizers": [{"type": "NFC"}, normalizer]}
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": [], "normalizer": normalizer, "model": model})
    )
    return tmp_path


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    "table",
    [
        "",
        "AAAA",
        base64.b64encode(bytes(4)).decode(),  # a trie without units
        "not base64",
        3,
        base64.b64encode(struct.pack("<I", 2**32 - 1) + TRIE).decode(),
        base64.b64encode(GOOD[:-2] + b"\xff").decode(),
        base64.b64encode(GOOD[:900]).decode(),
        _table(0x7FFFFC00),  # a link to outside
        _table(0x100, value=3),  # a value after the end of the text
        _table(0x100, value=1),  # within a character
    ],
)
def test_a_wrong_table_is_told(tmp_path: Path, table: Any, nested: bool, capfd: pytest.CaptureFixture[str]) -> None:
    folder = _folder(tmp_path, table, nested)
    with pytest.raises(FeatherbackError) as raised:
        load_tokenizer(folder)
    assert str(raised.value) == (
        f"{folder / 'tokenizer.json'} is damaged: the table of its normalizer (precompiled_charsmap) cannot be read."
    )
    assert capfd.readouterr().err == ""  # the library would print its panic there


def test_the_name_of_a_wrong_table_may_be_escaped(tmp_path: Path) -> None:
    folder = _folder(tmp_path, "AAAA")
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace("precompiled_charsmap", "precompiled\\u005fcharsmap"))
    with pytest.raises(FeatherbackError, match="precompiled_charsmap"):
        load_tokenizer(folder)


@pytest.mark.parametrize("table", [base64.b64encode(GOOD).decode(), _table(0x100, value=0)])
def test_a_right_table_is_read(tmp_path: Path, table: str) -> None:
    folder = _folder(tmp_path, table)
    assert load_tokenizer(folder).encode("ab") == [0, 1]
