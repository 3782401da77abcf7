"""What is installed, at work: a tiny model is trained, and one line of JSON says what with and what came of it.

python -m tests.wheel       (`make test-wheel`, which compares the line with the ordinary build's)

Nothing but the package and what it depends on is needed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import featherback
from featherback.engine import kernels
from tests.support.tiny_chat import write_messages, write_tiny_chat

STEPS = 4


def main() -> None:
    command = Path(sys.executable).with_name("featherback")
    with TemporaryDirectory() as folder:
        model, data = write_tiny_chat(Path(folder, "model.gguf")), write_messages(Path(folder, "notes.jsonl"))
        run = Path(folder, "run")
        # The memory of an emulator counts, too.
        options = f"--steps {STEPS} --lr 0.01 --compute fp32 --memory 256MB --seed 1".split()
        subprocess.run([command, "train", model, "--data", data, "--out", run, *options], stdout=sys.stderr, check=True)
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    version = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    losses = [record["loss"] for record in records if "loss" in record]
    page = sorted(path.name for path in Path(featherback.__file__).with_name("web").glob("studio/static/*"))
    print(json.dumps({"version": version, "kernels": kernels.available(), "losses": losses, "page": page}))


if __name__ == "__main__":
    main()
