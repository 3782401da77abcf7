"""Run the whole `featherback train` command in a memory cgroup of a given size, page cache included.

    sudo .venv/bin/python -m benchmarks.cgroup_cap MODEL.gguf --limit 96MB --steps 20

Command, preparation and training are in the cgroup from their first instruction to their last, with conversations
as data (by default the demo's) and whatever vocabulary MODEL has. The run without a cap has the same plan, but its
weights are mapped as they are where memory is free. The page cache is dropped before each run. The losses must be equal
bit for bit, and so must the tokens. The printed ratios are those of the steps' seconds, which other work on the
machine disturbs, and of the CPU time of all processes, which it hardly does. Linux, root, cgroup v1 or v2.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from featherback.data import demo
from featherback.data.token_file import TokenFile
from featherback.models.hub.locate import locate
from featherback.runs import parse
from featherback.runs.config import TrainConfig
from featherback.runs.preparation import prepare_run
from featherback.runs.run_directory import RunDirectory
from featherback.runs.worker_process import worker_command

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
DEMO = Path(demo.__file__).with_name("train.jsonl")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a GGUF file, or a name that `featherback fetch` knows")
    parser.add_argument("--data", type=Path, default=DEMO)
    parser.add_argument("--limit", default="96MB")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--dir", type=Path, default=None, help="where files are made, on a disk")
    options = parser.parse_args()
    limit = parse.memory(options.limit)
    assert limit is not None
    with tempfile.TemporaryDirectory(dir=options.dir) as place:
        given = {"model": str(locate(options.model)), "data": str(options.data), "steps": options.steps}
        capped = _command(given, limit, f"{place}/capped")
        free = _again(given, limit, f"{place}/free", RunDirectory.open(f"{place}/capped"))
    same = {name: capped.pop(name) == free.pop(name) for name in ("losses", "tokens")}
    ratios = {f"{name}_ratio": capped[name] / free[name] for name in ("seconds", "cpu_seconds")}
    print(json.dumps({"limit_mb": limit / 1e6, "capped": capped, "free": free, "same": same, **ratios}, indent=1))
    return 0 if all(same.values()) else 1


def _command(given: dict[str, Any], limit: int, out: str) -> dict[str, Any]:
    """The command in the cgroup."""
    flags = {"data": given["data"], "steps": given["steps"], "out": out, "memory": f"{limit}B"}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    train = [sys.executable, "-m", "featherback", "train", given["model"], *words, "--json"]
    with _measured() as figures, _cgroup(limit) as group:
        subprocess.run(
            ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *train],
            stdout=subprocess.DEVNULL,
            check=True,
        )
        peak = next(p for n in ("memory.max_usage_in_bytes", "memory.peak") if (p := group / n).exists())
        figures["cgroup_peak_mb"] = int(peak.read_text()) / 1e6
    return figures | _found(RunDirectory.open(out))


def _again(given: dict[str, Any], limit: int, out: str, like: RunDirectory) -> dict[str, Any]:
    """The same run without a cap: prepared again, and trained with the same tiles, which the bits depend on."""
    with _measured() as figures:
        run = prepare_run(TrainConfig.of(**given, out=out, memory=limit))
        run.update(plan=replace(like.plan, weights="paged"))
        command, environment = worker_command(run, "--json")
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return figures | _found(RunDirectory.open(out))


def _found(run: RunDirectory) -> dict[str, Any]:
    lines, summary = list(run.metrics()), run.record.summary
    tokens = TokenFile(run.tokens / "train.tokens")
    return {
        "weights": run.plan.weights,
        "seconds": sum(line["seconds"] for line in lines),
        "median_step": summary.step_seconds,
        "preparation_rss_mb": run.record.data["train"].peak_rss_mb,
        "footprint_mb": summary.peak_footprint_mb,
        "rss_mb": summary.peak_rss_mb,
        "losses": [line["loss"] for line in lines],
        "tokens": b"".join(part.tobytes() for i in range(len(tokens)) for part in tokens.seq(i)),
    }


@contextmanager
def _measured() -> Iterator[dict[str, Any]]:
    """Seconds of the clock and of CPU time, of this process and those that it starts, from a cold page cache on."""
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3")
    figures: dict[str, Any] = {}
    start, before = time.perf_counter(), os.times()
    yield figures
    figures["wall"] = time.perf_counter() - start
    figures["cpu_seconds"] = sum(after - b for after, b in zip(os.times()[:4], before[:4], strict=True))


@contextmanager
def _cgroup(limit: int) -> Iterator[Path]:
    first = (V1 / "memory.limit_in_bytes").exists()
    group = (V1 if first else V2) / f"featherback-{limit}-{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(limit))
        yield group
    finally:
        group.rmdir()


if __name__ == "__main__":
    sys.exit(main())
