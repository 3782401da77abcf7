"""Train an adapter further on new data, and check that it still does the old task.

python continue_adapter.py [MODEL]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import featherback as fb

GREETINGS = [(f"Greet {name}.", f"Ahoy, {name}!") for name in ("Ana", "Ben", "Cleo", "Dan", "Eve", "Finn")]
FAREWELLS = [(f"Say goodbye to {name}.", f"Fair winds, {name}!") for name in ("Gus", "Hana", "Ida", "Jo", "Kai", "Lea")]


def main(model_name: str = "smollm2-135m") -> None:
    model = fb.load(model_name)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        first = fb.train(model, GREETINGS, out / "first", epochs=4, memory="1GB", progress=False)

        # `start` takes a run, or an adapter in PEFT's, GGUF's or MLX's format, with its rank and targets.
        # Some old examples among the new ones keep the old task.
        both = fb.train(
            model, FAREWELLS + GREETINGS[:2], out / "both", start=first.path, epochs=4, memory="1GB", progress=False
        )

        for name, pairs in (("greetings", GREETINGS), ("farewells", FAREWELLS)):
            losses = [fb.evaluate(model, pairs, adapter=run).loss for run in (first, both)]
            print(f"{name}: loss {losses[0]:.3f} after the first run, {losses[1]:.3f} after the second")


if __name__ == "__main__":
    main(*sys.argv[1:2])
