"""`featherback demo`"""

from __future__ import annotations

import subprocess
import tempfile
import textwrap
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from featherback.cli.parameters import of_training
from featherback.core.options import option
from featherback.core.sizes import MB
from featherback.core.terminal import print_error, say

if TYPE_CHECKING:
    from featherback.runs.run_directory import RunDirectory

WITHOUT_BUDGET = "trains within 80 MB, and answers with the weights of its 98 MB model in memory"
"""Why the command has no memory budget, as docs/memory.md says it."""

MODEL = "smollm2-135m"
STEPS = 100
MEMORY = 80 * MB  # bytes: small, but enough for the mapped files on any system
WARMUP = 5
ANSWER_TOKENS = 48


def demo(
    out: Path | None = option(
        None, metavar="DIR", help="Directory for the adapter.", shown_default="a new temporary folder"
    ),
    threads: int | None = of_training(),
) -> int:
    """Train a small model in a few minutes and show what it learned.

    The model is downloaded once: 98 MB.

    Prints the held-out loss and answers to the same questions before and after training.
    """
    from featherback.data.demo import ABOUT, HELD_OUT, PROMPTS, TRAIN
    from featherback.models.hub.fetch import fetch
    from featherback.runs.config import TrainConfig
    from featherback.runs.preparation import prepare_run

    start = time.perf_counter()
    model = fetch(MODEL, progress=print_error)
    out = Path(tempfile.mkdtemp(prefix="featherback-demo-")) if out is None else out
    config = TrainConfig(
        model=str(model),
        data=(str(TRAIN),),
        eval_data=(str(HELD_OUT),),
        out=str(out),
        threads=threads,
        steps=STEPS,
        memory=MEMORY,
        warmup=WARMUP,
        samples=0,  # the demo prints its own samples
    )
    run = prepare_run(config)
    from featherback import models
    from featherback.cli.preamble import print_preamble

    say(textwrap.fill(ABOUT, 100), end="\n\n")
    print_preamble(run, models.load(model))
    _title("Before training")
    before = _answers(config.model, PROMPTS, None)
    for prompt, answer in zip(PROMPTS, before, strict=True):
        _print_exchange(prompt, answer)
    _title("Training")
    if status := _train(run):
        return status
    _title("After training")
    after = _answers(config.model, PROMPTS, run.path)
    for prompt, answer in zip(PROMPTS, after, strict=True):
        _print_exchange(prompt, answer)
    _conclude(run, time.perf_counter() - start)
    return 0


def _train(run: RunDirectory) -> int:
    """Train in a process of its own, as `featherback train` does, and return its exit status."""
    from featherback.runs.worker_process import worker_command

    command, environment = worker_command(run)
    return subprocess.run(command, env=environment, check=False).returncode


def _answers(model: str, prompts: tuple[str, ...], adapter: Path | None) -> list[str]:
    """The model's answers to the prompts, without sampling."""
    from featherback.cli.options import open_model
    from featherback.data.tokenizers.loader import load_tokenizer
    from featherback.infer.generate import generate_text
    from featherback.infer.prompt import encode_prompt
    from featherback.infer.sampler import Sampler
    from featherback.runs.compute import resolve_compute
    from featherback.runs.decoders import open_decoder
    from featherback.runs.panels.run import AUTO

    opened, _ = open_model(model)
    tokenizer = load_tokenizer(opened.path)
    with closing(open_decoder(opened, adapter, 1024, resolve_compute(AUTO, adapter))) as decoder:
        return [
            "".join(generate_text(decoder, tokenizer, encode_prompt(tokenizer, prompt), Sampler(), ANSWER_TOKENS))
            for prompt in prompts
        ]


def _conclude(run: RunDirectory, seconds: float) -> None:
    from featherback.runs.run_directory import RunDirectory
    from featherback.view.reporter import duration

    summary = RunDirectory.open(run.path).record.summary
    assert summary is not None  # the run has ended, with held-out examples
    first, last = summary.first_eval_loss or 0.0, summary.best_eval_loss or 0.0
    _title("Result")
    say(f"held-out loss   {first:.3f} -> {last:.3f} ({1 - last / first:.0%} lower)")
    footprint, rss = summary.peak_footprint_mb, summary.peak_rss_mb
    say(f"peak memory     {footprint:.0f} MB footprint, {rss:.0f} MB resident (of the training process)")
    say(f"time            {duration(seconds)} in all, {summary.step_seconds:.2f} s per step")
    say(f"adapter         {run.path}")
    say(f"\nTalk with it:   featherback chat {MODEL} --adapter {run.path}")


def _title(text: str) -> None:
    say(f"\n== {text}\n", flush=True)


def _print_exchange(prompt: str, answer: str) -> None:
    say(f"  Q: {prompt}")
    say(textwrap.indent("A: " + "\n   ".join(line for line in answer.splitlines() if line), "  "), flush=True)
