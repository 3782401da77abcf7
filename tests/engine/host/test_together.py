"""Two models in one process, each in its own thread, while other threads change process-wide state.

`make test-tsan` checks these threads for races. These tests check their results, and that none ends the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.support.tiny_models import TINY_LLAMA, TINY_QWEN2, tiny, write_tiny

from featherback import methods, models
from featherback.data.batch import Batch
from featherback.engine import kernels
from featherback.engine.host.maps import MapWatch
from featherback.engine.host.meter import Meter
from featherback.engine.host.paged import PagedArray
from featherback.infer.decoder import Decoder
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import LoRA

TOKENS = 40
PROCESSORS = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


@pytest.fixture(autouse=True)
def settings_restored() -> Iterator[None]:
    threads, kernel_set = kernels.threads(), kernels.current()
    yield
    kernels.set_threads(threads)
    kernels.use(kernel_set)
    kernels.profile(False)


def gradients(path: Path, weights: str) -> tuple[float, bytes]:
    """Open a model, compute the loss of a batch and the adapter's gradients, and close the model."""
    with closing(models.load(path)) as model:
        adapter = LoRA(model, 4)
        batch = Batch.from_sequences([np.arange(TOKENS) % model.config.vocab_size])
        plan = Plan(tokens=TOKENS, compute="fp32", mlp_tile=256, vocab_tile=48, weights=weights)
        found = PagedArray(adapter.parameters.layers, adapter.layer_size)
        method = methods.create("mesp", model, adapter, plan)
        loss = method.gradients(batch, 1 / batch.n_targets, found)
        method.close()
        return loss, b"".join(array.tobytes() for array in adapter.state(found).values())


def at_once(*bodies: Callable[[], None]) -> None:
    """Run all in threads, and raise the first error."""
    errors: list[BaseException] = []

    def guarded(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_two_models_are_opened_used_and_closed(tmp_path: Path) -> None:
    paths = [
        write_tiny(tmp_path / "one.gguf", tiny(TINY_LLAMA, num_hidden_layers=3)),
        write_tiny(tmp_path / "two.gguf", tiny(TINY_QWEN2, num_hidden_layers=3)),
    ]
    alone = [gradients(path, "resident") for path in paths]
    finished: list[int] = []

    def work(which: int, ways: list[str]) -> Callable[[], None]:
        def body() -> None:
            try:
                for way in ways:
                    assert gradients(paths[which], way) == alone[which]
            finally:
                finished.append(which)

        return body

    def around() -> None:
        meter = Meter()
        while len(finished) < 2:
            meter.start()
            with closing(models.load(paths[0])) as model, MapWatch(model.maps) as watch:
                for count in (1, 2, 3):
                    kernels.set_threads(count)
                    kernels.profile(count != 2)
                    assert all(calls > 0 for calls, _, _ in kernels.profile_report().values())
                assert meter.peak_rss_mb > 0
                watch.check()
            meter.stop()
            time.sleep(0.01)  # let the models make progress

    at_once(work(0, ["paged", "streamed", "by_matrix"]), work(1, ["streamed", "by_matrix", "paged"]), around, around)


def affinities() -> set[frozenset[int]]:
    """Return where the threads of this process may run (Linux)."""
    tasks = os.listdir("/proc/self/task") if PROCESSORS else []
    return {frozenset(os.sched_getaffinity(int(thread))) for thread in tasks}


@pytest.fixture
def competitors() -> Iterator[None]:
    """Processes that compute without end, of the same and of the lowest priority."""
    endless = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen([*start, *endless]) for start in ([], [], ["nice", "-n", "19"])]
    yield
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("competitors")
def test_bits_do_not_depend_on_threads_or_competitors(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "m.gguf", tiny(TINY_LLAMA, hidden_size=320, intermediate_size=704))
    found, before = set(), affinities()
    for count in (1, 2, 3, 7, 2):
        kernels.set_threads(count)
        logits = Decoder(models.load(path), None, compute="bf16").forward(list(range(TOKENS)), every=True)
        found.add((gradients(path, "paged"), logits.tobytes()))
    assert len(found) == 1
    assert affinities() == before  # threads were moved, and may go where they could


@pytest.mark.usefixtures("competitors")
@pytest.mark.skipif(len(PROCESSORS) < 2, reason="needs Linux and two processors")
def test_threads_stay_where_the_user_put_them() -> None:
    first, second = sorted(PROCESSORS)[:2]
    kernels.set_threads(1)
    before = set(os.listdir("/proc/self/task"))
    kernels.set_threads(3)
    places = {thread: {second} for thread in set(os.listdir("/proc/self/task")) - before}
    places[str(threading.get_native_id())] = {first}
    try:
        for thread, place in places.items():
            os.sched_setaffinity(int(thread), place)
        x, out = np.ones((259, 320), np.float32), np.empty((259, 700), np.float32)
        weight = kernels.Matrix(np.ones(700 * 320, np.float32).view(np.uint8), 0, 700, 320)
        for _ in range(30):
            kernels.linear(x, weight, out=out)
        assert {thread: os.sched_getaffinity(int(thread)) for thread in places} == places
    finally:
        os.sched_setaffinity(0, PROCESSORS)


def test_two_threads_start_and_stop_the_meter() -> None:
    """It used to end the process: `terminate called without an active exception`."""

    def measure() -> None:
        for _ in range(100):
            kernels.meter_start()
            assert kernels.meter_peak()[1] > 0
            kernels.meter_stop()

    at_once(measure, measure, measure)


def test_two_threads_close_one_read_ahead(tmp_path: Path) -> None:
    """Both used to wait for its thread, one of them for ever."""
    (tmp_path / "file").write_bytes(bytes(1 << 16))
    file = os.open(tmp_path / "file", os.O_RDONLY)
    ahead = kernels.ReadAhead()

    def ask_and_close() -> None:
        for _ in range(300):
            ahead.file(file, 0, 1 << 16)
            ahead.close()

    at_once(ask_and_close, ask_and_close)
    os.close(file)


def test_a_profile_begun_within_an_operation_leaves_it_out() -> None:
    """The operation's time used to count from the start of the machine."""
    x, began, working = np.ones((64, 4096), np.float32), time.monotonic(), True

    def compute() -> None:
        out = np.empty_like(x)
        while working:
            kernels.cast(x, out)

    def profile() -> None:
        nonlocal working
        try:
            for _ in range(100):
                kernels.profile(True)
                while not (report := kernels.profile_report()):
                    time.sleep(0.001)
                kernels.profile(False)
                assert all(seconds <= time.monotonic() - began for _, seconds, _ in report.values())
        finally:
            working = False

    at_once(compute, profile)
