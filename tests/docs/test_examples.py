"""Each script and notebook in `examples/` runs as it is, with a tiny model, and prints what its reader waits for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.support.tiers import some
from tests.support.tiny_chat import write_tiny_chat

EXAMPLES = ROOT / "examples"
PRINTED = {
    "first_fine_tune": r"before: .*after: .*held-out loss: \d+\.\d+ -> \d+\.\d+",
    "custom_data": r"columns: +\d+\.\d+.*conversations: \d+\.\d+.*tokens: +\d+\.\d+",
    "callbacks": r"step \d+: held-out loss \d+\.\d+.*\d+ steps; loss \d+\.\d+ -> \d+\.\d+",
    "gradients": r"loss \d+\.\d+ nats.*mebp: cosine with MeSP 1\.000000.*mezo: cosine with MeSP -?0\.[01]",
    "continue_adapter": r"greetings: loss \d+\.\d+ after.*farewells: loss \d+\.\d+ after",
}
NOTEBOOKS = {"custom_loop": r"loss (\d+\.\d+) -> (\d+\.\d+)\n.*saved: custom-loop-adapter"}


def test_every_example_is_listed_and_tested() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for ending, tested in (("py", PRINTED), ("ipynb", NOTEBOOKS)):
        found = {path.stem for path in EXAMPLES.glob(f"*.{ending}")}
        assert found == set(re.findall(rf"\((\w+)\.{ending}\)", text)) == set(tested)


@pytest.mark.parametrize("name", some(PRINTED, 1))
def test_examples(name: str, home: Path, tmp_path: Path) -> None:
    """In a process of its own, as for a reader: its budget is that of a process which holds nothing else."""
    model = write_tiny_chat(tmp_path / "model.gguf")
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", model], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(PRINTED[name], done.stdout, re.DOTALL), done.stdout


@pytest.mark.full("starts Python; the first example stands for it")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks(name: str, home: Path, tmp_path: Path) -> None:
    """The cells run in order. No notebook holds results, which would age."""
    model = write_tiny_chat(tmp_path / "model.gguf")
    cells = json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in code)
    program = "\n".join("".join(cell["source"]) for cell in code)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env={**os.environ, "MODEL": str(model)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    printed = re.search(NOTEBOOKS[name], done.stdout, re.DOTALL)
    assert printed, done.stdout
    assert float(printed[1]) - float(printed[2]) > 1  # nats per token
