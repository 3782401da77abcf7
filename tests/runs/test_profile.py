"""The table of a profiled run."""

import numpy as np

from featherback.engine import kernels
from featherback.runs.callback import Callback
from featherback.runs.events import Note
from featherback.runs.profile import profiled, table


class Notes(Callback):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, event: Note) -> None:
        self.lines.append(event.text)


def test_every_kernel_call_is_counted() -> None:
    notes = Notes()
    x, out = np.ones((3, 8), np.float32), np.empty((3, 8), np.float32)
    with profiled(notes):
        for _ in range(5):
            kernels.cast(x, out)
        kernels.lora_in(x, np.ones((2, 8), np.float32), np.empty((3, 2), np.float32))
    calls = {line.split()[0]: line.split()[1] for line in notes.lines[1:-1]}
    assert calls == {"cast": "5", "lora_in": "1"}
    kernels.cast(x, out)
    assert kernels.profile_report()["cast"][0] == 5  # off again


def test_shares_add_up_and_rates_are_right() -> None:
    lines = table({"linear": (10, 1.5, 3e9), "cast": (4, 0.5, 0.0)}, total=4.0)
    assert lines[1].split() == ["linear", "10", "1.500", "37.5%", "2"]
    assert lines[2].split() == ["cast", "4", "0.500", "12.5%"]
    assert lines[3].split()[-2:] == ["2.000", "50.0%"]
