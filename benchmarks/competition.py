"""`python -m benchmarks competition`: training, decoding and serving while other processes use the processor.

Ratios to the idle machine. Each build of the kernels has its own process, which sleeps while another one is measured.
Builds and conditions take turns in each round, so that a ratio compares neighbours in time.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.markdown import table

TOKENS, CONTEXT, ANSWER, CLIENTS = 256, 256, 24, 8
ENDLESS = [sys.executable, "-c", "while True: pass"]
V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
PERIOD = 100_000  # microseconds
AUTOGROUP = Path("/proc/sys/kernel/sched_autogroup_enabled")


@dataclass(frozen=True)
class Condition:
    """What uses the processor besides the measured process."""

    name: str
    competitors: int = 0
    nice: int = 0
    quota: float = 0  # cores; 0: no limit
    threads: int | None = None  # None: the default


IDLE = Condition("idle")
CONDITIONS = (
    IDLE,
    Condition("one competitor, nice 19", 1, 19),
    Condition("one competitor, nice 0", 1, 0),
    Condition("eight competitors, nice 19", 8, 19),
    Condition("quota of 1.5 cores", quota=1.5),
    Condition("quota of 1.5 cores, one thread", quota=1.5, threads=1),
)


def run(
    model: Path, builds: dict[str, Path], works: list[str], rounds: int, conditions: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure each work with each build. `builds`: label -> compiled kernels. `conditions`: how many of them."""
    if AUTOGROUP.exists() and AUTOGROUP.read_text().strip() != "0":
        say("warning: sched_autogroup_enabled is 1, so nice does not act between sessions")
    parts, found = [], {}
    for work in works:
        with ExitStack() as stack:
            sides = {label: stack.enter_context(_side(work, model, path)) for label, path in builds.items()}
            seconds: dict[tuple[str, str], list[float]] = {}
            others = []
            for number in range(rounds):
                order = list(sides.items())[:: -1 if number % 2 else 1]
                for condition in CONDITIONS[:conditions]:
                    for label, side in order:
                        took, share = side.measure(condition)
                        seconds.setdefault((condition.name, label), []).append(took)
                        if condition is IDLE:
                            others.append(share)
                say(f"{work}: round {number + 1} of {rounds}")
        first = next(iter(builds))
        lines = []
        for condition in CONDITIONS[:conditions]:
            mine = {label: seconds[condition.name, label] for label in builds}
            line = [condition.name]
            for label in builds:
                idle = median(a / b for a, b in zip(mine[label], seconds[IDLE.name, label], strict=True))
                line += [f"{median(mine[label]):.3f}", f"{idle:.2f}"]
            if len(builds) > 1:
                line.append(f"{median(a / b for a, b in zip(mine[label], mine[first], strict=True)):.2f}")
            lines.append(line)
        head = [f"{work} ({median(others):.0%} of the processor used by others while idle)"]
        head += [f"{label}, {what}" for label in builds for what in ("s", "ratio to idle")]
        head += [f"{label} / {first}"] if len(builds) > 1 else []
        parts.append(table(head, lines))
        found[work] = {f"{name}, {label}": values for (name, label), values in seconds.items()}
    return {"seconds": found, "markdown": "\n\n".join(parts)}


@dataclass
class Side:
    """A process that does one work with one build."""

    process: Any
    pipe: Connection

    def measure(self, condition: Condition) -> tuple[float, float]:
        """Seconds of one piece of work, and the share of the processor that others used meanwhile."""
        with _competitors(condition.competitors, condition.nice), _quota(self.process.pid, condition.quota):
            before, start = _busy(), time.perf_counter()
            self.pipe.send(condition.threads or 0)
            seconds, own = self.pipe.recv()
            whole = (time.perf_counter() - start) * len(os.sched_getaffinity(0))
            return seconds, max(0.0, _busy() - before - own) / whole


@contextmanager
def _side(work: str, model: Path, library: Path) -> Iterator[Side]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(work, str(model), str(library), theirs), daemon=True)
    process.start()
    ours.recv()
    yield Side(process, ours)
    ours.send(None)
    process.join()


def _serve(work: str, model: str, library: str, pipe: Connection) -> None:
    """Do a piece of work whenever asked, and answer with its seconds and those of the processor."""
    spec = importlib.util.spec_from_file_location("featherback._native", library)
    assert spec
    assert spec.loader
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[spec.name])
    from featherback.engine import kernels

    with tempfile.TemporaryDirectory(prefix="competition-") as folder:
        piece = WORKS[work](Path(model), Path(folder))
        piece()
        pipe.send(None)
        while (threads := pipe.recv()) is not None:
            kernels.set_threads(threads or kernels.default_threads())
            start, own = time.perf_counter(), time.process_time()
            piece()
            pipe.send((time.perf_counter() - start, time.process_time() - own))


