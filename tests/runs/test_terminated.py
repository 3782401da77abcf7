"""A training command that is killed again and again goes on to the same bits. On Windows, TerminateProcess kills it.

FEATHERBACK_KILLS says how often; `python -m tools.windows kill` kills 60 times.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from tests.runs import runs

KILLS = int(os.environ.get("FEATHERBACK_KILLS", "2"))
STEPS = 200 * KILLS


def test_killed_at_random_moments(tmp_path: Path) -> None:
    _, out, words = runs.whole_command(tmp_path, STEPS)
    words = [sys.executable, "-m", "featherback", *words, "--save-every", "20", "--threads", "1"]
    whole = tmp_path / "whole"
    subprocess.run([whole if word == str(out) else word for word in words], check=True, capture_output=True)
    chance, deaths, again = random.Random(0), 0, list[str]()
    while deaths < KILLS:
        process = subprocess.Popen([*words, *again], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if not again or chance.random() < 0.7:  # else it may die while it starts
            before = len(_losses(out))
            runs.wait_for(lambda p=process, n=before: p.poll() is not None or len(_losses(out)) > n, process)
        time.sleep(chance.uniform(0, 0.3))
        process.kill()
        _, complaint = process.communicate(timeout=runs.PATIENCE)
        assert process.returncode, f"it ended before it was killed {KILLS} times, after {deaths}"
        assert "error" not in complaint
        deaths += 1
        again = ["--resume"]
    subprocess.run([*words, "--resume"], check=True, capture_output=True)
    assert _losses(out) == _losses(whole)
    assert (out / "adapter_model.safetensors").read_bytes() == (whole / "adapter_model.safetensors").read_bytes()


def _losses(run: Path) -> list[float]:
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines()
    except OSError:
        return []
    return [json.loads(line).get("loss") for line in lines if line.endswith("}")]
