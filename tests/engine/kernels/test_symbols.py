"""The kernels are compiled once per instruction set. If two of those builds shared a symbol, the linker would keep one
copy for both, and a CPU without AVX-512 might be handed AVX-512 code."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OBJECTS = sorted(ROOT.glob("build/**/featherback_*.dir/csrc/simd/*.o"))


def shared_symbols(path: Path) -> list[str]:
    """Names an object lets the linker merge with another's, outside its own instruction set's namespace."""
    own = path.parents[2].name.removeprefix("featherback_").removesuffix(".dir")
    namespace = f"{len(own)}{own}"  # as the compiler writes it: not every name can be demangled
    lines = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout.splitlines()
    weak = [line for line in lines if line[17:18] in ("W", "V", "u")]
    return [line for line in weak if namespace not in line and "__gxx_personality" not in line]


@pytest.mark.skipif(shutil.which("nm") is None or not OBJECTS, reason="needs nm and the build's object files")
def test_no_symbol_is_shared_between_instruction_sets() -> None:
    found = {f"{path.parents[2].name}/{path.name}": shared_symbols(path) for path in OBJECTS}
    assert {name: symbols for name, symbols in found.items() if symbols} == {}
