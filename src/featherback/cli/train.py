"""`featherback train`"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from featherback.cli.options import JSON, model_argument
from featherback.core.options import option
from featherback.core.private import RUN_FILE
from featherback.core.sizes import shown_mb
from featherback.core.terminal import print_error, quoted
from featherback.errors import FeatherbackError
from featherback.runs.requests import TrainingRequest

if TYPE_CHECKING:
    from featherback.runs.config import TrainConfig
    from featherback.runs.run_file import RunFile


SHORT = {
    "Data and result": ("model", "data", "eval_data", "out"),
    "Training": ("epochs", "learning_rate", "rank", "seq_len"),
    "Run": ("memory", "dry_run", "resume"),
}
"""The options that most people need, as `featherback train --help` groups them."""


def train(
    model: str | None = model_argument(None),
    config: Path | None = option(
        None,
        metavar="FILE",
        help="Read options from a YAML file, such as the run.yaml of an earlier run. Options on the command line take "
        "precedence.",
    ),
    resume: bool = option(False, help="Continue the run in --out where it stopped."),
    profile: bool = option(False, help="Print at the end how the time was spent."),
    dry_run: bool = option(False, help="Show the data and the plan, without training."),
    json: bool = JSON,
    **options: Any,
) -> TrainingRequest:
    """Fine-tune MODEL on your examples. The result is a LoRA adapter for PEFT; with --train full, a model.

    Example: featherback train smollm2-135m --data examples.csv --out my-adapter
    """
    from featherback.runs.run_file import RunFile, read

    if resume and dry_run:
        raise FeatherbackError("--dry-run shows what a new run would do. Remove --resume.")
    if model is not None:
        _check_own(model)
    try:
        file = RunFile() if config is None else read(config)
    except FeatherbackError:
        _check_own(str(config))
        raise
    if config is not None:
        _drop_programs(file, config, note=not resume and "log_to" not in options)
        if "reward" not in options and _is_of_a_run(file, config):
            from featherback.runs.parse import rewards
            from featherback.runs.rewards.written import check_programs

            check_programs(rewards(file.values["reward"]) if file.values.get("reward") else (), config)
    return _request(model or file.model, file, options, resume, json=json, profile=profile, dry_run=dry_run)


def _request(name: str | None, file: RunFile, named: dict[str, Any], resume: bool, **flags: Any) -> TrainingRequest:
    """Return what to do with the options of a file and the `named` ones of the command line, which take precedence."""
    from featherback.cli.swapped import check_not_swapped
    from featherback.core.decode import encode
    from featherback.models.hub.locate import locate
    from featherback.runs.changes import with_overrides

    values = with_overrides(file.values, named)
    if name is None and resume and values.get("out") is not None:
        name = _recorded_model(values["out"])
    if resume and values.get("out") is None:
        run = name if name and (Path(name) / RUN_FILE).is_file() else "RUN"
        command = quoted("featherback", "train", "--out", run, "--resume")
        raise FeatherbackError(f"--resume continues the run in --out, which is missing. Type: {command}")
    for given, missing in (
        (name, "MODEL is missing. Add a model, for example smollm2-135m"),
        (values.get("out"), "--out is missing. Add a new directory, for example --out my-adapter"),
    ):
        if given is None:
            raise FeatherbackError(f"{missing}, or a --config file that has it. See featherback train --help.")
    if not resume:
        check_not_swapped("train", str(name), values.get("data"), values.get("out"))
    place = str(locate(str(name)))
    if resume:
        return TrainingRequest({"model": place, **values}, resume=True, **flags)
    config = file.config({"model": place, **named})
    return TrainingRequest(encode(config), plan=_plan(file, config), **flags)


def _check_own(path: str) -> None:
    """Raise FeatherbackError, with the command that translates it, if `path` is another tool's configuration."""
    from featherback.runs.configs import tool_of

    if (tool := tool_of(path)) is not None:
        convert = quoted("featherback", "convert-config", path)
        raise FeatherbackError(
            f"{path} is a configuration of {tool}. Translate it with `{convert}`, then train with --config run.yaml."
        )


def _recorded_model(out: str) -> str | None:
    """The path of the model that the run in `out` was started with. Raises FeatherbackError if it is not there any
    more.

    The run may come from a stranger. So the model is compared with the run's fingerprint later, like a model that the
    user names.
    """
    from featherback.runs.run_directory import RunDirectory

    recorded = RunDirectory.open(out).config.model
    if not Path(recorded).exists():
        raise FeatherbackError(
            f"The model of {out}, {recorded}, does not exist any more. Add its new path: "
            f"{quoted('featherback', 'train', 'PATH', '--out', out, '--resume')}"
        )
    print_error(f"note: the model is {recorded}, as recorded in {out}")
    return recorded


def _drop_programs(file: RunFile, path: Path, note: bool) -> None:
    """Remove --log-to from the options if they come from a run's own run.yaml, because the run may be a stranger's.

    A resumed run has the same programs in its run.json, and prints the note from there.
    """
    if _is_of_a_run(file, path) and (programs := file.values.pop("log_to", None)) and note:
        named = programs if isinstance(programs, str) else ",".join(programs)
        print_error(f"note: {path} logs to {named}, but a new run does so only if you add --log-to {named}")


def _is_of_a_run(file: RunFile, path: Path) -> bool:
    """Return whether a file of options is a run's own run.yaml."""
    return file.plan is not None or os.path.lexists(path.parent / RUN_FILE)


def _plan(file: RunFile, config: TrainConfig) -> dict[str, Any] | None:
    """The memory plan in the file, if it was made for these options and enough memory is free."""
    from featherback.core.decode import decode
    from featherback.engine.host.machine import memory_limit
    from featherback.methods.memory.plan import Plan

    if (values := file.plan_for(config)) is None:
        return None
    try:
        plan = decode(Plan, values, "plan")
    except FeatherbackError as error:
        print_error(f"note: the plan in the file cannot be used: {error} Making a new plan")
        return None
    if not plan.needed:
        return None
    if plan.needed > (free := memory_limit()):
        needed = shown_mb(plan.needed)
        print_error(
            f"note: the plan in the file needs {needed} of memory, but only {shown_mb(free)} is free; making a new plan"
        )
        return None
    return values
