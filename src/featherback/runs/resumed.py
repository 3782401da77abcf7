"""The stages of a run that goes on (`stages.RESUMED`)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from featherback.core.naming import argument, arguments
from featherback.core.options import checked
from featherback.core.sizes import shown_mb
from featherback.data.source import STDIN
from featherback.data.token_file import TokenFile
from featherback.engine.formats import fingerprint
from featherback.engine.host.machine import memory_limit
from featherback.errors import FeatherbackError
from featherback.methods.memory.plan import Plan
from featherback.models.model import Model
from featherback.runs import checkpoint
from featherback.runs.changes import continued
from featherback.runs.config import TrainConfig
from featherback.runs.ended import check_over, is_closed
from featherback.runs.given import make_tokens, same_tokens
from featherback.runs.held_out import hold_out, split, was_split
from featherback.runs.launch import enough_tokens, heed, places, source_of
from featherback.runs.lengths import hold_to, settle_length
from featherback.runs.outcome import worsening
from featherback.runs.panels.run import PLANNED
from featherback.runs.run_directory import RUN_FILE, RunDirectory, plan_from_json
from featherback.runs.stages import Means, Named, Prepared


def check_again(named: Named, means: Means) -> Named:
    """FeatherbackError if the options that are named, or the paths among them, are wrong: before anything is done."""
    options = named.options
    config = _unlogged(RunDirectory.open(options["out"]).config, options, lambda _: None)
    if config.seq_len is not None:  # else it is settled first
        heed(continued(config, options, means.open(options["model"], config.quantize, foresee=True)))
    return named


def take_up(named_options: Named, means: Means) -> Prepared:
    """Take up the run in `out`, with its own token files, locked; "model" must hold what it held at the start.

    All options that are not named are the run's. FeatherbackError leaves the options as they were, and comes without a
    note.
    """
    named = named_options.options
    notes = list[str]()  # for when nothing is refused any more
    run = RunDirectory.take(named["out"])
    try:
        earlier = run.config
        opened = means.open(named["model"], earlier.quantize)
        if run.record.get("model") != fingerprint.of_store(opened.store):
            raise FeatherbackError(
                f"Cannot resume {run.path} with {opened.path}: it is not the model that the run was begun with; "
                f"bring that one back, or begin another run."
            )
        settle_length(run, lambda: opened, means.baseline)
        hold_out(run)
        earlier = _unlogged(run.config, named, notes.append)
        config = continued(earlier, named, opened)
        heed(config)
        if config.eval_data is not None and earlier.eval_data is None:
            raise FeatherbackError(f"Cannot resume {run.path} with {argument('eval_data')}: the run was begun without.")
        for name, option in (("train", "data"), ("eval", "eval_data")):
            _check_data(run, name, option, named.get(option), config, earlier, opened, means, notes.append)
        if is_closed(run):
            check_over(run, config, earlier)
            return Prepared(run, is_new=False, existed=True)
        done = checkpoint.latest_step(run.path)
        if config.steps is not None and config.steps < done:
            raise FeatherbackError(
                f"{run.path} has done {done} steps already, more than {argument('steps', config.steps)}; "
                f"name at least as many."
            )
        # As long as these are the same the plan stays, and with it every bit.
        plan = plan_from_json(run.record.get("plan"))
        same = config if plan is None else replace(config, memory=plan.budget(config.memory))
        changed = any(getattr(same, name) != getattr(earlier, name) for name in PLANNED)
        if (reason := _no_plan(run, plan)) or changed:
            from featherback.runs.choose import plan_for  # what only plans is not there at other times

            # What it computes in stays, as far as it is known.
            compute = config.compute if plan is None else plan.compute
            rates = plan.rates if plan else {}
            plan = plan_for(replace(config, compute=compute), opened, means.baseline)
            run.record["plan"] = asdict(replace(plan, rates=rates))
            config = replace(config, memory=plan.budget(config.memory))
        else:
            run.plan_of(opened.blocks)
            config = same
        if reason:
            notes.append(f"note: {reason}; the plan is made anew")
        _be_patient(run, named, done)
        config = replace(config, data=earlier.data, eval_data=earlier.eval_data)
        _tell_repeated(run, config, notes.append)
        run.update(configuration=config.to_json())
    except BaseException:
        run.release()
        raise
    for text in notes:
        means.note(text)
    return Prepared(run, is_new=False, existed=True)


def _unlogged(recorded: TrainConfig, named: Mapping[str, Any], note: Callable[[str], None]) -> TrainConfig:
    """The options of a run without the programs that it was logged to, unless the user named any: what a directory
    says, which may be a stranger's, sends nothing anywhere."""
    if not recorded.log_to or named.get("log_to") is not None:
        return recorded
    programs = ",".join(recorded.log_to)
    note(f"note: the run was logged to {programs} and no longer is; to go on with that: {argument('log_to', programs)}")
    return replace(recorded, log_to=None)


