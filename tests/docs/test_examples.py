"""Each script in `examples/` runs as it is, with a tiny model, and prints what its reader waits for."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.support.tiny_chat import write_tiny_chat

EXAMPLES = ROOT / "examples"
PRINTED = {
    "first_fine_tune": r"before: .*after: .*held-out loss: \d+\.\d+ -> \d+\.\d+",
    "custom_data": r"columns: +\d+\.\d+.*conversations: \d+\.\d+.*tokens: +\d+\.\d+",
    "callbacks": r"step \d+: held-out loss \d+\.\d+.*\d+ steps; loss \d+\.\d+ -> \d+\.\d+",
    "gradients": r"loss \d+\.\d+ nats.*mebp: cosine with MeSP 1\.000000.*mezo: cosine with MeSP -?0\.[01]",
    "continue_adapter": r"greetings: loss \d+\.\d+ after.*farewells: loss \d+\.\d+ after",
}


def test_every_example_is_listed_and_tested() -> None:
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    listed = set(re.findall(r"\((\w+)\.py\)", (EXAMPLES / "README.md").read_text(encoding="utf-8")))
    assert scripts == listed == set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_examples(name: str, home: Path, tmp_path: Path) -> None:
    """In a process of its own, as for a reader: its budget is that of a process which holds nothing else."""
    model = write_tiny_chat(tmp_path / "model.gguf")
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", model], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(PRINTED[name], done.stdout, re.DOTALL), done.stdout
