"""The training loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from shutil import disk_usage
from typing import TYPE_CHECKING

from featherback import models, optim
from featherback.core.decode import encode
from featherback.core.naming import argument
from featherback.core.sizes import MB, shown_mb
from featherback.core.system import machine
from featherback.core.terminal import quoted
from featherback.data.token_file import TokenFile
from featherback.engine.host.interrupt import Interrupt, StoppedError
from featherback.engine.host.machine import is_ram_disk
from featherback.engine.host.maps import MapWatch
from featherback.engine.host.meter import Meter
from featherback.engine.host.sensors import Sensors
from featherback.errors import FeatherbackError
from featherback.models.model import Model
from featherback.nn.objectives.base import Objective
from featherback.nn.objectives.next_token import NEXT_TOKEN
from featherback.runs import checkpoint, guard
from featherback.runs.callback import Callback, CallbackList, GuardedCallback, report_failure
from featherback.runs.entry import delete_states, entry_states
from featherback.runs.evaluation import evaluate
from featherback.runs.events import Begin, End, Evaluation, Judged, Note, Paused, Resumed, Saved, Step
from featherback.runs.finish import cannot_continue, delete_checkpoints
from featherback.runs.loggers import loggers
from featherback.runs.outcome import LIKELIHOODS, changes, is_worse, lower_rate, repetition
from featherback.runs.record import Failure, HeldOutLoss
from featherback.runs.run_directory import RunDirectory
from featherback.runs.stream import Group, planned_steps, stream_of
from featherback.runs.summary import Change, Summary
from featherback.runs.token_files import examples_of
from featherback.runs.totals import Totals
from featherback.runs.trained import Trained, TrainedAdapter

if TYPE_CHECKING:
    from featherback.nn.objectives.recorded import Recorded
    from featherback.runs.config import TrainConfig
    from featherback.runs.rewards.judge import Function
    from featherback.runs.rollouts import RolloutSteps

METRICS_BYTES = 768
"""Upper bound of the size of a line of metrics.jsonl."""
NAP_SECONDS = 0.1
"""Interval between checks for signals while a run is paused."""


def train_run(
    run: RunDirectory,
    callback: Callback | None = None,
    model: Model | None = None,
    sensors: Sensors | None = None,
    interrupt: Interrupt | None = None,
    draw: Callable[[RunDirectory], object] | None = None,
    rewards: Mapping[str, Function] | None = None,
) -> str:
    """Train the run in a prepared directory, from its newest good checkpoint if it has one, and return the status.

    The status is "finished", "stopped early" or "interrupted" (by SIGINT, SIGTERM or SIGHUP, after saving).
    `model`: the run's model, if it is open already. `sensors`: pause the run; by default those of --pause-on.
    `interrupt`: stops the run, not entered yet; by default this process's signals. `draw`: writes the report after the
    memory of training was freed. `rewards`: functions from Python that judge answers, by name. Raises FeatherbackError
    if the run cannot go on, or fails: run.json then has the status "failed" with step and reason, and the last good
    checkpoint and result are kept. A new run that fails before the end of its first step is deleted.
    """
    callback = callback or Callback()
    run.lock()
    if cannot_continue(run):  # a resumed run with no steps left
        run.release()
        callback.tell(End(run.record.status, _summary(run)))
        return run.record.status
    status, reason, trainer, is_new = "failed", None, None, run.is_new
    meter = Meter()
    try:
        meter.start()
        with interrupt or Interrupt() as interrupt:
            run.begin_work()
            config = run.config
            if is_ram_disk(run.path):
                stay, needs = "block inputs, adapter and optimiser states", "saves this memory"
                if config.train == "full":
                    stay, needs = (
                        "block inputs and optimiser states",
                        "saves this memory, and the memory of the model's copy",
                    )
                text = (
                    f"note: {run.path} is on a RAM disk, where files do not save memory, so {stay} stay in the "
                    f"memory of the process; an {argument('out')} on a disk {needs}"
                )
                callback.tell(Note(text))
            callback = CallbackList([callback, *map(GuardedCallback, loggers(config.log_to or ()))])
            if config.nice is not None:
                machine.lower_priority(config.nice)
            sensors = sensors or Sensors(config.pause_on or ())
            model = model or models.load(config.model, config.quantize)
            if config.train == "full":
                from featherback.runs.whole import working_copy

                try:
                    model = working_copy(run, model, interrupt.check)
                except StoppedError:  # training has not begun, so there is nothing to save
                    status = "interrupted"
                    return status
            with MapWatch(model.maps, model.close) as maps:
                trainer = Trainer(run, callback, model, meter, interrupt, maps, sensors, rewards)
                status = trainer.train()
            if status != "interrupted":
                from featherback.runs.samples import make_samples

                trainer = None  # free its memory for the answers
                make_samples(run, model, callback, interrupt.check)
                _record_repetition(run, model)
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
        if status != "interrupted" and (stays := delete_checkpoints(run, status)):
            callback.tell(Note(stays))
    finally:
        meter.stop()
        run.remove_work()
        if status != "interrupted":
            delete_states(run)
        if status == "failed" and is_new and run.is_untrained:
            run.delete()
        elif status in ("failed", "interrupted"):
            step = trainer.progress.step if trainer else checkpoint.latest_step(run.path)
            with suppress(FeatherbackError):  # the disk is full, which the original error reports
                run.update(status=status, failure=Failure(step, reason) if reason else None)
        run.release()
    callback.tell(End(status, _summary(run)))
    return status


def _judged(summary: Summary, config: TrainConfig, model: Model, status: str) -> Summary:
    """Return the summary with the verdict whether the run ended worse than it began, and then what to change."""
    if status == "interrupted" or not is_worse(summary):
        return replace(summary, worse=False, recommended={})
    usual = config.default_peak_rate(model.config)
    recommended = changes(summary, config.peak_learning_rate, usual, config.epochs)
    return replace(summary, worse=True, recommended=recommended)


def _record_repetition(run: RunDirectory, model: Model) -> None:
    """Add to the summary how much the sample answers repeat themselves, before training and after.

    It is only of use for preferences, whose loss does not show that a model has forgotten how to write.
    """
    record = run.record
    if run.config.most_answers > 1 and record.samples:
        before, after = (repetition(getattr(each, name) for each in record.samples) for name in ("before", "after"))
        summary = replace(_summary(run), repetition=after, repetition_before=before)
        run.update(summary=_judged(summary, run.config, model, record.status))


def _record_peaks(run: RunDirectory, meter: Meter) -> None:
    """Update the recorded peaks with the memory used after the last step."""
    run.update(summary=_with_peaks(_summary(run), meter))


def _with_peaks(summary: Summary, meter: Meter) -> Summary:
    footprint = max(summary.peak_footprint_mb, meter.peak_footprint_mb)
    return replace(summary, peak_footprint_mb=footprint, peak_rss_mb=max(summary.peak_rss_mb, meter.peak_rss_mb))


def _summary(run: RunDirectory) -> Summary:
    assert run.record.summary is not None  # training has ended
    return run.record.summary


def _report(run: RunDirectory, callback: Callback, draw: Callable[[RunDirectory], object]) -> None:
    """Write the report of the run. If that fails, only a note is sent."""
    try:
        draw(run)
    except FeatherbackError as error:
        again = quoted("featherback", "report", run.path)
        callback.tell(Note(f"note: the report could not be written: {error} To write it later: {again}"))


def _recorded(objective: Objective) -> Recorded:
    from featherback.nn.objectives.recorded import Recorded  # only where it is needed, because it takes memory

    return Recorded(inner=objective)


class Trainer:
    """Trains a run in one process, which holds the lock of the directory."""

    def __init__(
        self,
        run: RunDirectory,
        callback: Callback,
        model: Model,
        meter: Meter,
        interrupt: Interrupt,
        maps: MapWatch,
        sensors: Sensors,
        rewards: Mapping[str, Function] | None = None,
    ) -> None:
        self.run_directory, self.callback, self.model, self.meter = run, callback, model, meter
        self.interrupt, self.maps, self.sensors = interrupt, maps, sensors
        self.config = config = run.config
        self.progress = checkpoint.Progress()
        config.use_machine()
        self.plan = run.plan_of(self.model.blocks)
        self.objective = config.criterion
        self.recorded: Recorded | None = None  # adds up the measures of preferences, labels or distillation
        if self.objective.measured:
            self.objective = self.recorded = _recorded(self.objective)
        tokens = self._tokens("train")
        self.held_out = self._tokens("eval") if "eval" in run.record.data else None
        self.stream = stream_of(config, tokens)
        self.steps = planned_steps(config, self.stream)
        self.schedule = optim.Schedule(
            config.schedule, config.peak_learning_rate, self.steps, config.warmup_steps(self.steps)
        )
        self.trained = self._trained()
        self.rollouts = self._rollouts(tokens, rewards) if config.writes else None
        self._measures()  # forget those of the dry run that counted memory

    def _trained(self) -> Trained:
        run, model, plan = self.run_directory, self.model, self.plan
        if self.config.train == "lora":
            return TrainedAdapter(run, model, plan, self.objective)
        from featherback.runs.whole import TrainedWeights  # only imported if needed, because it takes memory

        return TrainedWeights(run, model, plan, self.objective)

    def _rollouts(self, tokens: TokenFile, functions: Mapping[str, Function] | None) -> RolloutSteps:
        from featherback.data.prompts import PromptFile
        from featherback.runs.rewards.judge import Judge
        from featherback.runs.rollouts import RolloutSteps, pen_of

        config = self.config
        assert isinstance(tokens, PromptFile)
        assert isinstance(self.trained, TrainedAdapter)
        judge = Judge(config.reward or (), config.reward_limits, functions)
        pen = pen_of(config, self.plan, self.model, self.trained.adapter, judge)
        return RolloutSteps(config.rollouts, config.seed, pen, self.trained, tokens, lambda: self.stream.take(1))

    def train(self) -> str:
        """Train to the end, or until interrupted; return the status."""
        try:
            self._check_room()
            self._resume()
            self._keep_states()
            self.run_directory.update(status="running", steps=self.steps, failure=None)
            self.callback.tell(self._begin())
            try:
                status = self._loop()
            except guard.DivergenceError as error:
                kept = self._restore_good_state(error.step)
                rate = lower_rate(self.config.peak_learning_rate, self.config.default_peak_rate(self.model.config))
                raise FeatherbackError(f"Training has stopped: {error}, for example to {rate:g}. {kept}") from error
            self._finish(status)
        except BaseException as error:
            report_failure(self.callback, self.progress.step, error)
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
            configuration=encode(config),
        )

    def _tokens(self, name: str) -> TokenFile:
        file = examples_of(self.run_directory, name)
        self.maps.add(file.maps())
        file.check(self.model.config.vocab_size)
        return file

    def _measures(self) -> dict[str, float]:
        """Return the measures of the batches since the last call; none if the objective has none."""
        own = {} if self.rollouts is None else self.rollouts.take_measures()
        return own if self.recorded is None else {**own, **self.recorded.take()}

    def _check_room(self) -> None:
        """Raise FeatherbackError if the disk has too little space for the files of the run."""
        run = self.run_directory
        needed = self.trained.disk_bytes + self.steps * METRICS_BYTES
        model, tokens = self.model.config, self.plan.tokens
        if self.plan.checkpoints == "file":
            operand = self.trained.method.resources.backend.operand.itemsize
            inputs = model.num_hidden_layers - self.trained.method.first_trained
            needed += tokens * model.hidden_size * (inputs * operand + 4 * self.plan.chunked)
        free = disk_usage(run.path).free
        self._room = free - needed
        if free < needed:
            raise FeatherbackError(
                f"The disk of {run.path} has {shown_mb(free, 1)} free, but the run needs up to {shown_mb(needed, 1)} "
                f"for checkpoints, {self.trained.name} and scratch files. Free some space, or choose "
                f"another {argument('out')}."
            )

    def _keep_states(self) -> None:
        """Keep the hidden states that enter the lowest trained layer, of the data that pass more than once."""
        files = {} if self.held_out is None else {"eval": self.held_out}
        if self.steps > self.stream.steps(1, self.config.accumulate):
            files["train"] = self.stream.tokens
        method = self.trained.method
        method.entry_states = entry_states(
            self.run_directory,
            self.model,
            method,
            self.plan,
            files,
            self._room,
            lambda text: self.callback.tell(Note(text)),
        )

    def _resume(self) -> None:
        run = self.run_directory
        state, notes = self.trained.restore()
        for note in notes:
            self.callback.tell(Note(f"note: {note}"))
        if state is not None:
            self.progress = state
            self.stream.seek(self.progress.position)
            if run.record.patient_since == self.progress.step:
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
            except StoppedError:  # the evaluation is repeated when the run is resumed
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
                if step > saved:  # the battery may run out
                    self._save()
                    saved = step
                self._wait()
            else:
                try:
                    if not self._step():
                        self.steps = progress.step
                except StoppedError:  # while answers were written; the step is repeated when the run is resumed
                    pass

    def _wait(self) -> None:
        """Wait until no sensor asks for a pause, or a signal arrives."""
        waited = False
        while (reason := self.sensors.reason()) and not self.interrupt.requested:
            self.callback.tell(Paused(reason))
            waited = True
            time.sleep(NAP_SECONDS)
        if waited:
            self.callback.tell(Resumed())

    def _is_due(self, step: int, last: bool) -> bool:
        """Return whether the held-out loss must be measured after `step` and has not been measured yet."""
        done = self.progress.evaluations
        if self.held_out is None or (done and done[-1].step == step):
            return False
        every = self.config.measured_every(self.steps, self.held_out.n_tokens, self.stream.tokens.mean_length)
        return last or step % every == 0

    def _is_lost(self, patience: int) -> bool:
        """Return whether each of the last `patience` held-out losses is far above the one before training."""
        since = self.run_directory.record.patient_since
        losses = [each.loss for each in self.progress.evaluations if each.step > since][-patience:]
        if len(losses) < patience:
            return False
        before = self.progress.evaluations[0].loss
        size, per_token = self.model.config.vocab_size, self.objective.of_tokens
        return all(guard.is_lost(loss, before, size, per_token) for loss in losses)

    def _step(self) -> bool:
        """Do one optimiser step; return False if the data are used up."""
        config, progress = self.config, self.progress
        start = time.perf_counter()
        group = self.stream.take(config.accumulate)
        if group is None:
            return False
        lr = self.schedule(progress.step + 1)
        loss, norm, learned = self._learn(group, lr, progress.step + 1)
        progress.step += 1
        progress.position = self.stream.position
        event = Step(
            step=progress.step,
            loss=loss,
            lr=lr,
            grad_norm=norm,
            tokens=learned,
            seconds=time.perf_counter() - start,
            footprint_mb=self.meter.footprint_mb,
            rss_mb=self.meter.rss_mb,
            measures=self._measures(),
        )
        self.run_directory.append_metrics(event.values())
        self.callback.tell(event)
        return True

    def _learn(self, group: Group, lr: float, step: int) -> tuple[float, float, int]:
        """Do the work of a step. Returns loss, norm of the gradient, and the tokens of the step."""
        if self.rollouts is None:
            return *self.trained.step(group, lr, step, self.maps.check), group.n_tokens
        outcome, tokens = self.rollouts.step(group, lr, step, self._between_batches, self.maps.check)
        return *outcome, tokens

    def _evaluate(self) -> None:
        """Measure the held-out loss; if it is the lowest so far, export the result.

        Raises StoppedError if a signal arrives meanwhile; nothing is recorded then.
        """
        progress = self.progress
        mean = self.config.averages and progress.step > 0
        loss, measures, answers = self._held_out_loss(mean)
        per_token = self.objective.of_tokens
        guard.check_loss(loss, "the held-out loss", progress.step, progress.step, self.model, per_token)
        # At the end the learning rate is low, so the last adapter has little noise and may be better than the mean.
        if mean and progress.step >= self.steps and (last := self._held_out_loss(mean=False))[0] < loss:
            (loss, measures, answers), mean = last, False
        progress.evaluations.append(HeldOutLoss(progress.step, loss, mean, measures, answers))
        if progress.step:
            if progress.best_loss is None or loss < progress.best_loss:
                progress.best_step, progress.best_loss, progress.stale = progress.step, loss, 0
                self.trained.export(mean)
            else:
                progress.stale += 1
        self.run_directory.update(evaluations=progress.evaluations)
        best = progress.best_step == progress.step
        self.callback.tell(Evaluation(progress.step, loss, best, mean, measures, answers))

    def _held_out_loss(self, mean: bool) -> tuple[float, dict[str, float], list[Judged]]:
        """Return the held-out loss, its measures if there are any, and answers if the model writes them."""
        assert self.held_out is not None
        objective = NEXT_TOKEN if self.objective.of_tokens else self.objective
        if self.rollouts is not None:
            with self.trained.showing(mean):
                measures, answers = self.rollouts.evaluate(self.held_out, self._between_batches)
            return 0.0 - measures["reward"], measures, answers
        self._measures()  # forget those of an evaluation that a signal ended
        sizes, examples = (self.config.batching.seq_len, self.config.batching.full), self.config.step_batching.examples
        together = examples if self.config.compares else None
        with self.trained.showing(mean):
            loss = evaluate(self.trained.method, self.held_out, *sizes, self._between_batches, objective, together).loss
        return loss, self._measures(), []

    def _between_batches(self) -> None:
        self.maps.check()
        self._wait()
        self.interrupt.check()

    def _save(self) -> None:
        # The export comes before the checkpoint: a run killed between the two repeats both.
        run, progress = self.run_directory, self.progress
        run.sync_metrics()
        path = self.trained.save(progress, export=progress.best_step is None)
        self.callback.tell(Saved(progress.step, str(path)))

    def _restore_good_state(self, step: int) -> str:
        """Return to the last good state before `step`, whose parameters are in doubt; describe what is kept."""
        run, name = self.run_directory, self.trained.name
        checkpoint.discard(run.path, step)
        best = self.progress.best_step
        if best is not None and (best < step or self._is_of_mean(best)):
            return f"The {name} of step {best}, which has the lowest held-out loss, is kept."
        try:
            state, _ = self.trained.restore()
        except FeatherbackError:
            state = None
        if state is None:
            self.trained.remove()
            return f"No {name} was saved before."
        self.trained.export(mean=True)
        return f"The checkpoint and the {name} of step {state.step} are kept."

    def _is_of_mean(self, step: int) -> bool:
        """Return whether the held-out loss after `step` was measured with the mean, which later steps do not change."""
        return any(each.step == step and each.mean for each in self.progress.evaluations)

    def _finish(self, status: str) -> None:
        totals = Totals(self.run_directory.metrics(), self.progress.step, LIKELIHOODS)
        evaluations = self.progress.evaluations
        # A resumed run had more than one process; its peak is the highest of theirs.
        earlier = self.run_directory.record.summary
        summary = Summary(
            steps=self.progress.step,
            seconds=totals.seconds,
            step_seconds=totals.step_seconds,
            tokens_per_second=totals.tokens / totals.seconds if totals.seconds else 0.0,
            peak_footprint_mb=earlier.peak_footprint_mb if earlier else 0.0,
            peak_rss_mb=earlier.peak_rss_mb if earlier else 0.0,
            predicted_footprint_mb=self.plan.predicted_footprint_mb,
            predicted_rss_mb=self.plan.predicted_rss_mb,
            first_loss=totals.first_loss,
            final_loss=totals.final_loss,
            early_loss=totals.early.pop("loss", None),
            late_loss=totals.late.pop("loss", None),
            first_eval_loss=evaluations[0].loss if evaluations else None,
            final_eval_loss=evaluations[-1].loss if evaluations else None,
            best_step=self.progress.best_step,
            best_eval_loss=self.progress.best_loss,
        )
        if evaluations and not self.objective.of_tokens:
            kept = [each for each in evaluations if each.step == self.progress.best_step] or evaluations[-1:]
            summary = replace(summary, held_out=Change(evaluations[0].measures, kept[0].measures))
        elif not self.objective.of_tokens:
            summary = replace(summary, training=Change(totals.early, totals.late))
        summary = _judged(_with_peaks(summary, self.meter), self.config, self.model, status)
        self.run_directory.update(status=status, summary=summary)

    def close(self) -> None:
        """Close the scratch files."""
        if self.trained.method.entry_states is not None:
            self.trained.method.entry_states.close()
        self.trained.close()
