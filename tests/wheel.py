"""What is installed, at work: a tiny model is trained, exported and served. One line of JSON says what came of it.

python -m tests.wheel       (`make test-wheel`, which compares the line with the ordinary build's)

Nothing but the package, what it depends on and its extra `serve` is needed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

import featherback
from featherback.engine import kernels
from tests.support.tiny_chat import write_messages, write_tiny_chat

STEPS = 4


def main() -> None:
    command = Path(sys.executable).with_name("featherback")
    with TemporaryDirectory() as folder:
        model, data = write_tiny_chat(Path(folder, "model.gguf")), write_messages(Path(folder, "notes.jsonl"), 4)
        run = Path(folder, "run")
        # The memory of an emulator counts, too.
        options = f"--steps {STEPS} --lr 0.01 --compute fp32 --memory 256MB --seed 1".split()
        subprocess.run([command, "train", model, "--data", data, "--out", run, *options], stdout=sys.stderr, check=True)
        exported = Path(folder, "adapter.gguf")
        subprocess.run([command, "export", run, "--to", "gguf", "--out", exported], stdout=sys.stderr, check=True)
        files = [exported.read_bytes()[:4].decode(), *served(command, model, run)]
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    version = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    losses = [record["loss"] for record in records if "loss" in record]
    page = sorted(path.name for path in Path(featherback.__file__).with_name("web").glob("studio/static/*"))
    print(
        json.dumps({"version": version, "kernels": kernels.available(), "losses": losses, "page": page, "made": files})
    )


def served(command: Path, model: Path, run: Path) -> list[str]:
    """Return the names of the models that a server of the model and its adapter lists."""
    words = [command, "serve", model, "--adapter", f"notes={run}", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        try:
            address = next(found[0] for line in server.stdout if (found := re.search(r"http://[\d.:]+", line)))
            with urlopen(f"{address}/v1/models") as answer:
                return sorted(each["id"] for each in json.load(answer)["data"])
        finally:
            server.kill()


if __name__ == "__main__":
    main()
