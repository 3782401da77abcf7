"""Files appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from featherback.errors import FeatherbackError
from featherback.files import atomic_file, read_json, write_json


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def fail() -> None:
        with atomic_file(path) as file:
            file.write(b"new, but only par")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FeatherbackError, match=r"Cannot write .*file/run.json: Not a directory"):
        write_json(tmp_path / "file" / "run.json", {})


def test_json(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": [1, None]})
    assert read_json(tmp_path / "a.json") == {"x": [1, None]}
    with pytest.raises(FeatherbackError, match="Cannot read"):
        read_json(tmp_path / "b.json")
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(FeatherbackError, match="not valid JSON"):
        read_json(tmp_path / "c.json")
