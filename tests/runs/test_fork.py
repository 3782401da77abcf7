"""A child that is forked while another thread trains can train too, without waiting for its parent's threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.tiny_models import write_tiny

CODE = """
import os, sys, threading, time
from pathlib import Path
import featherback as fb

model, folder = sys.argv[1], Path(sys.argv[2])
began = threading.Event()

def train(name, steps):
    fb.train(model, [[*range(1, 40)]] * 8, folder / name, steps=steps, seq_len=64, rank=2, threads=2, progress=False)

thread = threading.Thread(target=train, args=("parent", 100_000), daemon=True)
thread.start()
while not (folder / "parent" / "metrics.jsonl").exists():
    time.sleep(0.05)
if os.fork() == 0:
    train("child", 2)
    os._exit(7)
os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_child_forked_beside_a_training_thread(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "m.gguf")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE, str(model), str(tmp_path)], timeout=300, check=False
    )
    assert done.returncode == 7
