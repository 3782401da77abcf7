"""What guessed tokens save (`infer/lookup.py`): the same answers with and without them, in pairs.

    python -m benchmarks.lookup --text FILE [--file model.gguf] [--decode exact] [--tokens 256] [--threads 2]

Without --file: SmolLM2-135M. FILE has paragraphs, one a line, such as WikiText-2. Prints for each task and temperature
the tokens, the passes that computed them, those with guesses, and the speed: processor time without guesses, divided by
that with guesses. Answers must be equal. The prompt is not timed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.markdown import table

CODE = ("naming", "sizes", "registry", "failure", "noise")
FREE = (
    "Write a story about a lighthouse keeper.",
    "Explain how a refrigerator works.",
    "Write an email to a colleague who is ill.",
    "What should I see in Lisbon?",
    "Describe the taste of coffee to someone who never drank it.",
    "Write a poem about rain.",
)


def tasks(text: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the prompts of each task."""
    some = [line.strip() for line in text.read_text().splitlines() if 500 < len(line.strip()) < 900]
    yield "repeat a text", [f"Repeat this text word for word:\n\n{each}" for each in some[:4]]
    asked = "Correct the spacing and punctuation of this text. Write the whole corrected text."
    yield "correct a text", [f"{asked}\n\n{each}" for each in some[4:9]]
    yield "summarise", [f"Summarise this text in three sentences.\n\n{each}" for each in some[9:14]]
    asked = "Which sentence of this text is the most important? Quote it, and say why."
    yield "quote a sentence", [f"{each}\n\n{asked}" for each in some[14:18]]
    folder = Path(__file__).parents[1] / "src/featherback/core"
    files = ["\n".join((folder / f"{name}.py").read_text().splitlines()[10:50]) for name in CODE]
    asked = "Add a comment to each function of this Python code. Write the whole file."
    yield "comment Python code", [f"{asked}\n\n```python\n{each}\n```" for each in files]
    yield "free text", list(FREE)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--decode", default="exact")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()

    from featherback import models
    from featherback.data.tokenizers.loader import load_tokenizer
    from featherback.engine import kernels
    from featherback.infer.decoder import Decoder
    from featherback.infer.generate import generate_tokens
    from featherback.infer.layout import Layout
    from featherback.infer.lookup import GUESSES
    from featherback.infer.prompt import encode_prompt
    from featherback.infer.sampler import Sampler
    from featherback.models.hub.locate import locate

    kernels.set_threads(options.threads)
    model = models.load(options.file or locate("smollm2-135m"))
    tokenizer, layout = load_tokenizer(model.path), Layout(decode=options.decode)
    plain, lookup = (Decoder(model, None, 2048, "bf16", layout, guesses=count) for count in (0, GUESSES))
    passes: list[int] = []
    forward = lookup.forward

    def counted(tokens: Any, *more: Any, **how: Any) -> Any:
        passes.append(len(tokens))
        return forward(tokens, *more, **how)

    lookup.forward = counted  # type: ignore[method-assign]

    def answered(decoder: Decoder, prompt: list[int], temperature: float, seed: int) -> tuple[list[int], float]:
        """Return the answer's tokens, and the processor time of all but the first."""
        decoder.rewind(0)
        sampler = Sampler(temperature, 0.95, seed=seed)
        answer = generate_tokens(decoder, prompt, sampler, options.tokens, tokenizer.end_ids)
        tokens = list(islice(answer, 1))
        passes.clear()
        start = time.process_time()
        tokens += answer
        return tokens, time.process_time() - start

    rows = []
    for name, prompts in tasks(options.text):
        for temperature in (0.0, 0.7):
            count, guessed, all_passes, times = 0, 0, 0, [0.0, 0.0]
            for seed, text in enumerate(prompts):
                prompt = encode_prompt(tokenizer, text)
                expected, before = answered(plain, prompt, temperature, seed)
                found, after = answered(lookup, prompt, temperature, seed)
                if found != expected:
                    raise SystemExit(f"The answers to {text!r} differ.")
                count, all_passes = count + len(found[1:]), all_passes + len(passes)
                guessed += sum(each > 1 for each in passes)
                times = [times[0] + before, times[1] + after]
            ratio = f"{times[0] / times[1]:.2f}"
            rows.append([name, f"{temperature:g}", str(count), str(all_passes), str(guessed), ratio])
    print(table(["task", "temperature", "tokens", "passes", "with guesses", "speed"], rows))


if __name__ == "__main__":
    main()