def _no_plan(run: RunDirectory, plan: Plan | None) -> str:
    """Why the plan on a run's record will not do, if it will not. `plan`: what could be read of it."""
    if plan is None:
        return f"{run.path / RUN_FILE} holds no plan of this version of Featherback"
    needed, free = plan.needed, memory_limit()
    if needed > free:
        return f"the run's plan needs {shown_mb(needed)}, and {shown_mb(free)} are free"
    return ""


def _be_patient(run: RunDirectory, named: Mapping[str, Any], done: int) -> None:
    """Let a run that stopped early go on from step `done`, if the user named how far or how patiently.

    FeatherbackError if not.
    """
    if run.record.get("status") != "stopped early":
        return
    if not named.keys() & {"steps", "epochs", "patience", "eval_every"}:
        best = "model" if run.config.train == "full" else "adapter"
        rise = worsening(run.record.get("summary", {}))
        kept = f"Its best {best} is kept." if rise is None else f"It is worse than before training: {rise}."
        raise FeatherbackError(
            f"{run.path} stopped early, after step {done}: the held-out loss no longer fell. {kept} "
            f"To go on all the same, name {arguments('steps', 'epochs', 'patience')}."
        )
    run.record["patient_since"] = done


def _check_data(
    run: RunDirectory,
    name: str,
    option: str,
    named: Any,
    config: TrainConfig,
    earlier: TrainConfig,
    model: Model,
    means: Means,
    note: Callable[[str], None],
) -> None:
    """FeatherbackError if data are named to resume a run that was begun with others."""
    paths: tuple[str, ...] | None = checked(TrainConfig, "data", named)
    examples = means.examples.get(name)
    named_paths = ", ".join(paths or ())
    given = argument(option) if examples is not None else argument(option, named_paths)
    refusal = FeatherbackError(
        f"Cannot resume {run.path} with {given}: the run was begun with other data, whose tokens it keeps; "
        f"leave {argument(option)} out, or begin another run."
    )
    if examples is not None:
        with tempfile.TemporaryDirectory(prefix="featherback-") as folder:
            file = Path(folder) / "given.tokens"
            told = run.record.get("data", {}).get(name, {})
            # As it was prepared: the run's length came later, and what is beyond it was cut only then.
            source = replace(config.source(()), long="keep")
            length, enough = told.get("seq_len", config.sequence), told.get("enough")
            most = config.seq_len or model.config.max_position_embeddings
            report = make_tokens(file, source, length, most, examples, model, means.prepare, enough)
            if report is not None:
                hold_to(file, report, config.sequence, config.cut, "the run's length", "another run takes them")
            if name == "train" and was_split(run):
                split(file, Path(folder) / "held.tokens", earlier)
            if not same_tokens(TokenFile(file), TokenFile(run.tokens / f"{name}.tokens")):
                raise refusal
    elif paths is not None:
        known = run.record.get("sources", {}).get(name)
        if not isinstance(known, dict):
            raise refusal
        gone = [path for path in paths if path != STDIN and not Path(path).exists()]
        if not gone and source_of(paths)["fingerprint"] == known.get("fingerprint"):
            return
        if places(paths) != known.get("paths"):
            raise refusal
        note(f"note: {named_paths} {'is gone' if gone else 'has changed'}; the run goes on with the tokens made of it")


def _tell_repeated(run: RunDirectory, config: TrainConfig, note: Callable[[str], None]) -> None:
    """Say so if the run kept tokens for fewer steps than it is to do now."""
    report = run.record.get("data", {}).get("train", {})
    enough, kept = enough_tokens(config), report.get("enough")
    if report.get("read_to") and kept and (enough is None or enough > kept):
        note(
            f"note: the data were read up to {report['read_to']}, for the steps named at first; "
            f"further steps go over the same tokens again"
        )
