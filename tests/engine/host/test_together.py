"""Two models in one process, each in its own thread, while other threads change process-wide state.

`make test-tsan` checks these threads for races. These tests check their results, and that none ends the process.
"""

from __future__ import annotations

import os
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
from featherback.methods.memory.plan import Plan
from featherback.models.adapter import LoRA

TOKENS = 40


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
