"""The detected instruction sets are those that Linux reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from featherback.engine import kernels

CPUINFO = Path("/proc/cpuinfo")
AVX2 = {"avx2", "fma", "f16c"}
AVX512 = AVX2 | {"avx512f", "avx512dq", "avx512bw", "avx512vl"}
NEEDED = {
    "avx2": AVX2,
    "avx512": AVX512,
    "avx512bf16": AVX512 | {"avx512_bf16", "avx512_vnni"},
    "neon_bf16": {"asimd", "bf16"},
}


@pytest.mark.skipif(not CPUINFO.exists(), reason="only Linux lists a CPU's instructions in a file")
def test_the_sets_are_those_of_the_cpu() -> None:
    lines = [line.partition(":") for line in CPUINFO.read_text().splitlines()]
    has = next(set(value.split()) for name, _, value in lines if name.strip() in ("flags", "Features"))
    told = ["reference", "portable", *(name for name, needed in NEEDED.items() if needed <= has)]
    assert kernels.available() == told
