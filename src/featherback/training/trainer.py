"""The training loop."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from featherback import kernels, methods, models, optim
from featherback.adapters import peft
from featherback.adapters.lora import LoRA
from featherback.data.token_file import TokenFile
from featherback.errors import FeatherbackError
from featherback.files import write_bytes
from featherback.host.machine import is_ram_disk
from featherback.host.meter import Meter
from featherback.host.paged import PagedArray
from featherback.methods.base import Draw
from featherback.models.model import Model
from featherback.training import checkpoint
from featherback.training.curve import loss_svg
from featherback.training.evaluation import evaluate
from featherback.training.interrupt import Interrupt
from featherback.training.reporter import Reporter
from featherback.training.run_directory import RunDirectory
from featherback.training.stream import BatchStream

PARAMETERS = "parameters"


@dataclass
class Progress:
    """Where a run is: what a checkpoint remembers besides the arrays."""

    step: int = 0
    position: tuple[int, int] = (0, 0)  # epoch and batch of the data stream
    best_step: int | None = None  # of the lowest held-out loss after training began
    best_loss: float = math.inf
    stale: int = 0  # evaluations since then
    evaluations: list[dict[str, float]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """JSON values, which know no infinity."""
        return asdict(self) | {"best_loss": self.best_loss if self.best_step is not None else None}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Progress:
        """The inverse of to_json; FeatherbackError if something is missing."""
        try:
            best = math.inf if values["best_loss"] is None else values["best_loss"]
            return cls(**{**values, "position": tuple(values["position"]), "best_loss": best})
        except (KeyError, TypeError):
            raise FeatherbackError("The checkpoint's state.json is damaged.") from None


def train_run(run: RunDirectory, reporter: Reporter | None = None, model: Model | None = None) -> str:
    """Train the adapter of a prepared run directory, from its newest checkpoint if it has one.

    The status: "finished", "stopped early" or "interrupted" (by SIGINT or SIGTERM; saved). `model`: the run's
    model if it is open already. FeatherbackError if the run cannot go on; its last checkpoint is kept.
    """
    reporter = reporter or Reporter()
    with run.locked():
        run.begin_work()
        if is_ram_disk(run.path):
            reporter.note(
                f"note: {run.path} is on a RAM disk, where files would save no memory, so block inputs, adapter and "
                f"optimizer stay in the process; an --out on a disk needs less"
            )
        meter = Meter()
        meter.start()
        try:
            model = model or models.load(run.config.model)
            return Trainer(run, reporter, model, meter).train()
        finally:
            meter.stop()
            run.remove_work()


class Trainer:
    """One process's part of a run. The directory is its own."""

    def __init__(self, run: RunDirectory, reporter: Reporter, model: Model, meter: Meter) -> None:
        self.run_directory, self.reporter, self.model, self.meter = run, reporter, model, meter
        self.config = config = run.config
        self.progress = Progress()
        kernels.set_threads(config.threads or kernels.default_threads())
        self.plan = run.plan_of(self.model.blocks)
        states = run.work if self.plan.states == "file" else None
        self.adapter = LoRA(
            self.model,
            config.rank,
            config.alpha,
            config.targets,
            config.seed,
            path=states and states / f"{PARAMETERS}.f32",
        )
        parameters = self.adapter.parameters
        self.optimizer = optim.create(config.optimizer, parameters, config.optimizer_options, states)
        self.gradients = PagedArray(parameters.layers, parameters.size, states and states / "gradients.f32")
        options = methods.OPTIONS.make(config.method, config.method_options)
        self.method = methods.create(config.method, self.model, self.adapter, self.plan, run.work, options)
        tokens = TokenFile(run.tokens / "train.tokens")
        self.stream = BatchStream(tokens, config.seq_len, config.batch_size, config.seed)
        self.held_out = TokenFile(run.tokens / "eval.tokens") if config.eval_data else None
        self.steps = config.steps or self.stream.steps(config.epochs or 1, config.accumulate)
        self.schedule = optim.Schedule(config.schedule, config.peak_learning_rate, self.steps, config.warmup)

    def train(self) -> str:
        """Run to the end, or until interrupted; the status."""
        status = "failed"
        try:
            with Interrupt() as interrupt:
                self._resume()
                self.run_directory.update(status="running", steps=self.steps)
                self.reporter.begin(self.steps, self.progress.step)
                status = self._loop(interrupt)
                self._finish(status)
        except BaseException:
            self.reporter.broken()
            raise
        finally:
            if status == "failed":
                self.run_directory.update(status=status)
            self.close()
        return status

    def _resume(self) -> None:
        found = checkpoint.latest(self.run_directory.path)
        if found is not None:
            state = checkpoint.load(found, self._arrays())
            self.progress = Progress.from_json(state)
            self.optimizer.steps = self.progress.step
            self.stream.seek(self.progress.position)
        self.run_directory.rewind(self.progress.step)

    def _loop(self, interrupt: Interrupt) -> str:
        config, progress = self.config, self.progress
        if progress.step == 0 and not progress.evaluations:
            self._evaluate()
        while progress.step < self.steps:
            if not self._step():
                self.steps = progress.step
            step = progress.step
            last = step == self.steps
            if last or (config.eval_every and step % config.eval_every == 0):
                self._evaluate()
            stop = config.patience is not None and progress.stale >= config.patience
            if last or stop or interrupt.requested or step % config.save_every == 0:
                self._save()
            if stop and not last:
                return "stopped early"
            if interrupt.requested and not last:
                return "interrupted"
        return "finished"

    def _step(self) -> bool:
        """One optimiser step; False if the data are used up."""
        config, progress = self.config, self.progress
        start = time.perf_counter()
        last_epoch = config.epochs - 1 if config.epochs else None
        batches = self.stream.take(config.accumulate, last_epoch)
        if not batches:
            return False
        targets = sum(batch.n_targets for batch in batches)
        self.gradients.clear()
        draw = Draw(config.seed, progress.step)
        loss = (
            sum(self.method.gradients(batch, 1 / targets, self.gradients, draw) for batch in batches)
            / targets
        )
        norm = optim.global_norm(self.gradients)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise FeatherbackError(
                f"The loss or its gradient is not finite at step {progress.step + 1}; "
                f"the last checkpoint is unharmed: lower --lr and start again."
            )
        lr = self.schedule(progress.step + 1)
        self.optimizer.step(self.gradients, lr, optim.clip_scale(norm, config.max_grad_norm))
        progress.step += 1
        progress.position = self.stream.position
        metrics = {
            "step": progress.step,
            "loss": loss,
            "lr": lr,
            "grad_norm": norm,
            "tokens": sum(batch.n_tokens for batch in batches),
            "seconds": time.perf_counter() - start,
            "footprint_mb": self.meter.footprint_mb,
            "rss_mb": self.meter.rss_mb,
        }
        self.run_directory.append_metrics(metrics)
        self.reporter.step(metrics)
        return True

    def _evaluate(self) -> None:
        """Measure the held-out loss; if it is the best so far, the run directory gets this adapter."""
        if self.held_out is None:
            return
        progress = self.progress
        loss = evaluate(self.method, self.held_out, self.config.seq_len, self.config.batch_size).loss
        progress.evaluations.append({"step": progress.step, "loss": loss})
        self.run_directory.update(evaluations=progress.evaluations)
        self.reporter.evaluation(progress.step, loss)
        if progress.step == 0:
            return
        if loss < progress.best_loss:
            progress.best_step, progress.best_loss, progress.stale = progress.step, loss, 0
            self._export()
        else:
            progress.stale += 1

    def _save(self) -> None:
        checkpoint.save(self.run_directory.path, self.progress.step, self._arrays(), self.progress.to_json())
        if self.progress.best_step is None:
            self._export()

    def _export(self) -> None:
        # The base's name is on record: asking the model file again would bring its vocabulary into memory.
        peft.save(self.adapter, self.run_directory.path, self.run_directory.record["base_model"])

    def _arrays(self) -> dict[str, PagedArray]:
        return {PARAMETERS: self.adapter.parameters, **self.optimizer.states}

    def _finish(self, status: str) -> None:
        lines = [
            (line["step"], line["loss"], line["seconds"], line["tokens"])
            for line in self.run_directory.metrics()
        ]
        losses = [loss for _, loss, _, _ in lines]
        seconds = sum(line[2] for line in lines)
        evaluations = self.progress.evaluations
        # A resumed run has had more than one process: its peak is the highest of them.
        earlier = self.run_directory.record.get("summary", {})
        summary = {
            "peak_footprint_mb": max(self.meter.peak_footprint_mb, earlier.get("peak_footprint_mb", 0)),
            "peak_rss_mb": max(self.meter.peak_rss_mb, earlier.get("peak_rss_mb", 0)),
            "predicted_footprint_mb": self.plan.predicted_footprint_mb,
            "predicted_rss_mb": self.plan.predicted_rss_mb,
            "steps": self.progress.step,
            "seconds": seconds,
            "step_seconds": _median([line[2] for line in lines]) if lines else 0.0,
            "tokens_per_second": sum(line[3] for line in lines) / seconds if seconds else 0.0,
            "first_loss": losses[0] if losses else None,
            "final_loss": losses[-1] if losses else None,
            "first_eval_loss": evaluations[0]["loss"] if evaluations else None,
            "final_eval_loss": evaluations[-1]["loss"] if evaluations else None,
            "best_step": self.progress.best_step,
            "best_eval_loss": self.progress.best_loss if self.progress.best_step is not None else None,
        }
        picture = loss_svg([line[:2] for line in lines], [(e["step"], e["loss"]) for e in evaluations])
        write_bytes(self.run_directory.path / "loss.svg", picture.encode())
        self.run_directory.update(status=status, summary=summary)
        self.reporter.end(summary, losses)

    def close(self) -> None:
        """Close the scratch files."""
        self.method.close()
        self.optimizer.close()
        self.gradients.close()
        self.adapter.parameters.close()


def _median(values: list[float]) -> float:
    """The middle value; NumPy's own median and the statistics module would each bring in a megabyte."""
    middle = len(values) // 2
    ordered = sorted(values)
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
