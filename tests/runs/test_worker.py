"""The training process is small: it loads nothing of the command line or of data preparation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from featherback.runs.config import TrainConfig
from featherback.runs.preparation import prepare_run
from featherback.runs.worker_process import worker_command
from tests.runs.conftest import SEQ_LEN, sequences

HEAVY = ("jinja2", "tokenizers", "safetensors", "huggingface_hub", "torch", "transformers", "gguf")

SPY = """
import json, sys
from featherback import worker
status = worker.main(sys.argv[1:])
print(json.dumps({"status": status, "modules": sorted(sys.modules)}))
"""


def test_the_worker_imports_nothing_heavy(tiny_path: Path, tmp_path: Path) -> None:
    config = TrainConfig(
        model=str(tiny_path), data="tokens", eval_data="tokens", out=str(tmp_path / "run"), seq_len=SEQ_LEN, steps=2
    )
    run = prepare_run(config, data=sequences(), eval_data=sequences(3, seed=1))
    command, environment = worker_command(run, "--json")
    arguments = [sys.executable, "-c", SPY, *command[3:]]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1]["status"] == 0
    assert [line["step"] for line in lines if "loss" in line] == [1, 2]
    loaded = {module.partition(".")[0] for module in lines[-1]["modules"]}
    assert not loaded & set(HEAVY)
    assert {m for m in lines[-1]["modules"] if m.startswith("featherback.cli")} == set()


def test_the_package_itself_imports_nothing() -> None:
    script = "import sys, featherback; print('numpy' in sys.modules, featherback.__version__)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "False"
