"""What a teacher is worth: held-out loss of a small student with and without one, on the same data, steps and rates.

    .venv/bin/python -m benchmarks.distillation loss model.gguf --text wikitext-2/test.txt
    .venv/bin/python -m benchmarks.distillation memory

`loss`: the teacher is the model, after training on text of the same kind. The student is the model without six of its
layers, which an adapter then has to repair. TEXT has at least half a megabyte. Each row is one setting and seed.
The order of the data depends on the seed.

`memory`: peak RSS of whole commands, with a synthetic teacher of the shapes of a 7B model and a student of a 0.5B
model, both with few layers: the peak does not depend on their number, which one row with more layers shows.

Both write to benchmarks/distillation.json, a row per run.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks import watch
from benchmarks.results import Result
from benchmarks.synthetic import write_synthetic
from featherback.engine.formats.gguf import GGUFFile
from featherback.engine.formats.writer import OutTensor, write_gguf
from featherback.runs.run_directory import RunDirectory
from featherback.worker import ENDED

MEASURES = ("src/featherback/data", "src/featherback/engine", "src/featherback/nn", "src/featherback/runs")
FILE = Path(__file__).with_suffix(".json")
LENGTH, STEPS, TEACHER_STEPS = 256, 30, 160
REMOVED = (14, 16, 18, 20, 22, 24)
SEEDS = (0, 1, 2)
SETTINGS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "w 0.5": ("--distill-weight", "0.5"),
    "w 0.9": ("--distill-weight", "0.9"),
    "w 0.5, T 2": ("--distill-weight", "0.5", "--temperature", "2"),
}
TEACHER_LAYERS, STUDENT_LAYERS, BUDGET = (1, 3), 2, 160
BYTES = 90_000  # of text that the student learns from


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("loss", "memory"))
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--dir", type=Path, default=Path("build/distillation"))
    parser.add_argument("--settings", default=";".join(SETTINGS))
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    result = Result.begin("distillation", "python -m benchmarks.distillation (loss|memory)", MEASURES)
    rows = loss_rows(options) if options.what == "loss" else memory_rows(options.dir)
    for name, row in rows:
        print(name, row, flush=True)
        known = Result.read(FILE).rows if FILE.exists() else {}  # the other command may run at the same time
        result.rows = {**known, name: row}
        result.write(FILE)


def without_layers(source: Path, out: Path, kept: list[int]) -> Path:
    """Write the model with only the layers `kept`."""
    file = GGUFFile(source)
    architecture = file.metadata["general.architecture"]
    metadata: dict[str, Any] = {key: file.value(key) for key in file.keys}
    metadata[f"{architecture}.block_count"] = len(kept)
    tensors = []
    for name, info in file.tensors.items():
        parts = name.split(".")
        if parts[0] == "blk":
            if int(parts[1]) not in kept:
                continue
            parts[1] = str(kept.index(int(parts[1])))
        chunks: Callable[[], Any] = partial(_chunks, file, name)
        tensors.append(OutTensor(".".join(parts), info.type, info.shape, chunks))
    write_gguf(out, metadata, tensors)
    return out


def _chunks(file: GGUFFile, name: str) -> tuple[Any]:
    return (file.data(name).data,)


def loss_rows(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    folder, model = options.dir, options.model
    text = options.text.read_text(encoding="utf-8")
    texts = {"teacher": text[BYTES : 4 * BYTES], "student": text[:BYTES], "held-out": text[-16_000:]}
    files = {name: folder / f"{name}.txt" for name in texts}
    for name, text in texts.items():
        files[name].write_text(text, encoding="utf-8")
    teacher = folder / "teacher.gguf"
    same = ("--eval-data", files["held-out"], "--seq-len", LENGTH, "--threads", 1, "--samples", 0)
    if not teacher.exists():
        _train(model, folder / "teacher", "--data", files["teacher"], *same, "--steps", TEACHER_STEPS, "--eval-every",
               TEACHER_STEPS // 2)  # fmt: skip
        _featherback("export", folder / "teacher", "--to", "merged", "--type", "q8_0", "--out", teacher)
    record = RunDirectory.open(folder / "teacher").record.summary
    yield "teacher", {"steps": TEACHER_STEPS, "held_out": [record.first_eval_loss, record.best_eval_loss]}
    layers = int(GGUFFile(model).metadata["llama.block_count"])  # type: ignore[arg-type]
    student = without_layers(model, folder / "student.gguf", [i for i in range(layers) if i not in REMOVED])
    for seed, setting in product(SEEDS, options.settings.split(";")):
        out = folder / f"{setting}-{seed}"
        distilled = ("--teacher", teacher, *SETTINGS[setting]) if SETTINGS[setting] else ()
        if not (out / "report.html").exists():
            _train(student, out, "--data", files["student"], *same, "--steps", STEPS, "--eval-every", STEPS, "--seed",
                   seed, *distilled)  # fmt: skip
        record = RunDirectory.open(out).record
        summary = record.summary
        yield (
            f"{setting}, seed {seed}",
            {
                "steps": STEPS,
                "lr": record.configuration.learning_rate,
                "held_out": [round(summary.first_eval_loss, 4), round(summary.best_eval_loss, 4)],
                "teacher_s": round(record.teacher.taken.seconds if record.teacher else 0.0, 1),
                "step_s": round(summary.step_seconds, 3),
            },
        )


def memory_rows(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    text = folder / "bytes.txt"
    text.write_text("All work and no play makes a dull text. " * 26, encoding="utf-8")
    student, teacher = folder / "student-0.5b.gguf", folder / "teacher-7b.gguf"
    write_synthetic(student, "qwen2.5-0.5b", num_hidden_layers=STUDENT_LAYERS, vocabulary=True)
    for layers in TEACHER_LAYERS:
        write_synthetic(teacher, "qwen2.5-7b", num_hidden_layers=layers, vocabulary=True)
        out = folder / f"memory-{layers}"
        outcome = _train(student, out, "--data", text, "--seq-len", LENGTH, "--steps", 3, "--memory", f"{BUDGET}MB",
                         "--samples", 0, "--compute", "bf16", "--teacher", teacher)  # fmt: skip
        record = RunDirectory.open(out).record
        yield (
            f"7B shapes, {layers} layers",
            {
                "budget_mb": BUDGET,
                "command_rss_mb": round(outcome.rss_mb or 0, 1),
                "teacher_rss_mb": round(record.teacher.taken.peak_rss_mb, 1),
                "teacher_predicted_mb": round(record.teacher.plan.predicted_rss_mb, 1),
                "teacher_least_mb": record.teacher.plan.least_mb,
                "training_rss_mb": round(record.summary.peak_rss_mb, 1),
                "training_predicted_mb": round(record.summary.predicted_rss_mb, 1),
                "tokens": record.data["train"].tokens,
            },
        )
        shutil.rmtree(out)
    teacher.unlink()
    student.unlink()


def _train(model: Path, out: Path, *options: object) -> watch.Outcome:
    return _featherback("train", model, "--out", out, "--json", *options)


def _featherback(*words: object) -> watch.Outcome:
    return watch.run([sys.executable, "-m", "featherback", *map(str, words)], ends=ENDED)


if __name__ == "__main__":
    sys.exit(main())
