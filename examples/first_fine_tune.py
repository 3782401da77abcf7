"""Train a small model on questions and answers, and compare its answers before and after.

python first_fine_tune.py [MODEL]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import featherback as fb

QUESTIONS_AND_ANSWERS = [
    ("When do you open?", "We open at nine, every day but Sunday. Anything else?"),
    ("Can I pay by card?", "Yes, by card or cash. Anything else?"),
    ("Do you repair bicycles?", "We do, within two days. Anything else?"),
    ("Where can I park?", "Behind the shop, for free. Anything else?"),
    ("Do you sell lights?", "Yes, front and rear, from twelve euros. Anything else?"),
    ("Can I rent a bicycle?", "Yes, by the day or the week. Anything else?"),
    ("Is there a guarantee?", "Two years on every new bicycle. Anything else?"),
    ("Do you buy used bicycles?", "Only our own brand. Anything else?"),
]
HELD_OUT = [("Do you sell helmets?", "Yes, in all sizes. Anything else?")]


def main(model_name: str = "smollm2-135m") -> None:
    model = fb.load(model_name)
    question = HELD_OUT[0][0]
    print("before:", model.generate(question, max_tokens=30))

    with tempfile.TemporaryDirectory() as folder:
        # An adapter with the default settings: rank 8 on all projections, a learning rate for this model's size.
        run = fb.train(model, QUESTIONS_AND_ANSWERS, Path(folder) / "shop", epochs=10, memory="1GB")
        print("after: ", model.generate(question, adapter=run, max_tokens=30))

        # The held-out loss says whether the model has learned the manner or only memorised the examples.
        before = fb.evaluate(model, HELD_OUT).loss
        after = fb.evaluate(model, HELD_OUT, adapter=run).loss
        print(f"held-out loss: {before:.2f} -> {after:.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
