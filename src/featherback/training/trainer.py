"""The training loop."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from shutil import disk_usage
from typing import Any

from featherback import kernels, methods, models, optim
from featherback.adapters import peft
from featherback.adapters.lora import LoRA
from featherback.data.token_file import TokenFile
from featherback.errors import FeatherbackError
from featherback.files import write_bytes
from featherback.host.machine import is_ram_disk
from featherback.host.maps import MapWatch
from featherback.host.meter import Meter
from featherback.host.paged import PagedArray
from featherback.host.priority import step_back
from featherback.host.sensors import Sensors
from featherback.methods.base import Draw
from featherback.models.model import Model
from featherback.training import checkpoint, guard
from featherback.training.curve import loss_svg
from featherback.training.evaluation import evaluate
from featherback.training.interrupt import Interrupt, StoppedError
from featherback.training.reporter import Reporter
from featherback.training.run_directory import RunDirectory
from featherback.training.stream import BatchStream
from featherback.training.totals import Series, Totals

PARAMETERS = "parameters"
METRICS_BYTES = 256
"""More than a line of metrics.jsonl takes."""
NAP_SECONDS = 0.1
"""How long a signal waits where a run waits."""


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
            raise FeatherbackError("The checkpoint's state is damaged.") from None


def train_run(
    run: RunDirectory,
    reporter: Reporter | None = None,
    model: Model | None = None,
    sensors: Sensors | None = None,
    interrupt: Interrupt | None = None,
) -> str:
    """Train the adapter of a prepared run directory, from its newest good checkpoint if it has one.

    The status: "finished", "stopped early" or "interrupted" (by SIGINT, SIGTERM or SIGHUP; saved).
    `model`: the run's model if it is open already. `sensors`: what makes it wait; default: what its options name.
    `interrupt`: what stops it, not entered yet; default: this process's signals from now on.
    FeatherbackError if the run cannot go on, or went wrong: run.json
    then has the status "failed" with step and reason, and the last good checkpoint and adapter are kept.
    """
    reporter = reporter or Reporter()
    run.lock()
    status, reason, trainer = "failed", None, None
    meter = Meter()
    try:
        meter.start()
        with interrupt or Interrupt() as interrupt:
            run.begin_work()
            if is_ram_disk(run.path):
                reporter.note(
                    f"note: {run.path} is on a RAM disk, where files would save no memory, so block inputs, adapter "
                    f"and optimizer stay in the process; an --out on a disk needs less"
                )
            config = run.config
            if config.nice is not None:
                step_back(config.nice)
            sensors = sensors or Sensors(config.pause_on or ())
            model = model or models.load(config.model)
            with MapWatch([*model.files, *run.tokens.glob("*")], model.close) as maps:
                trainer = Trainer(run, reporter, model, meter, interrupt, maps, sensors)
                status = trainer.train()
    except KeyboardInterrupt:  # a second signal
        status = "interrupted"
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise
    finally:
        meter.stop()
        run.remove_work()
        if status in ("failed", "interrupted"):
            step = trainer.progress.step if trainer else checkpoint.latest_step(run.path)
            with suppress(FeatherbackError):  # a full disk, which is being reported
                run.update(status=status, failure={"step": step, "reason": reason} if reason else None)
        run.release()
    assert trainer is not None
    reporter.end(run.record["summary"], trainer.losses)
    return status


class Trainer:
    """One process's part of a run. The directory is its own."""

    def __init__(
        self,
        run: RunDirectory,
        reporter: Reporter,
        model: Model,
        meter: Meter,
        interrupt: Interrupt,
        maps: MapWatch,
        sensors: Sensors,
    ) -> None:
        self.run_directory, self.reporter, self.model, self.meter = run, reporter, model, meter
        self.interrupt, self.maps, self.sensors = interrupt, maps, sensors
        self.config = config = run.config
        self.progress = Progress()
        self.identity = run.identity
        self.losses: list[float] = []  # of the run as a whole, once it has ended
        kernels.set_threads(config.threads or kernels.default_threads())
        self.plan = run.plan_of(self.model.blocks)
        tokens = self._tokens("train")
        self.held_out = self._tokens("eval") if config.eval_data else None
        self.stream = BatchStream(tokens, config.seq_len, config.batch_size, config.seed, config.epochs)
        self.steps = config.steps or self.stream.steps(config.epochs or 1, config.accumulate)
        self.schedule = optim.Schedule(config.schedule, config.peak_learning_rate, self.steps, config.warmup)
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

    def train(self) -> str:
        """Run to the end, or until interrupted; the status."""
        try:
            self._check_room()
            self._resume()
            self.run_directory.update(status="running", steps=self.steps, failure=None)
            self.reporter.begin(self.steps, self.progress.step)
            try:
                status = self._loop()
            except guard.DivergenceError as error:
                kept = self._retreat(error.step)
                raise FeatherbackError(f"Training has stopped: {error}. {kept}") from error
            self._finish(status)
        except BaseException:
            self.reporter.broken()
            raise
        finally:
            self.close()
        return status

    def _tokens(self, name: str) -> TokenFile:
        file = TokenFile(self.run_directory.tokens / f"{name}.tokens")
        file.check(self.model.config.vocab_size)
        return file

    def _check_room(self) -> None:
        """FeatherbackError if the disk cannot take what the run will write."""
        run, arrays = self.run_directory, self._arrays()
        adapter = checkpoint.nbytes({PARAMETERS: self.adapter.parameters})
        # The two checkpoints that are kept and the one being written; the adapter and its successor.
        needed = 3 * checkpoint.nbytes(arrays) + 2 * adapter + self.steps * METRICS_BYTES
        needed -= checkpoint.held(run.path)
        if self.plan.states == "file":
            needed += checkpoint.nbytes({**arrays, "gradients": self.gradients})
        config, tokens = self.model.config, self.plan.tokens
        if self.plan.checkpoints == "file":
            operand = kernels.OPERANDS[self.plan.compute].itemsize
            needed += (
                tokens * config.hidden_size * (config.num_hidden_layers * operand + 4 * self.plan.chunked)
            )
        free = disk_usage(run.path).free
        if free < needed:
            raise FeatherbackError(
                f"The disk of {run.path} has {free / 1e6:.1f} MB free and the run needs up to {needed / 1e6:.1f} MB "
                f"for checkpoints, adapter and scratch files: free some, or choose another --out."
            )

    def _resume(self) -> None:
        run = self.run_directory
        state, refused = checkpoint.restore(run.path, self.identity, self._arrays())
        for reason in refused:
            self.reporter.note(f"note: {reason}; the one before it is used")
        if state is not None:
            self.progress = Progress.from_json(state)
            self.optimizer.steps = self.progress.step
            self.stream.seek(self.progress.position)
        run.rewind(self.progress.step)

    def _loop(self) -> str:
        config, progress = self.config, self.progress
        saved = progress.step
        while True:
            step = progress.step
            last = step >= self.steps
            try:
                if self._is_due(step, last):
                    self._evaluate()
            except StoppedError:  # it begins anew when the run is resumed
                pass
            stop = config.patience is not None and progress.stale >= config.patience
            asked = self.interrupt.requested
            if step > saved and (last or stop or asked or step % config.save_every == 0):
                self._save()
                saved = step
            if last and not asked:
                return "finished"
            if stop:
                return "stopped early"
            if asked:
                return "finished" if last and not self._is_due(step, last) else "interrupted"
            if self.sensors.reason():
                if step > saved:  # the battery may not last
                    self._save()
                    saved = step
                self._wait()
            elif not self._step():
                self.steps = progress.step

    def _wait(self) -> None:
        """Until the sensors have no reason against going on, or a signal comes."""
        waited = False
        while (reason := self.sensors.reason()) and not self.interrupt.requested:
            self.reporter.paused(reason)
            waited = True
            time.sleep(NAP_SECONDS)
        if waited:
            self.reporter.resumed()

    def _is_due(self, step: int, last: bool) -> bool:
        """Whether the held-out loss is to be measured after `step`, and has not been."""
        every, done = self.config.eval_every, self.progress.evaluations
        if self.held_out is None or (done and done[-1]["step"] == step):
            return False
        return step == 0 or last or (every is not None and step % every == 0)

    def _step(self) -> bool:
        """One optimiser step; False if the data are used up."""
        config, progress = self.config, self.progress
        start = time.perf_counter()
        group = self.stream.take(config.accumulate)
        if group is None:
            return False
        self.gradients.clear()
        draw = Draw(config.seed, progress.step)
        loss = (
            sum(
                self.method.gradients(batch, 1 / group.n_targets, self.gradients, draw)
                for batch in group.batches
            )
            / group.n_targets
        )
        norm = optim.global_norm(self.gradients)
        self.maps.check()
        guard.check_loss(loss, "the loss", progress.step + 1, progress.step, self.model)
        guard.check_finite(norm, "the gradient", progress.step + 1, progress.step, self.model)
        lr = self.schedule(progress.step + 1)
        if not self.optimizer.step(self.gradients, lr, optim.clip_scale(norm, config.max_grad_norm)):
            step = progress.step + 1
            raise guard.DivergenceError(f"the adapter is not finite at step {step}; lower --lr", step)
        progress.step += 1
        progress.position = self.stream.position
        metrics = {
            "step": progress.step,
            "loss": loss,
            "lr": lr,
            "grad_norm": norm,
            "tokens": group.n_tokens,
            "seconds": time.perf_counter() - start,
            "footprint_mb": self.meter.footprint_mb,
            "rss_mb": self.meter.rss_mb,
        }
        self.run_directory.append_metrics(metrics)
        self.reporter.step(metrics)
        return True

    def _evaluate(self) -> None:
        """Measure the held-out loss; if it is the best so far, the run directory gets this adapter.

        StoppedError if a signal came meanwhile: nothing is recorded then.
        """
        assert self.held_out is not None
        progress, config = self.progress, self.config
        loss = evaluate(self.method, self.held_out, config.seq_len, config.batch_size, self._between).loss
        guard.check_loss(loss, "the held-out loss", progress.step, progress.step, self.model)
        progress.evaluations.append({"step": progress.step, "loss": loss})
        if progress.step:
            if loss < progress.best_loss:
                progress.best_step, progress.best_loss, progress.stale = progress.step, loss, 0
                self._export()
            else:
                progress.stale += 1
        self.run_directory.update(evaluations=progress.evaluations)
        self.reporter.evaluation(progress.step, loss)

    def _between(self) -> None:
        self.maps.check()
        self._wait()
        self.interrupt.check()

    def _save(self) -> None:
        # The adapter first: a run killed between the two comes here again.
        if self.progress.best_step is None:
            self._export()
        run, progress = self.run_directory, self.progress
        run.sync_metrics()
        checkpoint.save(run.path, progress.step, self.identity, self._arrays(), progress.to_json())

    def _export(self) -> None:
        # The base's name is on record: asking the model file again would bring its vocabulary into memory.
        peft.save(self.adapter, self.run_directory.path, self.run_directory.record.get("base_model"))

    def _retreat(self, step: int) -> str:
        """Back to what is known to be good, before `step`, whose parameters are in doubt; in words, what that is."""
        run = self.run_directory
        checkpoint.discard(run.path, step)
        best = self.progress.best_step
        if best is not None and best < step:
            return f"The adapter of step {best}, of the lowest held-out loss, is kept."
        try:
            state, _ = checkpoint.restore(run.path, self.identity, self._arrays())
        except FeatherbackError:
            state = None
        if state is None:
            peft.remove(run.path)
            return "No adapter had been saved before."
        self._export()
        return f"The checkpoint and the adapter of step {state['step']} are kept."

    def _arrays(self) -> dict[str, PagedArray]:
        return {PARAMETERS: self.adapter.parameters, **self.optimizer.states}

    def _finish(self, status: str) -> None:
        totals, held_out = Totals(self.run_directory.metrics()), Series()
        evaluations = self.progress.evaluations
        for evaluation in evaluations:
            held_out.add(evaluation["step"], evaluation["loss"])
        picture = loss_svg(totals.losses.points, held_out.points)
        write_bytes(self.run_directory.path / "loss.svg", picture.encode())
        self.losses = [loss for _, loss in totals.losses.points]
        # A resumed run has had more than one process: its peak is the highest of them.
        earlier = self.run_directory.record.get("summary", {})
        summary = {
            "peak_footprint_mb": max(self.meter.peak_footprint_mb, earlier.get("peak_footprint_mb", 0)),
            "peak_rss_mb": max(self.meter.peak_rss_mb, earlier.get("peak_rss_mb", 0)),
            "predicted_footprint_mb": self.plan.predicted_footprint_mb,
            "predicted_rss_mb": self.plan.predicted_rss_mb,
            "steps": self.progress.step,
            "seconds": totals.seconds,
            "step_seconds": totals.step_seconds,
            "tokens_per_second": totals.tokens / totals.seconds if totals.seconds else 0.0,
            "first_loss": totals.first_loss,
            "final_loss": totals.final_loss,
            "first_eval_loss": evaluations[0]["loss"] if evaluations else None,
            "final_eval_loss": evaluations[-1]["loss"] if evaluations else None,
            "best_step": self.progress.best_step,
            "best_eval_loss": self.progress.best_loss if self.progress.best_step is not None else None,
        }
        self.run_directory.update(status=status, summary=summary)

    def close(self) -> None:
        """Close the scratch files."""
        self.method.close()
        self.optimizer.close()
        self.gradients.close()
        self.adapter.parameters.close()
