"""The type stub in the tree is the one the built extension would give."""

import subprocess
import sys
from pathlib import Path

import pytest

STUB = Path(__file__).parents[1] / "src" / "featherback" / "_native.pyi"


def test_stub_is_current(tmp_path: Path) -> None:
    pytest.importorskip("nanobind", reason="nanobind is a build requirement; an installed wheel may lack it")
    fresh = tmp_path / "_native.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "featherback._native", "-o", str(fresh)]
    subprocess.run(command, check=True)
    assert fresh.read_text() == STUB.read_text(), "run `make stub`"
