"""What the machine is found to be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from featherback.memory.machine import is_ram_disk

SHARED = Path("/dev/shm")


@pytest.mark.parametrize(
    ("filesystem", "expected"), [("tmpfs", True), ("ramfs", True), ("ext4", False), ("overlay", False)]
)
def test_a_ram_disk_is_told_by_the_mount_of_the_nearest_folder(
    filesystem: str, expected: bool, tmp_path: Path
) -> None:
    device = tmp_path.stat().st_dev
    here = f"{os.major(device)}:{os.minor(device)}"
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "21 1 999:7 / / rw - tmpfs tmpfs rw\n"
        f"36 35 {here} / {tmp_path} rw,noatime master:1 - {filesystem} source rw,errors=continue\n"
    )
    assert is_ram_disk(tmp_path / "not" / "there yet", mounts) == expected


def test_no_mount_table_is_no_ram_disk(tmp_path: Path) -> None:
    assert not is_ram_disk(tmp_path, tmp_path / "none")


@pytest.mark.skipif(not SHARED.is_dir(), reason="this system has no /dev/shm")
def test_shared_memory_is_a_ram_disk() -> None:
    assert is_ram_disk(SHARED / "run")
