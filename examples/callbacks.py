"""Watch a run with a callback, keep the losses, and stop it with a rule of your own.

python callbacks.py [MODEL]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import featherback as fb
from featherback.runs import events

PAIRS = [(f"What is {n} times two?", f"It is {2 * n}.") for n in range(2, 22)]


class Losses(fb.Callback):
    """Collects the loss of every step, and reports each held-out loss."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def step(self, event: events.Step) -> None:
        self.losses.append(event.loss)

    def evaluation(self, event: events.Evaluation) -> None:
        print(f"step {event.step}: held-out loss {event.eval_loss:.3f}{' (best)' if event.best else ''}")


class StopBelow(fb.Callback):
    """Ends the run once the held-out loss is low enough. The best adapter so far is kept."""

    def __init__(self, loss: float) -> None:
        self.loss = loss

    def evaluation(self, event: events.Evaluation) -> None:
        if event.eval_loss < self.loss:
            raise KeyboardInterrupt  # as Ctrl-C: saves, then stops


def main(model_name: str = "smollm2-135m") -> None:
    model, seen = fb.load(model_name), Losses()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        try:
            fb.train(
                model,
                PAIRS[4:],
                out,
                eval_data=PAIRS[:4],
                eval_every=4,
                steps=20,
                memory="1GB",
                progress=False,
                callbacks=[seen, StopBelow(0.5)],
            )
        except KeyboardInterrupt:
            print("stopped by our own rule")
        print(f"{len(seen.losses)} steps; loss {seen.losses[0]:.2f} -> {seen.losses[-1]:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
