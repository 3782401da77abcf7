"""The type stubs in the tree are what the built extension, and the options of training, would give."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STUB = ROOT / "src" / "featherback" / "_native.pyi"
OPTIONS = ROOT / "src" / "featherback" / "runs" / "options.pyi"
PAGE = ROOT / "docs" / "options.md"


def test_stub_is_current(tmp_path: Path) -> None:
    pytest.importorskip("nanobind", reason="nanobind is a build requirement; an installed wheel may lack it")
    fresh = tmp_path / "_native.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "featherback._native", "-o", str(fresh)]
    subprocess.run(command, check=True)
    assert fresh.read_text() == STUB.read_text(), "run `make stub`"


@pytest.mark.parametrize(("tool", "made"), [("options_stub.py", OPTIONS), ("options_page.py", PAGE)])
def test_the_options_in_the_stub_and_on_the_page_are_those_of_the_registry(tool: str, made: Path) -> None:
    command = [sys.executable, ROOT / "tools" / tool]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert told == made.read_text(), "run `make stub`"


WELL = """
import featherback as fb
fb.train("m", "d", "o", lr=1e-3, seq_len=64, optimizer="adamw", beta1=0.9, map="a=b", start="x", memory=64, rank=8)
fb.plan("m", memory="64MB", learning_rate=1e-3)
"""


def test_a_type_checker_knows_the_options(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api", reason="mypy is an extra of development")
    wrong = {"leraning_rate=1": "leraning_rate", "optimizer='adamm'": "optimizer", "rank='a'": "rank"}
    lines = [f'fb.train("m", "d", "o", {each})' for each in wrong]
    program = tmp_path / "program.py"
    program.write_text(WELL + "\n".join(lines))
    out, err, _ = api.run(["--cache-dir", str(tmp_path / "cache"), "--follow-imports=silent", str(program)])
    errors = [line for line in out.splitlines() if ": error: " in line]
    assert len(errors) == len(wrong), out + err
    for line, name in zip(errors, wrong.values(), strict=True):
        assert name in line
