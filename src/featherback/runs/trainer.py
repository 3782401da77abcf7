"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from shutil import disk_usage
from typing import Any

from featherback import models, optim
from featherback.core.naming import argument
from featherback.core.sizes import MB, shown_mb
from featherback.core.terminal import quoted
from featherback.data.token_file import TokenFile
from featherback.engine import kernels
from featherback.engine.host.interrupt import Interrupt, StoppedError
from featherback.engine.host.machine import is_ram_disk
from featherback.engine.host.maps import MapWatch
from featherback.engine.host.meter import Meter
from featherback.engine.host.priority import step_back
from featherback.engine.host.sensors import Sensors
from featherback.errors import FeatherbackError
from featherback.models.model import Model
from featherback.runs import checkpoint, guard
from featherback.runs.callback import Callback, Guarded, Together, tell_failure
from featherback.runs.ended import clear, is_closed
from featherback.runs.evaluation import evaluate
from featherback.runs.events import Begin, End, Evaluation, Note, Paused, Resumed, Saved, Step
from featherback.runs.loggers import loggers
from featherback.runs.outcome import changes, is_worse
from featherback.runs.run_directory import RunDirectory, are_evaluations
from featherback.runs.stream import BatchStream
from featherback.runs.totals import Totals
from featherback.runs.trained import Trained, TrainedAdapter

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
        damaged = FeatherbackError("The checkpoint's state is damaged.")
        try:
            best = math.inf if values["best_loss"] is None else values["best_loss"]
            progress = cls(**{**values, "position": tuple(values["position"]), "best_loss": best})
        except (KeyError, TypeError):
            raise damaged from None
        counts = (progress.step, progress.stale, progress.best_step or 0, *progress.position)
        if not all(map(checkpoint.is_count, counts)) or len(progress.position) != 2:
            raise damaged
        if not isinstance(best, (int, float)) or not are_evaluations(progress.evaluations):
            raise damaged
        return progress


def train_run(
    run: RunDirectory,
    callback: Callback | None = None,
    model: Model | None = None,
    sensors: Sensors | None = None,
    interrupt: Interrupt | None = None,
    draw: Callable[[RunDirectory], object] | None = None,
) -> str:
    """Train what a prepared run directory says, from its newest good checkpoint if it has one.

    The status: "finished", "stopped early" or "interrupted" (by SIGINT, SIGTERM or SIGHUP; saved).
    `model`: the run's model if it is open already. `sensors`: what makes it wait; default: what its options name.
    `interrupt`: what stops it, not entered yet; default: this process's signals from now on.
    `draw`: writes the run's report when the memory of training is free again.
    FeatherbackError if the run cannot go on, or went wrong: run.json
    then has the status "failed" with step and reason, and the last good checkpoint and result are kept.
    """
    callback = callback or Callback()
    run.lock()
    if is_closed(run):  # resumed, and there is nothing left to do
        run.release()
        status = run.record["status"]
        callback.tell(End(status, run.record["summary"]))
        return status
    status, reason, trainer = "failed", None, None
    meter = Meter()
    try:
        meter.start()
        with interrupt or Interrupt() as interrupt:
            run.begin_work()
            config = run.config
            if is_ram_disk(run.path):
                stay, needs = "block inputs, adapter and optimizer", "needs less"
                if config.train == "full":
                    stay, needs = "block inputs and optimizer", "saves that, and the copies of the model"
                text = (
                    f"note: {run.path} is on a RAM disk, where files would save no memory, so {stay} stay in the "
                    f"process; another {argument('out')}, on a disk, {needs}"
                )
                callback.tell(Note(text))
            callback = Together([callback, *map(Guarded, loggers(config.log_to or ()))])
            if config.nice is not None:
                step_back(config.nice)
            sensors = sensors or Sensors(config.pause_on or ())
            model = model or models.load(config.model, config.quantize)
            if config.train == "full":
                from featherback.runs.whole import working_copy

                try:
                    model = working_copy(run, model, interrupt.check)
                except StoppedError:  # nothing was begun that would have an end
                    status = "interrupted"
                    return status
            with MapWatch([*model.files, *run.tokens.glob("*")], model.close) as maps:
                trainer = Trainer(run, callback, model, meter, interrupt, maps, sensors)
                status = trainer.train()
            if status != "interrupted":
                from featherback.runs.samples import tell_samples

                trainer = None  # and with it the memory that the answers take
                tell_samples(run, model, callback, interrupt.check)
    except KeyboardInterrupt:  # a second signal
        status = "interrupted"
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise
    else:
        if draw is not None:
            _report(run, callback, draw)
        if status != "interrupted":
            _record_peaks(run, meter)
        if status != "interrupted" and (stays := clear(run, status)):
            callback.tell(Note(stays))
    finally:
        meter.stop()
        run.remove_work()
        if status in ("failed", "interrupted"):
            step = trainer.progress.step if trainer else checkpoint.latest_step(run.path)
            with suppress(FeatherbackError):  # a full disk, which is being reported
                run.update(status=status, failure={"step": step, "reason": reason} if reason else None)
        run.release()
    callback.tell(End(status, run.record["summary"]))
    return status


