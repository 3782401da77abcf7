"""Train on data of your own shape: a CSV with other column names, conversations, or token ids.

python custom_data.py [MODEL]
"""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path

import featherback as fb


def tickets(path: Path) -> Path:
    """Write a CSV file as a help desk might export it."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["ticket", "customer_wrote", "we_replied"])
        writer.writerow([1, "The lamp does not turn on.", "Please check the battery. Kind regards, Ana"])
        writer.writerow([2, "My order has not arrived.", "It left today. Kind regards, Ana"])
        writer.writerow([3, "Can I return the bell?", "Yes, within 30 days. Kind regards, Ana"])
    return path


CONVERSATIONS = [
    [
        {"role": "system", "content": "You are a helpful mechanic."},
        {"role": "user", "content": "My brakes squeak."},
        {"role": "assistant", "content": "Clean the rims first. Do they still squeak?"},
        {"role": "user", "content": "Yes."},
        {"role": "assistant", "content": "Then the pads are worn. Replace both."},
    ]
]
"""Every turn of the assistant is trained, and nothing else."""


def main(model_name: str = "smollm2-135m") -> None:
    model = fb.load(model_name)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)

        # 1. Other column names: map ours to yours.
        data = tickets(out / "tickets.csv")
        run = fb.train(
            model, data, out / "columns", map=["prompt=customer_wrote", "completion=we_replied"], steps=4, memory="1GB"
        )
        print("columns:      ", run.summary.final_loss)

        # 2. Conversations from memory, as lists of messages.
        run = fb.train(model, CONVERSATIONS, out / "conversations", steps=4, memory="1GB")
        print("conversations:", run.summary.final_loss)

        # 3. Full control: token ids, and labels that say which of them are trained (-100: not trained).
        prompt, answer = model.tokenizer.encode("2 + 2 ="), model.tokenizer.encode(" 4")
        examples = [(prompt + answer, [-100] * len(prompt) + answer)]
        run = fb.train(model, examples, out / "tokens", steps=4, memory="1GB")
        print("tokens:       ", run.summary.final_loss)


if __name__ == "__main__":
    main(*sys.argv[1:2])
