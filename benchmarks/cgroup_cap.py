"""Train Qwen2.5-0.5B's shapes inside a memory cgroup that really is that small, page cache included, and compare.

    sudo .venv/bin/python benchmarks/cgroup_cap.py --limit 96MB --steps 20

The run is planned inside the cgroup, where the planner sees the limit. The run without a cap has the same tiles, and
its weights mapped as they are where memory is free. Before each the page cache is dropped. The losses must be equal
bit for bit; the printed ratio is that of the steps' seconds. Linux, root, cgroup v1 or v2.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
    parser.add_argument("--model", default="qwen2.5-0.5b", help="a synthetic shape, or with --prepare a file")
    parser.add_argument("--dir", type=Path, default=None, help="where files are made, on a disk")
    parser.add_argument(
        "--prepare", default=None, help="only make this run directory, in the cgroup one is in"
    )
    options = parser.parse_args()
    limit = parse_memory(options.limit)
    assert limit is not None
    if options.prepare:
        _prepare(Path(options.model), options.prepare, options.steps, limit)
        return 0
    with tempfile.TemporaryDirectory(dir=options.dir) as place:
        model, out = write_synthetic(Path(place) / "model.gguf", options.model), f"{place}/capped"
        again = [sys.executable, __file__, "--model", str(model), "--steps", str(options.steps)]
        _run([*again, "--limit", options.limit, "--prepare", out], limit)
        shutil.copytree(out, f"{place}/free")
        free, capped = RunDirectory.open(f"{place}/free"), RunDirectory.open(out)
        free.update(plan={**free.record["plan"], "weights": "paged"})
        figures = {"free": _train(free, None), "capped": _train(capped, limit)}
    same = figures["free"].pop("losses") == figures["capped"].pop("losses")
    ratio = figures["capped"]["seconds"] / figures["free"]["seconds"]
    print(
        json.dumps({"limit_mb": limit / 1e6, **figures, "losses_equal": same, "time_ratio": ratio}, indent=1)
    )
    return 0 if same else 1


def _prepare(model: Path, out: str, steps: int, limit: int) -> None:
    config = TrainConfig(model=str(model), data="random tokens", out=out, steps=steps, memory=limit)
    prepare_run(config, data=random_sequences(model, 256, steps))


def _train(run: RunDirectory, limit: int | None) -> dict[str, object]:
    """Train with a cold page cache, in a cgroup of `limit` bytes if one is given."""
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3")
    command, environment = worker_command(run, "--json")
    start = time.perf_counter()
    extra = _run(command, limit, environment)
    wall = time.perf_counter() - start
    done = RunDirectory.open(run.path)
    lines, summary = list(done.metrics()), done.record["summary"]
    return {
        "weights": done.plan.weights,
        "seconds": sum(line["seconds"] for line in lines),
        "median_step": summary["step_seconds"],
        "wall": wall,
        "footprint_mb": summary["peak_footprint_mb"],
        "rss_mb": summary["peak_rss_mb"],
        "losses": [line["loss"] for line in lines],
        **extra,
    }


def _run(
    command: list[str], limit: int | None, environment: dict[str, str] | None = None
) -> dict[str, object]:
    """Run a command, in a fresh memory cgroup if a limit is given; that cgroup's own account of its peak."""
    with _cgroup(limit) as group:
        inside = [] if group is None else ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
        done = subprocess.run([*inside, *command], env=environment, stdout=subprocess.DEVNULL)
        if done.returncode:
            sys.exit(
                f"{' '.join(command)} ended with status {done.returncode}: was it killed for its memory?"
            )
        if group is None:
            return {}
        peak = next(p for n in ("memory.max_usage_in_bytes", "memory.peak") if (p := group / n).exists())
        return {"cgroup_peak_mb": int(peak.read_text()) / 1e6}


@contextmanager
def _cgroup(limit: int | None) -> Iterator[Path | None]:
    if limit is None:
        yield None
        return
    first = (V1 / "memory.limit_in_bytes").exists()
    group = (V1 if first else V2) / f"featherback-{limit}"
    group.mkdir(exist_ok=True)
    try:
        (group / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(limit))
        yield group
    finally:
        group.rmdir()


if __name__ == "__main__":
    sys.exit(main())