def _record_peaks(run: RunDirectory, meter: Meter) -> None:
    """The peaks of the whole process, of what came after the last step too."""
    peaks = {"peak_footprint_mb": meter.peak_footprint_mb, "peak_rss_mb": meter.peak_rss_mb}
    summary = run.record["summary"]
    run.update(summary={**summary, **{name: max(peak, summary[name]) for name, peak in peaks.items()}})


def _report(run: RunDirectory, callback: Callback, draw: Callable[[RunDirectory], object]) -> None:
    """Write the report of the run; the run is none the worse if that fails."""
    try:
        draw(run)
    except FeatherbackError as error:
        again = quoted("featherback", "report", run.path)
        callback.tell(Note(f"note: there is no report: {error} {again} makes it later."))


class Trainer:
    """One process's part of a run. The directory is its own."""

    def __init__(
        self,
        run: RunDirectory,
        callback: Callback,
        model: Model,
        meter: Meter,
        interrupt: Interrupt,
        maps: MapWatch,
        sensors: Sensors,
    ) -> None:
        self.run_directory, self.callback, self.model, self.meter = run, callback, model, meter
        self.interrupt, self.maps, self.sensors = interrupt, maps, sensors
        self.config = config = run.config
        self.progress = Progress()
        kernels.set_threads(config.threads or kernels.default_threads())
        self.plan = run.plan_of(self.model.blocks)
        tokens = self._tokens("train")
        self.held_out = self._tokens("eval") if "eval" in run.record["data"] else None
        self.stream = BatchStream(tokens, config.batching, config.seed, config.epochs)
        self.steps = config.steps or self.stream.steps(config.epochs or 1, config.accumulate)
        self.schedule = optim.Schedule(
            config.schedule, config.peak_learning_rate, self.steps, config.warmup_steps(self.steps)
        )
        self.trained = self._trained()

    def _trained(self) -> Trained:
        run, model, plan = self.run_directory, self.model, self.plan
        if self.config.train == "lora":
            return TrainedAdapter(run, model, plan, self.steps)
        from featherback.runs.whole import TrainedWeights  # only where it is needed: it takes memory

        return TrainedWeights(run, model, plan)

    def train(self) -> str:
        """Run to the end, or until interrupted; the status."""
        try:
            self._check_room()
            self._resume()
            self.run_directory.update(status="running", steps=self.steps, failure=None)
            self.callback.tell(self._begin())
            try:
                status = self._loop()
            except guard.DivergenceError as error:
                kept = self._retreat(error.step)
                raise FeatherbackError(f"Training has stopped: {error}. {kept}") from error
            self._finish(status)
        except BaseException as error:
            tell_failure(self.callback, self.progress.step, error)
            raise
        finally:
            self.close()
        return status

    def _begin(self) -> Begin:
        run, config = self.run_directory, self.config
        return Begin(
            run=str(run.path),
            steps=self.steps,
            step=self.progress.step,
            memory_mb=None if config.budget is None else config.budget / MB,
            predicted_rss_mb=self.plan.predicted_rss_mb,
            configuration=run.record["configuration"],
        )

    def _tokens(self, name: str) -> TokenFile:
        file = TokenFile(self.run_directory.tokens / f"{name}.tokens")
        file.check(self.model.config.vocab_size)
        return file

    def _check_room(self) -> None:
        """FeatherbackError if the disk cannot take what the run will write."""
        run = self.run_directory
        needed = self.trained.disk_bytes + self.steps * METRICS_BYTES
        model, tokens = self.model.config, self.plan.tokens
        if self.plan.checkpoints == "file":
            operand = self.trained.method.resources.backend.operand.itemsize
            needed += tokens * model.hidden_size * (model.num_hidden_layers * operand + 4 * self.plan.chunked)
        free = disk_usage(run.path).free
        if free < needed:
            raise FeatherbackError(
                f"The disk of {run.path} has {shown_mb(free, 1)} free and the run needs up to {shown_mb(needed, 1)} "
                f"for checkpoints, {self.trained.name} and scratch files: free some, or choose "
                f"another {argument('out')}."
            )

    def _resume(self) -> None:
        run = self.run_directory
        state, notes = self.trained.restore()
        for note in notes:
            self.callback.tell(Note(f"note: {note}"))
        if state is not None:
            self.progress = Progress.from_json(state)
            self.stream.seek(self.progress.position)
            if run.record.get("patient_since") == self.progress.step:
                self.progress.stale = 0
        run.rewind(self.progress.step)

    def _loop(self) -> str:
        config, progress, patience = self.config, self.progress, self.config.stops_after
        saved = progress.step
        while True:
            step = progress.step
            last = step >= self.steps
            try:
                if self._is_due(step, last):
                    self._evaluate()
            except StoppedError:  # it begins anew when the run is resumed
                pass
            stop = patience is not None and (progress.stale >= patience or self._is_lost(patience))
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
            self.callback.tell(Paused(reason))
            waited = True
            time.sleep(NAP_SECONDS)
        if waited:
            self.callback.tell(Resumed())

    def _is_due(self, step: int, last: bool) -> bool:
        """Whether the held-out loss is to be measured after `step`, and has not been."""
        done = self.progress.evaluations
        if self.held_out is None or (done and done[-1]["step"] == step):
            return False
        every = self.config.measured_every(self.steps, self.held_out.n_tokens, self.stream.tokens.mean_length)
        return last or step % every == 0

    def _is_lost(self, patience: int) -> bool:
        """Whether each of the last `patience` held-out losses is far above the one before training."""
        since = self.run_directory.record.get("patient_since", 0)
        losses = [each["loss"] for each in self.progress.evaluations if each["step"] > since][-patience:]
        if len(losses) < patience:
            return False
        before = self.progress.evaluations[0]["loss"]
        return all(guard.is_lost(loss, before, self.model.config.vocab_size) for loss in losses)

    def _step(self) -> bool:
        """One optimiser step; False if the data are used up."""
        config, progress = self.config, self.progress
        start = time.perf_counter()
        group = self.stream.take(config.accumulate)
        if group is None:
            return False
        lr = self.schedule(progress.step + 1)
        loss, norm = self.trained.step(group, lr, progress.step + 1, self.maps.check)
        progress.step += 1
        progress.position = self.stream.position
        event = Step(
            step=progress.step,
            loss=loss,
            lr=lr,
            grad_norm=norm,
            tokens=group.n_tokens,
            seconds=time.perf_counter() - start,
            footprint_mb=self.meter.footprint_mb,
            rss_mb=self.meter.rss_mb,
        )
        self.run_directory.append_metrics(event.values())
        self.callback.tell(event)
        return True

    def _evaluate(self) -> None:
        """Measure the held-out loss; if it is the best so far, the run directory gets this adapter.

        StoppedError if a signal came meanwhile: nothing is recorded then.
        """
        progress = self.progress
        mean = self.config.averages and progress.step > 0
        loss = self._measured(mean)
        guard.check_loss(loss, "the held-out loss", progress.step, progress.step, self.model)
        # In the end the learning rate has fallen, and little noise is left in the last: it may be the better.
        if mean and progress.step >= self.steps and (last := self._measured(mean=False)) < loss:
            loss, mean = last, False
        progress.evaluations.append({"step": progress.step, "loss": loss, "mean": mean})
        if progress.step:
            if loss < progress.best_loss:
                progress.best_step, progress.best_loss, progress.stale = progress.step, loss, 0
                self.trained.export(mean)
            else:
                progress.stale += 1
        self.run_directory.update(evaluations=progress.evaluations)
        best = progress.best_step == progress.step
        self.callback.tell(Evaluation(progress.step, loss, best, mean))

    def _measured(self, mean: bool) -> float:
        assert self.held_out is not None
        config = self.config
        with self.trained.showing(mean):
            return evaluate(
                self.trained.method, self.held_out, config.sequence, config.batching.full, self._between
            ).loss

    def _between(self) -> None:
        self.maps.check()
        self._wait()
        self.interrupt.check()

    def _save(self) -> None:
        # What it exports comes first: a run killed between the two comes here again.
        run, progress = self.run_directory, self.progress
        run.sync_metrics()
        path = self.trained.save(progress.step, progress.to_json(), export=progress.best_step is None)
        self.callback.tell(Saved(progress.step, str(path)))

    def _retreat(self, step: int) -> str:
        """Back to what is known to be good, before `step`, whose parameters are in doubt; in words, what that is."""
        run, name = self.run_directory, self.trained.name
        checkpoint.discard(run.path, step)
        best = self.progress.best_step
        if best is not None and (best < step or self._is_of_mean(best)):
            return f"The {name} of step {best}, of the lowest held-out loss, is kept."
        try:
            state, _ = self.trained.restore()
        except FeatherbackError:
            state = None
        if state is None:
            self.trained.remove()
            return f"No {name} had been saved before."
        self.trained.export(mean=True)
        return f"The checkpoint and the {name} of step {state['step']} are kept."

    def _is_of_mean(self, step: int) -> bool:
        """Whether the held-out loss after `step` is the mean's, which was found good whatever became of the step."""
        return any(each["step"] == step and each.get("mean") for each in self.progress.evaluations)

    def _finish(self, status: str) -> None:
        totals = Totals(self.run_directory.metrics(), self.progress.step)
        evaluations = self.progress.evaluations
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
            "early_loss": totals.early_loss,
            "late_loss": totals.late_loss,
            "first_eval_loss": evaluations[0]["loss"] if evaluations else None,
            "final_eval_loss": evaluations[-1]["loss"] if evaluations else None,
            "best_step": self.progress.best_step,
            "best_eval_loss": self.progress.best_loss if self.progress.best_step is not None else None,
        }
        summary["worse"] = status != "interrupted" and is_worse(summary)
        if summary["worse"]:
            config, usual = self.config, self.config.usual_rate(self.model.config)
            summary["recommended"] = changes(summary, config.peak_learning_rate, usual, config.epochs)
        self.run_directory.update(status=status, summary=summary)

    def close(self) -> None:
        """Close the scratch files."""
        self.trained.close()
