"""What this machine computes and copies per second, measured with the kernels, and what a bare process holds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from featherback import kernels
from featherback.architecture.config import ModelConfig
from featherback.weights.types import TensorType

CODE_TO_COME = 1_000_000
"""Bytes of code that a run brings in beyond a rehearsed step: other tensor types' kernels, files, JSON."""


@dataclass(frozen=True)
class Machine:
    """Rates of the kernels in use."""

    product_rate: float  # multiply-adds per second x 2, of the weights' products
    attention_rate: float  # the same of attention
    copy_rate: float  # bytes per second through the page cache
    memory: int | None = None  # bytes that a process can have; None: not asked

    @classmethod
    def measure(cls, config: ModelConfig, tokens: int, compute: str) -> Machine:
        """About a tenth of a second of real kernels, on made-up 4-bit weights of the model's width."""
        t, width, inner = (
            min(tokens, 512),
            config.hidden_size,
            min(config.intermediate_size, 2048) // 256 * 256 or 256,
        )
        cols = -(-width // 32) * 32
        blocks = inner * cols // 32
        weight = kernels.Matrix(
            np.zeros(blocks * TensorType.Q4_0.block_bytes, np.uint8), int(TensorType.Q4_0), inner, cols
        )
        x, out = np.zeros((t, cols), kernels.OPERANDS[compute]), np.empty((t, inner), np.float32)
        product = 2 * t * cols * inner / _seconds(lambda: kernels.linear(x, weight, out))
        heads, kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        q, k = np.zeros((t, heads * head_dim), np.float32), np.zeros((t, kv_heads * head_dim), np.float32)
        o, cu = np.empty_like(q), np.array([0, t], np.int32)
        attention = (
            2
            * t
            * t
            * heads
            * head_dim
            / _seconds(lambda: kernels.attention(q, k, k, o, None, heads, kv_heads, cu))
        )
        source, target = np.zeros(1 << 20, np.uint8), np.zeros(1 << 20, np.uint8)
        copy = (
            source.nbytes / _seconds(lambda: np.copyto(target, source)) / 4
        )  # a system call copies at about a quarter
        return cls(product, attention, copy, memory_limit())


def memory_limit(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process can have: its own and what is free, or less if its cgroup (v1 or v2) allows less.

    What other processes of the cgroup hold is not free; file pages are, since the system takes them back.
    """
    own_footprint, own_rss = kernels.memory_now()
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemAvailable:"):
            limits.append(int(line.split()[1]) * 1024 + own_rss)
    for line in _lines(proc / "self" / "cgroup"):  # hierarchy:controllers:/path
        if line.count(":") < 2:
            continue
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, name, held = groups, "memory.max", "anon "
        elif "memory" in controllers.split(","):
            root, name, held = groups / "memory", "memory.limit_in_bytes", "total_rss "
        else:
            continue
        # In a container the path can be the host's, of which only the root is to be seen.
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            used = sum(
                int(line.split()[1]) for line in _lines(folder / "memory.stat") if line.startswith(held)
            )
            others = max(0, used - own_footprint)
            limits += [int(text) - others for text in _lines(folder / name) if text.isdecimal()]  # or "max"
            if folder == root:
                break
    return min(limits)


def is_ram_disk(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether files under `path`, which need not exist yet, would lie in memory (Linux: tmpfs or ramfs)."""
    home = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    device = home.stat().st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    # 36 35 98:0 /root /mount/point options ... - type source options
    filesystems = (line.partition(" - ")[2].split()[0] for line in _lines(mounts) if line.split()[2] == name)
    return any(filesystem in ("tmpfs", "ramfs") for filesystem in filesystems)


@dataclass(frozen=True)
class Baseline:
    """Bytes a training process holds before it has a model, with the code that comes in as it is called."""

    footprint: int
    rss: int

    @classmethod
    def here(cls) -> Baseline:
        """Of this process, now."""
        footprint, rss = kernels.memory_now()
        return cls(footprint, rss + CODE_TO_COME)


def _lines(path: Path) -> Iterator[str]:
    """Of a file of the system, one at a time; none where the system has no such file."""
    with suppress(OSError), path.open(errors="replace") as file:
        yield from map(str.rstrip, file)


def _seconds(call: Callable[[], object]) -> float:
    """The better of a few runs."""
    call()
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best
