"""Does a run learn as much as PEFT does? Held-out perplexity of a text after the same steps.

    .venv/bin/python -m benchmarks.perplexity model.gguf wikitext-2/valid.txt wikitext-2/test.txt

`featherback train` with its defaults, but for --steps and --eval-every; then transformers + PEFT with the same pieces
of text in each step, learning rates, rank, clipping and weight decay. The two begin with other random matrices, and
compute in other types.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import job
from benchmarks.markdown import table
from featherback.data.batch import IGNORE
from featherback.data.token_file import TokenFile
from featherback.runs.run_directory import RunDirectory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("train", type=Path)
    parser.add_argument("held_out", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp32"], help="PEFT's")
    parser.add_argument("--pieces", type=int, default=64, help="of the held-out text, of 256 tokens")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        held_out = folder / "held-out.txt"
        held_out.write_text(options.held_out.read_text()[: options.pieces * 4 * 256])  # four bytes a token
        out = folder / "run"
        words = [f"--data={options.train}", f"--eval-data={held_out}", f"--out={out}"]
        words += [f"--steps={options.steps}", f"--eval-every={options.steps}", "--samples=0", "--keep=last"]
        command = [sys.executable, "-m", "featherback", "train", str(options.model), *words]
        subprocess.run(command, check=True)
        run = RunDirectory.open(out)
        request, supervised = job.same_steps(run, options.steps)
        for name, tokens in (("data", "train"), ("held_out", "eval")):
            request[name] = str(write_tokens(run.tokens / f"{tokens}.tokens", folder / f"{tokens}.jsonl"))
        unpacked = folder / "unpacked"
        job.unpack(options.model, unpacked)
        request |= {"model": str(unpacked), "dtype": options.dtype, "checkpointing": False}
        theirs = job.train_peft(job.Chats("text", out, out, 256, 1), request, folder, supervised)
        summary = run.record.summary
        rows = [
            ["Featherback", summary.first_eval_loss, summary.final_eval_loss],
            [theirs.what, theirs.before, theirs.after],
        ]
    lines = [[name, *(f"{math.exp(loss):.3f}" for loss in losses)] for name, *losses in rows]
    print(table(["perplexity", "before", f"after {options.steps} steps"], lines))


def write_tokens(source: Path, path: Path) -> Path:
    """A token file as lines of JSON."""
    tokens = TokenFile(source)
    with path.open("w") as file:
        for index in range(len(tokens)):
            ids, learnt = tokens.seq(index)
            labels = np.where(learnt, ids, IGNORE)
            labels[0] = IGNORE  # nothing predicts it
            file.write(json.dumps({"tokens": ids.tolist(), "labels": labels.tolist()}) + "\n")
    return path


if __name__ == "__main__":
    main()
