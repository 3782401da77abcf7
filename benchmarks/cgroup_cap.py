"""Train Qwen2.5-0.5B's shapes inside a memory cgroup that really is that small, page cache included, and compare.

    sudo .venv/bin/python benchmarks/cgroup_cap.py --limit 96MB --steps 20

One run directory is prepared and copied, so that both runs have the same plan. Before each run the page cache is
dropped. The losses must be equal bit for bit; the printed ratio is that of the steps' seconds. Linux, root, cgroup v1
or v2. Inside the cgroup the pages of the model's file count too: the system has to take them back while training.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from featherback.bench.synthetic import write_synthetic
from featherback.bench.training_run import random_sequences
from featherback.training.config import TrainConfig, parse_memory
from featherback.training.launch import prepare_run, worker_command
from featherback.training.run_directory import RunDirectory

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", default="96MB")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--model", default="qwen2.5-0.5b", help="a synthetic shape")
    parser.add_argument("--dir", type=Path, default=None, help="where files are made, on a disk")
    options = parser.parse_args()
    limit = parse_memory(options.limit)
    with tempfile.TemporaryDirectory(dir=options.dir) as place:
        model = write_synthetic(Path(place) / "model.gguf", options.model)
        config = TrainConfig(
            model=str(model),
            data="random tokens",
            out=f"{place}/free",
            steps=options.steps,
            memory=limit,
        )
        free = prepare_run(config, data=random_sequences(model, 256, options.steps))
        shutil.copytree(free.path, f"{place}/capped")
        capped = RunDirectory.open(f"{place}/capped")
        figures = {"free": _train(free, None), "capped": _train(capped, limit)}
    same = figures["free"].pop("losses") == figures["capped"].pop("losses")
    ratio = figures["capped"]["seconds"] / figures["free"]["seconds"]
    print(
        json.dumps({"limit_mb": limit / 1e6, **figures, "losses_equal": same, "time_ratio": ratio}, indent=1)
    )
    return 0 if same else 1


def _train(run: RunDirectory, limit: int | None) -> dict[str, object]:
    """Train with a cold page cache, in a cgroup of `limit` bytes if one is given."""
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3")
    command, environment = worker_command(run, "--json")
    start = time.perf_counter()
    if limit is None:
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        extra = {}
    else:
        extra = _in_cgroup(command, environment, limit)
    wall = time.perf_counter() - start
    lines = list(RunDirectory.open(run.path).metrics())
    summary = RunDirectory.open(run.path).record["summary"]
    return {
        "seconds": sum(line["seconds"] for line in lines),
        "wall": wall,
        "footprint_mb": summary["peak_footprint_mb"],
        "rss_mb": summary["peak_rss_mb"],
        "losses": [line["loss"] for line in lines],
        **extra,
    }


def _in_cgroup(command: list[str], environment: dict[str, str], limit: int) -> dict[str, object]:
    """Run in a fresh memory cgroup; its own account of the peak, and how often it hit the limit."""
    first = (V1 / "memory.limit_in_bytes").exists()
    group = (V1 if first else V2) / f"featherback-{limit}"
    group.mkdir(exist_ok=True)
    try:
        (group / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(limit))
        inside = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *command]
        done = subprocess.run(inside, env=environment, stdout=subprocess.DEVNULL)
        if done.returncode:
            sys.exit(f"the capped run ended with status {done.returncode}: was it killed for its memory?")
        peak = group / ("memory.max_usage_in_bytes" if first else "memory.peak")
        return {"cgroup_peak_mb": int(peak.read_text()) / 1e6}
    finally:
        group.rmdir()


if __name__ == "__main__":
    sys.exit(main())
