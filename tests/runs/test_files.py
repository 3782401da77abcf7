"""Files are written completely or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from featherback.core.files import atomic_file, atomic_folder, read_json, write_json
from featherback.errors import FeatherbackError


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


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    """Only temporary files of the same file or folder are removed, and only if their process is gone."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    random = "0123456789abcdef"
    abandoned = [tmp_path / f".{name}.{ended.pid}-{random}.tmp" for name in ("f", "folder")]
    others = [
        tmp_path / f".other.{ended.pid}-{random}.tmp",
        tmp_path / f".f.{os.getppid()}-{random}.tmp",
        tmp_path / f".f.{ended.pid}-{random}.tmpx",
        tmp_path / f".folder.{os.getppid()}-{random}.tmp",
    ]
    for path in (abandoned[0], *others[:3]):
        path.write_text("part")
    for path in (abandoned[1], others[3]):
        path.mkdir()
        (path / "part").write_text("part")
    with atomic_file(tmp_path / "f") as file:
        file.write(b"whole")
    with atomic_folder(tmp_path / "folder") as folder:
        (folder / "whole").write_text("whole")
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "f", tmp_path / "folder", *others])
