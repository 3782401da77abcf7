"""Answers to "What should the model learn?", and the options that follow from each (docs/choosing.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from featherback.core.options import described
from featherback.runs.config import TrainConfig
from featherback.runs.panels.optimisation import DEFAULT_EPOCHS


@dataclass(frozen=True)
class Choice:
    """An answer to a question of the page. `options`: option -> value, as typed on the command line."""

    title: str
    text: str
    options: Mapping[str, str] = field(default_factory=dict)


GOALS = (
    Choice(
        "A tone, a format, or one narrow task",
        "Short friendly answers, commands, a fixed form. Fifty good examples are a start.",
    ),
    Choice(
        "Many different tasks",
        "Thousands of examples of several kinds. The adapter gets more room.",
        {"rank": "32", "alpha": "64"},
    ),
    Choice(
        "Facts",
        "Fine-tuning teaches how to answer. It is a poor way to remember facts: put them into the question, and "
        "train the model to answer from there.",
        {"rank": "16", "alpha": "32"},
    ),
)
LENGTHS = (
    Choice("Once", "For tens of thousands of examples.", {"epochs": "1"}),
    Choice("As usual", f"{DEFAULT_EPOCHS} passes over the examples."),
    Choice("Ten times", "For fewer than a hundred examples.", {"epochs": "10"}),
)
MEMORIES = (
    Choice("As much as is useful", f"Up to {described(TrainConfig)['memory'].default_in_words}."),
    Choice("As little as possible", "Steps take longer, and other programs keep their memory.", {"memory": "least"}),
)


@dataclass(frozen=True)
class Question:
    """A question of the page. `own`: the option with which a person gives another answer."""

    title: str
    choices: tuple[Choice, ...]
    own: str | None = None


PROGRAMS = {
    "gguf": "llama.cpp",
    "merged": "LM Studio, Jan and others",
    "mlx": "MLX on a Mac",
    "ollama": "Ollama",
    "peft": "Python: PEFT and Transformers",
}
"""Export target -> the programs that read its result."""
QUESTIONS = (
    Question("What should the model learn?", GOALS),
    Question("How long?", LENGTHS, "epochs"),
    Question("How much memory?", MEMORIES, "memory"),
)
"""The questions of the page. A choice without options is the default."""
