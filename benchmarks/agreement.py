"""How often decoding agrees with exact arithmetic: ours in each way, and llama.cpp's, on one GGUF file.

    python -m benchmarks.agreement [--file model.gguf] [--tokens 48] [--threads 2] [--prompts 36]

Without --file: SmolLM2-135M. For each prompt, `--compute fp32 --decode exact` writes the likeliest tokens, the exact
text. Then each side reads the prompt and the exact text one token after another. Prints, for each side, the share of
positions at which its likeliest token is the exact one, the mean difference from the exact log-probabilities
(Kullback-Leibler divergence, in nats), and the number of prompts whose whole text agrees: there, the side would have
written the exact text. llama.cpp takes part if llama-cpp-python is installed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.markdown import table

PROMPTS = (
    *(f"What is the capital of {x}?" for x in ("France", "Japan", "Kenya", "Peru", "Canada")),
    *(f"Explain {x} in simple words." for x in ("gravity", "inflation", "photosynthesis", "recursion", "a vaccine")),
    *(f"Write a short story about {x}." for x in ("a lighthouse", "a lost dog", "two rivals", "the first snow")),
    *(f"Give me three tips for {x}." for x in ("sleeping well", "learning a language", "saving money", "a hike")),
    *(f"Write a Python function that {x}." for x in ("reverses a list", "counts words", "finds primes", "sorts names")),
    *(f"What is the difference between {x}?" for x in ("a virus and a bacterium", "TCP and UDP", "jazz and blues")),
    "List the planets of the solar system.",
    "Translate into French: The weather is nice today.",
    "Summarise the plot of Romeo and Juliet.",
    "Why is the sky blue?",
    "How do I boil an egg?",
    "What should I pack for a week at the sea?",
    "Write an email that asks for a day off.",
    "A train travels 60 km in 45 minutes. How fast is it?",
    "Name a few kinds of renewable energy.",
    "Describe the taste of an orange.",
    "What does a compiler do?",
)


class Ours:
    """Our decoder."""

    def __init__(self, path: Path, compute: str, decode: str) -> None:
        from featherback import models
        from featherback.infer.decoder import Decoder
        from featherback.infer.layout import Layout

        self._decoder = Decoder(models.load(path), None, 1024, compute, Layout(decode=decode))

    def clear(self) -> None:
        """Forget the text."""
        self._decoder.rewind(0)

    def logits(self, tokens: list[int]) -> NDArray[np.float32]:
        """Return the logits (V,) after `tokens`, which join the cache."""
        return self._decoder.forward(tokens)


class Theirs:
    """llama.cpp, as benchmarks/against_llama_cpp.py opens it."""

    def __init__(self, path: Path, threads: int) -> None:
        from benchmarks.against_llama_cpp import LlamaCpp

        self._side: Any = LlamaCpp(str(path), threads)
        self.clear = self._side.clear

    def logits(self, tokens: list[int]) -> NDArray[np.float32]:
        """Return the logits (V,) after `tokens`, which join the cache."""
        logits: NDArray[np.float32] = self._side.logits(tokens).copy()
        return logits


def log_probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the log-probabilities (V,)."""
    wide = logits.astype(np.float64) - logits.max()
    return wide - np.log(np.exp(wide).sum())


def read(side: Any, prompt: list[int], text: list[int]) -> list[NDArray[np.float64]]:
    """Return the log-probabilities (V,) at each position of `text`."""
    side.clear()
    logits = [side.logits(prompt)] + [side.logits([token]) for token in text[:-1]]
    return [log_probabilities(each) for each in logits]


def write(side: Any, prompt: list[int], count: int, ends: Any) -> list[int]:
    """Return the likeliest `count` tokens after a prompt, or fewer if the text ends."""
    side.clear()
    text, logits = list[int](), side.logits(prompt)
    while len(text) < count:
        text.append(int(np.argmax(logits)))
        if text[-1] in ends:
            break
        logits = side.logits(text[-1:])
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    options = parser.parse_args()
    from benchmarks.against_llama_cpp import fetch_path
    from featherback.data.tokenizers.loader import load_tokenizer
    from featherback.engine import kernels
    from featherback.infer.prompt import encode_prompt

    kernels.set_threads(options.threads)
    path = options.file or fetch_path()
    tokenizer = load_tokenizer(path)
    prompts = [encode_prompt(tokenizer, prompt, None, False) for prompt in PROMPTS[: options.prompts]]
    exact = Ours(path, "fp32", "exact")
    texts = [write(exact, prompt, options.tokens, tokenizer.end_ids) for prompt in prompts]
    truth = [read(exact, prompt, text) for prompt, text in zip(prompts, texts)]
    sides: dict[str, Any] = {
        "bf16, exact": Ours(path, "bf16", "exact"), "bf16, fast": Ours(path, "bf16", "fast"),
        "fp32, fast": Ours(path, "fp32", "fast"),
    }  # fmt: skip
    try:
        sides["llama.cpp"] = Theirs(path, options.threads)
    except ImportError:
        print("llama-cpp-python is not installed, so llama.cpp is left out.")
    lines = []
    for name, side in sides.items():
        agree, divergence = list[bool](), list[float]()
        whole = 0
        for prompt, text, wanted in zip(prompts, texts, truth):
            found = read(side, prompt, text)
            equal = [int(each.argmax()) == token for each, token in zip(found, text)]
            agree += equal
            whole += all(equal)
            divergence += [float(np.exp(p) @ (p - q)) for p, q in zip(wanted, found)]
        share = f"{100 * np.mean(agree):.2f} %"
        lines.append([name, share, f"{np.mean(divergence):.2e}", f"{whole} of {len(prompts)}"])
    print(f"{path.name}, {kernels.describe()}, {sum(map(len, texts))} tokens\n")
    print(table(["side", "likeliest token agrees", "divergence, nats", "texts that agree"], lines))


if __name__ == "__main__":
    main()
