"""Speeds of this machine, measured with the kernels; its memory; and the memory of a process without a model."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from featherback.core.cache import cache_folder
from featherback.core.system import machine
from featherback.engine import backend, kernels
from featherback.engine.formats.types import TensorType
from featherback.engine.host import remembered
from featherback.engine.host.cgroups import GROUPS, PROC, folders, lines

MOST_TIMED = 512
"""Maximum number of tokens with which operations are timed."""
PRODUCT_ROWS, PRODUCT_OUTPUTS = 128, 512
"""Largest sizes of the products whose speeds are compared."""
CODE_TO_COME = 1_000_000
"""Bytes of code that a run loads in addition to a rehearsed step: kernels of other tensor types, files, JSON."""
VARIATION = 500_000
"""Bytes: twice the largest difference seen between the baselines of a hundred fresh processes."""
_MOST_SIZES = 32
"""Maximum number of baselines of one kind that are remembered."""


class Widths(Protocol):
    """The sizes of a model that operations are timed with. Its configuration provides them."""

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
    """Speeds of the kernels in use."""

    product_rate: float  # floating-point operations per second of products with stored weights, without unpacking
    attention_rate: float  # floating-point operations per second of attention
    copy_rate: float  # bytes per second through the page cache
    unpack_rate: float = math.inf  # stored weights unpacked per second
    memory: int | None = None  # bytes that all processes here can have together; None: unknown
    disk_rate: float = math.inf  # bytes per second of the disk that holds the model, past the page cache

    @classmethod
    def measure(cls, config: Widths, tokens: int, compute: str) -> Machine:
        """Time the real kernels for about a fifth of a second, on made-up 4-bit weights of the model's width."""
        t = min(tokens, MOST_TIMED)
        product, unpack = _rates_apart(config, t, compute)
        return cls(product, _attention_rate(config, t), _copy_rate(), unpack, memory_total())


class _Product:
    """A product with made-up weights of a model's width, with at most `outputs` rows."""

    def __init__(self, config: Widths, outputs: int, kind: TensorType = TensorType.Q4_0) -> None:
        self.outputs = min(config.intermediate_size, outputs) // 256 * 256 or 256
        self.inputs = -(-config.hidden_size // 32) * 32
        stored = np.zeros(self.outputs * kind.row_bytes(self.inputs), np.uint8)
        self._weight = kernels.Matrix(stored, int(kind), self.outputs, self.inputs)

    def of(self, rows: int, compute: str) -> Callable[[], object]:
        """Return a function that multiplies `rows` rows by the weight."""
        x = np.zeros((rows, self.inputs), kernels.OPERANDS[compute])
        out, linear = np.empty((rows, self.outputs), np.float32), backend.of(compute).ops.linear
        return lambda: linear(x, self._weight, out)


def product_rates(config: Widths, tokens: int, kind: TensorType) -> dict[str, float]:
    """Return the operations per second of a product by compute, in about a tenth of a second altogether."""
    product, rows = _Product(config, PRODUCT_OUTPUTS, kind), min(tokens, PRODUCT_ROWS)
    seconds = _seconds(*(product.of(rows, compute) for compute in kernels.OPERANDS))
    operations = 2 * rows * product.inputs * product.outputs
    return {compute: operations / each for compute, each in zip(kernels.OPERANDS, seconds)}


def _rates_apart(config: Widths, tokens: int, compute: str) -> tuple[float, float]:
    """Return (operations per second without unpacking, weights unpacked per second).

    A product takes operations / rate + weights / unpack rate, so two lengths determine both.
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
    # a system call copies at about a quarter of this speed
    return source.nbytes / _seconds(lambda: np.copyto(target, source))[0] / 4


def memory_total(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Return the bytes of memory of the machine, or of the process's cgroup (v1 or v2) if that allows less.

    Constant.
    """
    return min([machine.physical_memory(), *(limit for limit, _ in _cgroup_limits(proc, groups))])


def memory_limit(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Return the bytes that this process can have now: its own plus what is free, within its cgroup (v1 or v2).

    Memory of other processes in the cgroup is not free. File pages are, because the system can take them back.
    """
    own_footprint, own_rss = kernels.memory_now()
    limits = [machine.physical_memory()]
    if (free := machine.available_memory()) is not None:
        limits.append(free + own_rss)
    for line in lines(proc / "meminfo"):
        if line.startswith("MemAvailable:"):
            limits.append(int(line.split()[1]) * 1024 + own_rss)
    limits += [limit - max(0, used - own_footprint) for limit, used in _cgroup_limits(proc, groups)]
    return min(limits)


def _cgroup_limits(proc: Path, groups: Path) -> Iterator[tuple[int, int]]:
    """Yield (bytes allowed, bytes that only its processes can free) for this process's cgroup and those around it."""
    for folder, version in folders("memory", proc, groups):
        name, held = [("memory.limit_in_bytes", "total_rss "), ("memory.max", "anon ")][version - 1]
        used = sum(int(line.split()[1]) for line in lines(folder / "memory.stat") if line.startswith(held))
        for text in lines(folder / name):
            if text.isdecimal():  # or "max"
                yield int(text), used


def is_ram_disk(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Return whether files under `path`, which need not exist yet, would be in memory (Linux: tmpfs or ramfs)."""
    home = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    return machine.is_ram_disk(home, mounts)


def disk_folder() -> Path:
    """Return a folder for temporary files that are not in memory: the system's, or else the cache."""
    usual = Path(tempfile.gettempdir())
    return cache_folder() if is_ram_disk(usual) else usual


@dataclass(frozen=True)
class Baseline:
    """Bytes that a training process holds before it has a model, including code that is loaded on first use."""

    footprint: int
    rss: int

    @classmethod
    def of_this_process(cls) -> Baseline:
        """Measure this process now."""
        footprint, rss = kernels.memory_now()
        return cls(footprint, rss + CODE_TO_COME)

    def settled(self, **what: Any) -> Baseline:
        """Return this baseline with the remembered size: that of the first similar baseline for `what` on this machine.

        Two processes that do the same work differ by up to VARIATION. The remembered size is the size of the first one
        plus VARIATION. So no similar process holds more, and all of them get the same plan. A baseline that is larger
        by up to VARIATION, as that of a process which asks again may be, is counted as so much larger: the budget that
        a refusal named is then enough. Any other baseline gets a size of its own.
        """
        sizes = remembered.update(remembered.about(baseline=what), self._with_own_size)
        return replace(self, rss=min(filter(None, map(self._counted_as, sizes))))

    def _with_own_size(self, known: Any) -> list[int]:
        """Return the `known` sizes, and one for this baseline if there is none."""
        sizes = [size for size in known if type(size) is int] if isinstance(known, list) else []
        return sizes if any(map(self._counted_as, sizes)) else [*sizes, self.rss + VARIATION][-_MOST_SIZES:]

    def _counted_as(self, size: int) -> int | None:
        """Return what a similar baseline is counted as; None if the remembered size is not similar."""
        if size - 2 * VARIATION <= self.rss <= size:
            return size
        return size + VARIATION if size < self.rss <= size + VARIATION else None


def _seconds(*calls: Callable[[], object]) -> list[float]:
    """Return the best time of a few runs of each call. The calls alternate, so that a slow moment affects all."""
    best = [math.inf] * len(calls)
    for number in range(5):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            if number:  # the first run loads code and pages
                best[i] = min(best[i], time.perf_counter() - start)
    return best