def _training(least: bool) -> Callable[[Path, Path], Callable[[], object]]:
    """A training step at the least budget or the default one."""

    def opened(path: Path, folder: Path) -> Callable[[], object]:
        from benchmarks.steps import job_of, plan_of
        from benchmarks.training_run import random_sequences
        from featherback import methods, models, optim
        from featherback.data.batch import Batch
        from featherback.engine.host.paged import PagedArray
        from featherback.models.adapter import LoRA

        job = job_of(path, TOKENS)
        plan = plan_of(job)
        if least:
            assert plan.least_mb
            plan = plan_of(job, plan.least_mb * 10**6)
        model = models.load(path)
        states = folder if plan.states == "file" else None
        adapter = LoRA(model, 8, path=states and states / "parameters.f32")
        optimizer = optim.create("adamw", adapter.parameters, adapter.layout.slots, place=states)
        gradients = PagedArray(adapter.parameters.layers, adapter.parameters.size, states and states / "gradients.f32")
        method = methods.create("mesp", model, adapter, plan, folder)
        batch = Batch.from_sequences([row.tolist() for row in random_sequences(path, TOKENS, 1)])

        def step() -> None:
            gradients.clear()
            method.gradients(batch, 1 / batch.n_targets, gradients)
            optimizer.step(gradients, 1e-4)

        return step

    return opened


def _decoding(path: Path, folder: Path) -> Callable[[], object]:
    """One token after another."""
    from featherback import models
    from featherback.infer import CHAT_DECODE
    from featherback.infer.decoder import Decoder
    from featherback.infer.layout import Layout

    decoder = Decoder(models.load(path), None, CONTEXT, "bf16", Layout(decode=CHAT_DECODE))

    def answer() -> None:
        decoder.rewind(0)
        for token in range(100, 100 + ANSWER):
            decoder.forward([token])

    return answer


def _serving(path: Path, folder: Path) -> Callable[[], object]:
    """Answers to several requests at once."""
    from featherback import models
    from featherback.infer import CHAT_DECODE
    from featherback.infer.batching import Batcher, Request
    from featherback.infer.layout import Layout
    from featherback.infer.sampler import Sampler

    batcher = Batcher(models.load(path), capacity=CONTEXT, layout=Layout(decode=CHAT_DECODE))

    def answers() -> None:
        prompts = [[7 * i + 13 * number + 100 for i in range(4)] for number in range(CLIENTS)]
        for ticket in [batcher.submit(Request(prompt, Sampler(), ANSWER)) for prompt in prompts]:
            list(ticket)

    return answers


def _peft(path: Path, folder: Path) -> Callable[[], object]:
    """A training step of transformers + PEFT without checkpointing, of the same shapes as the default model."""
    from benchmarks.peers import shapes_for_transformers
    from benchmarks.peft_step import prepared

    request = {"config": shapes_for_transformers("qwen2.5-0.5b"), "tokens": TOKENS, "rank": 8, "dtype": "bf16"}
    return prepared({**request, "checkpointing": False, "threads": len(os.sched_getaffinity(0))})


WORKS: dict[str, Callable[[Path, Path], Callable[[], object]]] = {
    "training, default budget": _training(least=False),
    "training, least budget": _training(least=True),
    "decoding": _decoding,
    "serving eight": _serving,
    "PEFT": _peft,
}


@contextmanager
def _competitors(count: int, nice: int) -> Iterator[None]:
    started = [subprocess.Popen(["nice", "-n", str(nice), *ENDLESS]) for _ in range(count)]
    time.sleep(0.3 if count else 0.05)  # Python has started
    try:
        yield
    finally:
        for process in started:
            process.send_signal(signal.SIGKILL)
        for process in started:
            process.wait()


@contextmanager
def _quota(pid: int, cores: float) -> Iterator[None]:
    """Let the process use so many cores."""
    if not cores:
        yield
        return
    first = (V1 / "cpu.cfs_quota_us").exists()
    root = V1 if first else V2
    group = root / f"featherback-{pid}"
    group.mkdir()
    try:
        name, text = ("cpu.cfs_quota_us", "{0}") if first else ("cpu.max", "{0} {1}")
        (group / name).write_text(text.format(int(cores * PERIOD), PERIOD))
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        (root / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def _busy() -> float:
    """Seconds that all processors have worked."""
    fields = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")
