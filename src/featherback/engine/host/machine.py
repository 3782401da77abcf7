"""What this machine computes and copies per second, measured with the kernels, its memory, and what a bare process
holds."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from featherback.engine import backend, kernels
from featherback.engine.formats.types import TensorType
from featherback.engine.host import remembered

MOST_TIMED = 512
"""Tokens that operations are timed with, where a batch has more."""
PRODUCT_ROWS, PRODUCT_OUTPUTS = 128, 512
"""Of the products whose rates are compared, at most."""
CODE_TO_COME = 1_000_000
"""Bytes of code that a run brings in beyond a rehearsed step: other tensor types' kernels, files, JSON."""
VARIATION = 500_000
"""Bytes: twice what the baselines of a hundred fresh processes were seen to differ by."""
_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_MOST_SIZES = 32
"""Baselines of one kind that are remembered."""


class Widths(Protocol):
    """The sizes of a model that operations are timed with; its configuration has them."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


@dataclass(frozen=True)
class Machine:
    """Rates of the kernels in use."""

    product_rate: float  # floating-point operations per second of products with stored weights, once unpacked
    attention_rate: float  # the same of attention
    copy_rate: float  # bytes per second through the page cache
    unpack_rate: float = math.inf  # stored weights unpacked per second
    memory: int | None = None  # bytes that processes can have here in all; None: not asked

    @classmethod
    def measure(cls, config: Widths, tokens: int, compute: str) -> Machine:
        """About a fifth of a second of real kernels, on made-up 4-bit weights of the model's width."""
        t = min(tokens, MOST_TIMED)
        product, unpack = _rates_apart(config, t, compute)
        return cls(product, _attention_rate(config, t), _copy_rate(), unpack, memory_total())


class _Product:
    """A product with made-up weights of a model's width, with `outputs` rows at most."""

    def __init__(self, config: Widths, outputs: int, kind: TensorType = TensorType.Q4_0) -> None:
        self.outputs = min(config.intermediate_size, outputs) // 256 * 256 or 256
        self.inputs = -(-config.hidden_size // 32) * 32
        stored = np.zeros(self.outputs * kind.row_bytes(self.inputs), np.uint8)
        self._weight = kernels.Matrix(stored, int(kind), self.outputs, self.inputs)

    def of(self, rows: int, compute: str) -> Callable[[], object]:
        """What multiplies that many rows."""
        x = np.zeros((rows, self.inputs), kernels.OPERANDS[compute])
        out, linear = np.empty((rows, self.outputs), np.float32), backend.of(compute).ops.linear
        return lambda: linear(x, self._weight, out)


def product_rates(config: Widths, tokens: int, kind: TensorType) -> dict[str, float]:
    """compute -> operations per second of a product with stored weights: about a tenth of a second in all."""
    product, rows = _Product(config, PRODUCT_OUTPUTS, kind), min(tokens, PRODUCT_ROWS)
    seconds = _seconds(*(product.of(rows, compute) for compute in kernels.OPERANDS))
    operations = 2 * rows * product.inputs * product.outputs
    return {compute: operations / each for compute, each in zip(kernels.OPERANDS, seconds)}


def _rates_apart(config: Widths, tokens: int, compute: str) -> tuple[float, float]:
    """(operations per second once weights are unpacked, weights unpacked per second).

    A product takes operations / rate + weights / unpack rate: two lengths tell both.
    """
    product, few = _Product(config, 2048), max(8, tokens // 8)
    inputs, outputs = product.inputs, product.outputs
    long, short = _seconds(product.of(tokens, compute), product.of(few, compute))
    operations = 2 * inputs * outputs
    if tokens <= 2 * few or long <= 1.1 * short:
        return tokens * operations / long, math.inf
    per_row = (long - short) / (tokens - few)
    unpacking = max(0.0, short - few * per_row)
    return operations / per_row, outputs * inputs / unpacking if unpacking else math.inf


def _attention_rate(config: Widths, tokens: int) -> float:
    heads, kv_heads, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    q, k = (np.zeros((tokens, count * head_dim), np.float32) for count in (heads, kv_heads))
    out, cu = np.empty_like(q), np.array([0, tokens], np.int32)
    operations, _ = kernels.attention_cost(cu, cu, heads, kv_heads, head_dim)
    return operations / _seconds(lambda: kernels.attention(q, k, k, out, None, heads, kv_heads, cu))[0]


def _copy_rate() -> float:
    source, target = np.zeros(1 << 20, np.uint8), np.zeros(1 << 20, np.uint8)
    # a system call copies at about a quarter
    return source.nbytes / _seconds(lambda: np.copyto(target, source))[0] / 4


def memory_total(proc: Path = _PROC, groups: Path = _GROUPS) -> int:
    """Bytes of the machine, or less if the process's cgroup (v1 or v2) allows less: the same at any moment."""
    return min([_physical(), *(limit for limit, _ in _cgroup_limits(proc, groups))])


def memory_limit(proc: Path = _PROC, groups: Path = _GROUPS) -> int:
    """Bytes that this process can have now: its own and what is free, or less if its cgroup (v1 or v2) allows less.

    What other processes of the cgroup hold is not free; file pages are, since the system takes them back.
    """
    own_footprint, own_rss = kernels.memory_now()
    limits = [_physical()]
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemAvailable:"):
            limits.append(int(line.split()[1]) * 1024 + own_rss)
    limits += [limit - max(0, used - own_footprint) for limit, used in _cgroup_limits(proc, groups)]
    return min(limits)


def _physical() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_limits(proc: Path, groups: Path) -> Iterator[tuple[int, int]]:
    """(bytes allowed, bytes that only its processes can free) of this process's cgroup and of those around it."""
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
            used = sum(int(line.split()[1]) for line in _lines(folder / "memory.stat") if line.startswith(held))
            for text in _lines(folder / name):
                if text.isdecimal():  # or "max"
                    yield int(text), used
            if folder == root:
                break


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

    def settled(self, **what: Any) -> Baseline:
        """This baseline, with the size that was settled on when one like it was first measured here for `what`.

        Two processes that do the same differ by up to VARIATION. The size is that much more than the first of them
        held, so that none like it holds more, and all have the same plan. One that is larger, or much smaller, has a
        size of its own.
        """
        sizes = remembered.update(remembered.about(baseline=what), self._with_own)
        return replace(self, rss=next(size for size in sizes if self._is_like(size)))

    def _with_own(self, known: Any) -> list[int]:
        """The sizes that are `known`, with one for this baseline if there is none."""
        sizes = [size for size in known if type(size) is int] if isinstance(known, list) else []
        return sizes if any(map(self._is_like, sizes)) else [*sizes, self.rss + VARIATION][-_MOST_SIZES:]

    def _is_like(self, size: int) -> bool:
        return size - 2 * VARIATION <= self.rss <= size


def _lines(path: Path) -> Iterator[str]:
    """Of a file of the system, one at a time; none where the system has no such file."""
    with suppress(OSError), path.open(errors="replace") as file:
        yield from map(str.rstrip, file)


def _seconds(*calls: Callable[[], object]) -> list[float]:
    """The best of a few runs of each call, in turn, so that a slow moment of the machine meets all."""
    best = [math.inf] * len(calls)
    for number in range(5):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            if number:  # the first brings in code and pages
                best[i] = min(best[i], time.perf_counter() - start)
    return best
