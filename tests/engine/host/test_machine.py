"""How the machine's memory and speeds are detected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from featherback.engine import kernels
from featherback.engine.host.machine import is_ram_disk, memory_limit, memory_total

SHARED = Path("/dev/shm")


@pytest.mark.parametrize(
    ("filesystem", "expected"), [("tmpfs", True), ("ramfs", True), ("ext4", False), ("overlay", False)]
)
def test_a_ram_disk_is_told_by_the_mount_of_the_nearest_folder(filesystem: str, expected: bool, tmp_path: Path) -> None:
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


@pytest.mark.skipif(os.name == "nt" or not SHARED.is_dir(), reason="this system has no /dev/shm")
def test_shared_memory_is_a_ram_disk() -> None:
    assert is_ram_disk(SHARED / "run")


def _system(folder: Path, groups: str, files: dict[str, str], available: int = 8_000_000) -> dict[str, Path]:
    """Make a fake /proc and /sys/fs/cgroup."""
    (folder / "proc" / "self").mkdir(parents=True)
    (folder / "proc" / "meminfo").write_text(f"MemTotal: 9000000 kB\nMemAvailable: {available} kB\n")
    (folder / "proc" / "self" / "cgroup").write_text(groups)
    for name, text in files.items():
        path = folder / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return {"proc": folder / "proc", "groups": folder / "groups"}


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/user/job\n", {"user/job/memory.max": "96000000", "user/memory.max": "max"}, 96_000_000),
        ("0::/user/job\n", {"user/job/memory.max": "max", "user/memory.max": "97000000"}, 97_000_000),
        ("0::/\n", {"memory.max": "98000000"}, 98_000_000),
        (
            "4:cpu,memory:/job\n0::/\n",
            {"memory/job/memory.limit_in_bytes": "99000000", "memory/memory.limit_in_bytes": str(2**63 - 4096)},
            99_000_000,
        ),
        ("4:memory:/docker/of the host\n", {"memory/memory.limit_in_bytes": "95000000"}, 95_000_000),
        ("3:cpu:/other\n", {"cpu/other/memory.limit_in_bytes": "1"}, None),
        ("0::/user\n", {"other/memory.max": "1"}, None),
    ],
    ids=["v2", "v2 parent", "v2 container", "v1", "v1 container", "another controller", "another group"],
)
def test_a_cgroup_bounds_what_is_free(groups: str, files: dict[str, str], expected: int | None, tmp_path: Path) -> None:
    free = 300_000  # kB
    limit = memory_limit(**_system(tmp_path, groups, files, free))
    if expected is None:
        assert free * 1024 < limit <= free * 1024 + 4 * 10**9  # plus the memory that this process already holds
    else:
        assert limit == expected


def test_this_system_has_memory_for_its_tests() -> None:
    assert memory_limit() > 50 * 10**6


@pytest.mark.parametrize(
    ("line", "limit", "held"),
    [("0::/job", "job/memory.max", "anon"), ("4:memory:/job", "memory/job/memory.limit_in_bytes", "total_rss")],
    ids=["v2", "v1"],
)
def test_what_others_of_the_cgroup_hold_is_not_free(line: str, limit: str, held: str, tmp_path: Path) -> None:
    own, _ = kernels.memory_now()
    stat = str(Path(limit).parent / "memory.stat")
    files = {limit: "200000000", stat: f"cache 7000000000\n{held} {own + 50_000_000}\nfile 7000000000"}
    system = _system(tmp_path, f"\nnonsense\n{line}\n", files)
    assert abs(memory_limit(**system) - 150_000_000) < 5_000_000
    assert memory_total(**system) == 200_000_000  # regardless of other processes


def test_the_machines_memory_does_not_depend_on_what_is_free(tmp_path: Path) -> None:
    system = _system(tmp_path, "0::/\n", {}, available=300_000)
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_total(**system) == memory_total(tmp_path / "nothing", tmp_path / "nothing") == whole
