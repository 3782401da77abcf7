"""Opens a run to go on with it, with the options that the user changes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from featherback.core.naming import argument, arguments
from featherback.core.options import checked
from featherback.core.sizes import MB, shown_mb
from featherback.data.report import PrepareReport
from featherback.data.source import STDIN
from featherback.data.token_file import TokenFile
from featherback.engine import backend
from featherback.engine.formats import fingerprint
from featherback.engine.host.machine import memory_limit
from featherback.errors import FeatherbackError
from featherback.methods.memory.plan import Plan
from featherback.models.model import Model
from featherback.runs import checkpoint
from featherback.runs.changes import resumed_options
from featherback.runs.config import TrainConfig
from featherback.runs.examples import make_tokens, same_tokens
from featherback.runs.finish import cannot_continue, check_can_continue
from featherback.runs.held_out import split, was_split
from featherback.runs.lengths import limit_length, settle
from featherback.runs.new_run import absolute_paths, apply_machine_options, enough_tokens, source_record
from featherback.runs.outcome import describe_worsening
from featherback.runs.panels.run import PLANNED
from featherback.runs.record import PREPARED, Part
from featherback.runs.replay import arrange, own_tokens
from featherback.runs.rewards.written import check_programs
from featherback.runs.run_directory import RUN_FILE, RunDirectory
from featherback.runs.teacher_pass import plan_teacher
from featherback.runs.tools import Tools


def reopen_run(named: Mapping[str, Any], tools: Tools) -> RunDirectory:
    """Lock the run in `named["out"]`, update its options by those that the user gave, and return it.

    `named`: fields of TrainConfig, including "model" and "out". The run keeps its token files. The contents of the
    model must be those of the start. If FeatherbackError is raised, the run's options are unchanged and no note is
    printed.
    """
    notes = list[str]()  # printed only if no error is raised
    _check_options(named, tools)
    run = RunDirectory.take(named["out"])
    try:
        earlier = run.config
        opened = tools.open(named["model"], earlier.quantize)
        if run.record.model != fingerprint.of_store(opened.store):
            raise FeatherbackError(
                f"Cannot resume {run.path} with {opened.path}: the run was started with another model. "
                f"Use that model, or start a new run."
            )
        if earlier.seq_len is None:  # the command was killed before it knew the data
            settle(run, opened, tools.baseline)
        arrange(run)
        earlier = _without_loggers(run.config, named, notes.append)
        if named.get("reward") is None:
            check_programs(earlier.reward or (), run.path)
        config = resumed_options(earlier, named, opened)
        apply_machine_options(config)
        if config.eval_data is not None and earlier.eval_data is None:
            raise FeatherbackError(
                f"Cannot resume {run.path} with {argument('eval_data')}: the run has no held-out data. "
                f"Remove {argument('eval_data')}, or start a new run."
            )
        options: dict[Part, str] = {"train": "data", "eval": "eval_data"}
        for name, option in options.items():
            _check_data(run, name, option, named.get(option), config, earlier, opened, tools, notes.append)
        if cannot_continue(run):
            check_can_continue(run, config, earlier)
            tools.note(f"note: {run.path} is complete: there is nothing left to train")
            return run
        done = checkpoint.latest_step(run.path)
        if config.steps is not None and config.steps < done:
            raise FeatherbackError(
                f"{run.path} has already done {done} steps, more than {argument('steps', config.steps)}; "
                f"use at least {argument('steps', done)}."
            )
        # If these options are unchanged, the plan stays, and so does every bit of the result.
        plan = run.record.plan
        same = config if plan is None else replace(config, memory=plan.budget(config.memory))
        changed = any(getattr(same, name) != getattr(earlier, name) for name in PLANNED)
        if (reason := _why_plan_unusable(run, plan)) or changed:
            from featherback.runs.choose import plan_for  # only imported for planning, because it takes memory

            # The run keeps its compute, if the plan still shows which it was.
            compute = config.compute if plan is None else plan.compute
            rates = plan.rates if plan else {}
            plan = plan_for(replace(config, compute=compute), opened, tools.baseline)
            run.record = replace(run.record, plan=replace(plan, rates=rates))
            config = replace(config, memory=plan.budget(config.memory))
        else:
            run.plan_of(opened.blocks)
            config = same
        if reason:
            notes.append(f"note: {reason}; making a new plan")
        _allow_continuing(run, named, done)
        config = replace(config, data=earlier.data, eval_data=earlier.eval_data)
        _note_repeated_data(run, config, notes.append)
        status = run.record.status
        run.update(configuration=config, status="interrupted" if status == PREPARED else status)
        plan_teacher(run, tools.baseline)
    except BaseException:
        run.release()
        raise
    for text in notes:
        tools.note(text)
    return run


def _check_options(named: Mapping[str, Any], tools: Tools) -> None:
    """Check the user's options for resuming before anything is done. Raises FeatherbackError if one is wrong."""
    config = _without_loggers(RunDirectory.open(named["out"]).config, named, lambda _: None)
    if config.seq_len is not None:  # without a length, it is determined first
        opened = tools.open(named["model"], config.quantize, without_converting=True)
        apply_machine_options(resumed_options(config, named, opened))


