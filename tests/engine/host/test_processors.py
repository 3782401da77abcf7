"""How many threads are used, on made-up machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from featherback.engine import kernels
from featherback.engine.host.processors import Threads, best_threads

ALL = range(8)
SIBLINGS = {f"devices/system/cpu/cpu{i}/topology/thread_siblings_list": f"{i % 4},{i % 4 + 4}" for i in ALL}
BIG_LITTLE = {f"devices/system/cpu/cpu{i}/cpu_capacity": "446" if i < 4 else "1024" for i in ALL}
PRIME = {f"devices/system/cpu/cpu{i}/cpu_capacity": str([300, 300, 300, 300, 870, 870, 870, 1024][i]) for i in ALL}
HYBRID = {  # two performance cores of two threads each, and four efficiency cores
    "devices/cpu_core/cpus": "0-3",
    "devices/cpu_atom/cpus": "4-7",
    **{
        f"devices/system/cpu/cpu{i}/topology/thread_siblings_list": ["0-1", "0-1", "2-3", "2-3", *"4567"][i]
        for i in ALL
    },
}
V2, V1 = {"proc/self/cgroup": "0::/job"}, {"proc/self/cgroup": "3:cpu,cpuacct:/job\n0::/"}


def _v1(quota: int) -> dict[str, str]:
    return {**V1, "groups/cpu/job/cpu.cfs_quota_us": str(quota), "groups/cpu/job/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("files", "allowed", "count", "reason"),
    [
        ({}, ALL, 8, ""),
        (SIBLINGS, ALL, 4, "one for each core"),
        (SIBLINGS, [1, 5, 2], 2, "one for each core"),
        (BIG_LITTLE, ALL, 4, "one for each performance core"),
        (BIG_LITTLE, [0, 1, 2], 3, ""),
        (PRIME, ALL, 4, "one for each performance core"),
        (HYBRID, ALL, 2, "one for each performance core"),
        (HYBRID, [5, 6, 7], 3, ""),
        ({**V2, "groups/job/cpu.max": "150000 100000"}, ALL, 2, "quota of 1.5 processors"),
        ({**V2, "groups/job/cpu.max": "max 1", "groups/cpu.max": "50000 100000"}, ALL, 1, "quota of 0.5 processors"),
        ({**V2, "groups/job/cpu.max": "1600000 100000"}, ALL, 8, ""),
        ({**V2, **SIBLINGS, "groups/job/cpu.max": "600000 100000"}, ALL, 4, "one for each core"),
        (_v1(300000), ALL, 3, "quota of 3 processors"),
        (_v1(-1), ALL, 8, ""),
        ({**V2, "groups/job/cpu.max": "torn"}, ALL, 8, ""),
    ],
)  # fmt: skip
def test_threads_of_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], allowed: list[int], count: int, reason: str
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: len(allowed))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    folders = {name: tmp_path / name for name in ("devices", "proc", "groups")}
    assert best_threads(allowed, **folders) == Threads(count, reason)


def test_the_banner_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels.describe().endswith(" (named by FEATHERBACK_THREADS)") == ("FEATHERBACK_THREADS" in os.environ)
    monkeypatch.delenv("FEATHERBACK_THREADS", raising=False)
    monkeypatch.setattr(kernels, "best_threads", lambda: Threads(kernels.threads(), "quota of 1.5 processors"))
    assert kernels.describe().endswith(" (quota of 1.5 processors)")
    monkeypatch.setattr(kernels, "best_threads", lambda: Threads(kernels.threads() + 1, "one for each core"))
    assert "each core" not in kernels.describe()  # another number was chosen


def test_a_mask_is_followed_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    found = best_threads([2, 3, 5], devices=tmp_path, proc=tmp_path, groups=tmp_path)
    assert found == Threads(3, "3 of 8 processors allowed")