def _without_loggers(recorded: TrainConfig, named: Mapping[str, Any], note: Callable[[str], None]) -> TrainConfig:
    """Return the options of a run without its loggers, unless the user named loggers.

    The directory may come from somebody else, so its record alone must not send data anywhere.
    """
    if not recorded.log_to or named.get("log_to") is not None:
        return recorded
    programs = ",".join(recorded.log_to)
    note(f"note: the run is no longer logged to {programs}; to continue logging, add {argument('log_to', programs)}")
    return replace(recorded, log_to=None)


def _why_plan_unusable(run: RunDirectory, plan: Plan | None) -> str:
    """Return why a run's recorded plan cannot be used, or "". `plan`: the plan, None if it has none."""
    if plan is None:
        return f"{run.path / RUN_FILE} has no plan"
    if (card := backend.card()) is not None:
        needed, free = round((plan.predicted_vram_mb or 0) * MB), card.memory
    else:
        needed, free = plan.needed, memory_limit()
    if needed > free:
        return f"the run's plan needs {shown_mb(needed)}, but only {shown_mb(free)} are free"
    return ""


def _allow_continuing(run: RunDirectory, named: Mapping[str, Any], done: int) -> None:
    """Let a run that stopped early go on from step `done` if the user set steps, epochs, patience or eval_every.

    Otherwise raise FeatherbackError.
    """
    if run.record.status != "stopped early":
        return
    if not named.keys() & {"steps", "epochs", "patience", "eval_every"}:
        best = "model" if run.config.train == "full" else "adapter"
        rise = describe_worsening(run.record.summary)
        kept = f"Its best {best} is kept." if rise is None else f"It is worse than before training: {rise}."
        raise FeatherbackError(
            f"{run.path} stopped early, after step {done}, because the held-out loss no longer fell. {kept} "
            f"To continue anyway, set {arguments('steps', 'epochs', 'patience')}."
        )
    run.record = replace(run.record, patient_since=done)


def _check_data(
    run: RunDirectory,
    name: Part,
    option: str,
    named: Any,
    config: TrainConfig,
    earlier: TrainConfig,
    model: Model,
    tools: Tools,
    note: Callable[[str], None],
) -> None:
    """Raise FeatherbackError if the user named data that differ from the data of the run."""
    paths: tuple[str, ...] | None = checked(TrainConfig, "data", named)
    examples = tools.examples.get(name)
    named_paths = ", ".join(paths or ())
    given = argument(option) if examples is not None else argument(option, named_paths)
    refusal = FeatherbackError(
        f"Cannot resume {run.path} with {given}: the run was started with other data, and continues with its own. "
        f"Remove {argument(option)}, or start a new run."
    )
    if examples is not None:
        with tempfile.TemporaryDirectory(prefix="featherback-") as folder:
            file = Path(folder) / "given.tokens"
            recorded = run.record.data.get(name)
            # Prepare as then: long examples were truncated only after the sequence length was known.
            source = replace(config.source_for(model, ()), long="keep")
            length, enough = config.sequence, None
            if isinstance(recorded, PrepareReport):
                length, enough = recorded.seq_len, recorded.enough
            most = config.seq_len or model.config.max_position_embeddings
            report = make_tokens(file, source, length, most, examples, model, tools.encode, enough)
            if report is not None:
                limit_length(
                    file, report, config.sequence, config.cut, "the run's sequence length", "a new run keeps them whole"
                )
            if name == "train" and was_split(run):
                split(file, Path(folder) / "held.tokens", earlier)
            kept = own_tokens(run) if name == "train" else run.tokens / f"{name}.tokens"
            if not same_tokens(TokenFile(file), TokenFile(kept)):
                raise refusal
    elif paths is not None:
        known = run.record.sources.get(name)
        if known is None:
            raise refusal
        gone = [path for path in paths if path != STDIN and not Path(path).exists()]
        if not gone and source_record(paths).fingerprint == known.fingerprint:
            return
        if absolute_paths(paths) != known.paths:
            raise refusal
        note(f"note: {named_paths} {'is missing' if gone else 'has changed'}; the run continues with its stored tokens")


def _note_repeated_data(run: RunDirectory, config: TrainConfig, note: Callable[[str], None]) -> None:
    """Send a note if the run's stored tokens were prepared for fewer steps than it has now."""
    report, enough = run.record.data["train"], enough_tokens(config)
    if not isinstance(report, PrepareReport) or not report.read_to or not report.enough:
        return
    if enough is None or enough > report.enough:
        note(
            f"note: the data were read only up to {report.read_to}, enough for the steps of the first command; "
            f"further steps repeat the same tokens"
        )
