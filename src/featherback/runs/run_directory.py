"""The directory of one training run.

run.json                                     configuration, versions, status, evaluations, summary, samples
run.yaml                                     the same configuration, in the form that `train --config` reads
metrics.jsonl                                one line per step
adapter_config.json, adapter_model.safetensors    the adapter, in PEFT's format
model.gguf, or model/                        with --train full: the model, in the format of its base model
report.html, loss.svg                        the report with its charts, and the loss curve
logs/                                        with --log-to: a folder for each program, which Featherback does not read
tokens/train.tokens, tokens/eval.tokens      the data as tokens; if sequences were held out or truncated, these files
                                             refer to tokens/train.whole.tokens and tokens/eval.whole.tokens
tokens/train.logps, tokens/eval.logps        for preferences: log-probabilities of the answers before training
start/                                       the adapter that the run starts from (--from), in PEFT's format
checkpoint-000050.fbc, and the one before    the state from which the run is resumed
weights-000050/                              with --train full: weights and optimiser states of the newest checkpoint
states/train.rows, states/eval.rows          with --layers: the hidden states before the lowest trained layer, deleted
                                             when the run has finished
work/                                        scratch files, deleted when the run ends
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, TypeGuard, get_args, get_origin, get_type_hints

from featherback.core import private
from featherback.core.files import (
    append_bytes,
    atomic_file,
    json_checksum,
    open_regular,
    read_json,
    remove_leftovers,
    write_bytes,
    write_json,
)
from featherback.core.naming import argument
from featherback.data.token_file import TokenFile
from featherback.errors import FeatherbackError, excerpt
from featherback.methods.memory.plan import Plan
from featherback.nn.block import Block, bundles
from featherback.runs.config import TrainConfig
from featherback.runs.panels.run import COMPUTE

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

RUN_FILE = private.RUN_FILE
PREPARED = "prepared"
"""The status of a new run before training. A run that is resumed has another one."""
_FOUND = "folder_existed"
"""The entry of run.json that says whether the directory existed before the run."""
MOST_RECORD = 64 << 20  # bytes; the file contains every evaluation of a run
FORMAT = 2
"""The form of a run directory. Only runs of this form can be used."""
GRADIENT = "gradient"
"""The entry of run.json for an approximated gradient: of which intermediates, and its cosine with the exact one."""
_RECORD = {
    "status": str,
    "configuration": dict,
    "base_model": str,
    "data": dict,
    "evaluations": list,
    "summary": dict,
    "samples": list,
    "reference": dict,
    GRADIENT: dict,
    "model": str,
    "sources": dict,
}
"""Types of the entries of run.json that are read again. The plan is checked by `plan_from_json`."""
_OPTIONS = {"configuration", "sources", "plan"}
"""Entries of run.json that also appear in run.yaml."""
_METRICS = ("step", "loss", "seconds", "tokens")
"""Numbers that a line of metrics.jsonl must have."""
NUMBERS = ("steps", "seconds", "step_seconds", "tokens_per_second", "peak_footprint_mb", "peak_rss_mb")
"""Numbers of a summary that are read again."""
LOSSES = ("first_loss", "final_loss", "early_loss", "late_loss", "first_eval_loss", "final_eval_loss", "best_eval_loss")
"""Losses of a summary that are read again; each may be None."""
_PREDICTED = ("predicted_footprint_mb", "predicted_rss_mb")
RECOMMENDED = {"lr", "epochs"}
"""Options that may be recommended after a run that ended worse than it began."""
_MOST = 2**53
"""Upper bound of every number that is read from a record."""
TOKENS, START, STATES, WORK = "tokens", "start", "states", "work"
RESERVE = 64 << 10
"""Bytes that a run reserves, so that it can write its last record on a full disk."""

# Files that may exist before run.json does, with the temporary names of files.atomic_file and TokenFileWriter.
_RECORD_PART = re.compile(rf"\.run\.json\.{private.TEMPORARY}\.tmp")
_PREPARED = {
    TOKENS: re.compile(
        r"(train|eval)((\.whole)?\.tokens|\.logps|\.given)|"
        rf"\.(train|eval)(\.whole)?\.tokens\.{private.TEMPORARY}\.(tokens|supervised|offsets|records|tmp)"
    ),
    START: re.compile(rf"(?P<part>\.)?adapter_(config\.json|model\.safetensors)(?(part)\.{private.TEMPORARY}\.tmp)"),
}
"""Folder -> names of the files that preparation writes to it."""


class RunDirectory:
    """A run directory on disk. `record` is the content of its run.json."""

    def __init__(self, path: Path, record: dict[str, Any]) -> None:
        self.path = path
        self.record = record
        self._lock: int | None = None  # descriptor of the directory while this object holds the run's lock
        self._unlock: Any = None

    @classmethod
    def create(cls, path: str | Path, record: Mapping[str, Any]) -> RunDirectory:
        """Create the directory of a new run. Raises FeatherbackError if `path` cannot be used, as by `check_new`."""
        path = Path(path)
        check_new(path)
        found = path.exists()
        run = cls(path, {"format": FORMAT, "created": _now(), "status": PREPARED, _FOUND: found, **record})
        try:
            private.make_private_folder(path)
        except OSError as error:
            raise FeatherbackError(f"Cannot write to the output directory {path}: {error.strerror}.") from error
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """Open the run in `path`; raises FeatherbackError if there is none, or its record is damaged."""
        path = Path(path)
        if not path.exists():
            raise FeatherbackError(f"There is no run {path}.")
        if not (path / RUN_FILE).is_file():
            again = argument("resume", True)
            begun = f" Its preparation has not ended; repeat the command without {again}." if _is_begun(path) else ""
            raise FeatherbackError(f"{path} is not a run directory: it has no {RUN_FILE}.{begun}")
        private.check_links(path)
        record = read_json(path / RUN_FILE, MOST_RECORD)
        if not isinstance(record, dict) or "format" not in record:
            raise FeatherbackError(f"{path / RUN_FILE} is damaged: it is not the record of a run.")
        if record["format"] != FORMAT:
            raise FeatherbackError(
                f"{path / RUN_FILE} was made by {_maker(record)}, in another form than this version reads. What it "
                "trained can still be used; to go on with the run, use that version."
            )
        if wrong := _wrong_entry(record):
            raise FeatherbackError(f"{path / RUN_FILE} is damaged: its entry {wrong!r} cannot be read.")
        try:
            json.dumps(record, allow_nan=False)
        except ValueError:
            raise FeatherbackError(f"{path / RUN_FILE} is damaged: it contains a number that is not finite.") from None
        return cls(path, record)

    @classmethod
    def take(cls, path: str | Path, inherited: int | None = None) -> RunDirectory:
        """Open the run in `path`, lock it, and read its record again under the lock."""
        run = cls.open(path)
        run.lock(inherited)
        try:
            run.record = cls.open(path).record
        except BaseException:
            run.release()
            raise
        return run

    @property
    def config(self) -> TrainConfig:
        """The options of the run; raises FeatherbackError if they are damaged or of another version."""
        try:
            return TrainConfig.from_json(self.record["configuration"])
        except (KeyError, TypeError, AttributeError):
            raise FeatherbackError(f"{self.path / RUN_FILE} is damaged: its configuration is incomplete.") from None
        except FeatherbackError as error:
            raise FeatherbackError(f"{self.path / RUN_FILE} cannot be used: {error}") from None

    @property
    def identity(self) -> str:
        """A checksum of everything that is fixed: certain options, the model's contents, the data as tokens."""
        fixed, model = sorted(self.config.fixed().items()), self.record.get("model")
        return json_checksum([fixed, model, TokenFile(self.tokens / "train.tokens").checksum])

    @property
    def plan(self) -> Plan:
        """The memory plan of the run. It is chosen once, so that a resumed run gives the same bits."""
        if (plan := plan_from_json(self.record.get("plan"))) is None:
            raise FeatherbackError(
                f"{self.path / RUN_FILE} has no plan of this version of Featherback; "
                f"resume the run with {argument('resume', True)} to make one."
            )
        return plan

    def plan_of(self, blocks: Sequence[Block]) -> Plan:
        """Return the plan, checked for a model of these blocks; raises FeatherbackError if it does not fit them."""
        plan = self.plan
        form = self.config.form
        if problem := _misfit(plan, form.extended(blocks), form.kind.needs_output):
            raise FeatherbackError(
                f"{self.path / RUN_FILE} is damaged: {problem}. Correct it, or delete the entry plan and "
                f"resume the run with {argument('resume', True)} to make a new one."
            )
        return plan

    @property
    def tokens(self) -> Path:
        """The folder of the token files."""
        return self.path / TOKENS

    @property
    def start(self) -> Path:
        """The folder of the adapter that the run starts from."""
        return self.path / START

    @property
    def states(self) -> Path:
        """The folder of the hidden states that enter the lowest trained layer."""
        return self.path / STATES

    @property
    def work(self) -> Path:
        """The folder of the scratch files."""
        return self.path / WORK

    @property
    def metrics_path(self) -> Path:
        """The path of metrics.jsonl."""
        return self.path / "metrics.jsonl"

    def make_private(self) -> None:
        """Make the directory readable only by its owner. Raises FeatherbackError if a link leads out of it."""
        private.check_links(self.path, tighten=True)

    def update(self, **values: Any) -> None:
        """Change entries of run.json, and rewrite run.yaml if it shows them."""
        self.record.update(values)
        write_json(self.path / RUN_FILE, self.record)
        if values.keys() & _OPTIONS:
            from featherback.runs.run_file import RUN_YAML, render  # training does not need this module

            write_bytes(self.path / RUN_YAML, render(self.record).encode())

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        """Append a step's metrics."""
        append_bytes(self.metrics_path, (json.dumps(line) + "\n").encode())

    def sync_metrics(self) -> None:
        """Flush the metrics to the disk."""
        append_bytes(self.metrics_path, sync=True)

    def metrics(self) -> Iterator[dict[str, Any]]:
        """Yield the metrics of each step, in order. An incomplete last line, left by a crash, is skipped."""
        if not self.metrics_path.exists():
            return
        try:
            with open_regular(self.metrics_path) as file, io.TextIOWrapper(file, "utf-8") as lines:
                for line in lines:
                    if line.endswith("\n"):
                        yield self._metrics_of(line)
        except OSError as error:
            raise FeatherbackError(f"Cannot read {self.metrics_path}: {error.strerror}.") from error
        except UnicodeDecodeError:
            raise FeatherbackError(f"{self.metrics_path} is damaged: it is not text.") from None

    def _metrics_of(self, line: str) -> dict[str, Any]:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            raise FeatherbackError(f"{self.metrics_path} is damaged: one of its lines is not JSON.") from None
        if not isinstance(values, dict) or not all(is_number(values.get(name)) for name in _METRICS):
            raise FeatherbackError(f"{self.metrics_path} is damaged: one of its lines lacks the metrics of a step.")
        return values

    def rewind(self, step: int) -> None:
        """Delete the metrics and evaluations of steps after `step`."""
        with atomic_file(self.metrics_path) as file:
            for line in self.metrics():
                if line["step"] <= step:
                    file.write((json.dumps(line) + "\n").encode())
        evaluations = self.record.get("evaluations", [])
        self.update(evaluations=[evaluation for evaluation in evaluations if evaluation["step"] <= step])

    def lock(self, inherited: int | None = None) -> None:
        """Lock the run against other processes until `release`, or until this process ends.

        `inherited`: a descriptor that already holds the lock. Raises FeatherbackError if another process holds it.
        """
        if fcntl is None or self._lock is not None:
            return
        try:
            descriptor = os.open(self.path, os.O_RDONLY) if inherited is None else inherited
        except OSError as error:
            raise FeatherbackError(f"Cannot open {self.path}: {error.strerror}.") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise FeatherbackError(
                    f"The run {self.path} is being prepared or trained by another process."
                ) from None
            raise FeatherbackError(f"Cannot lock {self.path}: {error.strerror}.") from error
        os.set_inheritable(descriptor, False)
        try:
            self.make_private()
        except BaseException:
            os.close(descriptor)
            raise
        self._lock, self._unlock = descriptor, weakref.finalize(self, os.close, descriptor)

    @property
    def is_new(self) -> bool:
        """Whether the run was just prepared. A run that is resumed is not new."""
        return bool(self.record["status"] == PREPARED)

    @property
    def is_untrained(self) -> bool:
        """Whether no step of the run has ended, and no pass of a teacher or a reference has begun."""
        passes = (each for kind in ("logps", "teacher") for each in self.tokens.glob(f"*.{kind}"))
        return next(self.metrics(), None) is None and next(passes, None) is None

    def delete(self) -> None:
        """Delete a run that cannot begin, and the directory unless it existed before; release the run."""
        from featherback.runs.run_file import RUN_YAML  # training does not need this module

        if self.record.get(_FOUND, True):
            for name in (RUN_FILE, RUN_YAML, self.metrics_path.name):
                (self.path / name).unlink(missing_ok=True)
            folders = [self.tokens, self.start, self.states, self.work, self.path / private.LOGS]
        else:
            folders = [self.path]
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        self.release()

    def abandon(self) -> None:
        """Delete the directory of a run that has not begun if it is empty and did not exist before; release the run."""
        if not self.record[_FOUND]:
            with suppress(OSError):
                self.path.rmdir()
        self.release()

    def release(self) -> None:
        """Release the lock, if this object holds it."""
        if self._lock is not None:
            self._lock = None
            self._unlock()

    @property
    def lock_descriptor(self) -> int | None:
        """The descriptor that holds the lock, if this object holds it."""
        return self._lock

    @property
    def is_locked(self) -> bool:
        """Whether a process holds the lock, because it is preparing or training the run."""
        if fcntl is None:
            return False
        try:
            descriptor = os.open(self.path, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            return False
        finally:
            os.close(descriptor)  # which releases the lock
        return False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock inside; raises FeatherbackError if another process holds it."""
        self.lock()
        try:
            yield
        finally:
            self.release()

    def begin_tokens(self) -> None:
        """Make an empty folder for token files, and delete what a killed preparation left."""
        check_new(self.path)  # again: another process may have prepared a run before this one got the lock
        for folder in _PREPARED:
            shutil.rmtree(self.path / folder, ignore_errors=True)
        try:
            remove_leftovers(self.path)
            with private.opened_folder(self.path) as home:
                private.create_folder(home, TOKENS)
        except OSError as error:
            raise FeatherbackError(f"Cannot write to the output directory {self.path}: {error.strerror}.") from error

    def begin_work(self) -> None:
        """Make an empty folder for scratch files, and delete what a killed run left."""
        self.remove_work()
        try:
            remove_leftovers(self.path)
            with private.opened_folder(self.path) as folder:
                private.create_folder(folder, WORK)
            with private.create_anew(self.work / "reserve") as file:
                file.write(os.urandom(RESERVE))  # random bytes, which no file system can compress
        except OSError as error:
            raise FeatherbackError(f"Cannot write to the run directory {self.path}: {error.strerror}.") from error

    def remove_work(self) -> None:
        """Delete the scratch files. This frees the reserved space for the last record."""
        shutil.rmtree(self.work, ignore_errors=True)


def _maker(record: Mapping[str, Any]) -> str:
    """Return the version of Featherback that wrote a record, in words."""
    versions = record.get("versions")
    version = versions.get("featherback") if isinstance(versions, dict) else None
    return "another version of Featherback" if version is None else f"Featherback {excerpt(version)}"


def plan_from_json(values: Any) -> Plan | None:
    """Return the plan from JSON values; None if it is not a plan of this version."""
    types = get_type_hints(Plan)
    if not isinstance(values, dict) or set(values) != set(types) or values["compute"] not in COMPUTE:
        return None
    return Plan(**values) if all(_fits(values[name], types[name]) for name in types) else None


def _misfit(plan: Plan, blocks: Sequence[Block], outputs: bool) -> str | None:
    """Return why the kept intermediates of a plan do not fit these blocks; None if they fit."""
    together = bundles(blocks, outputs)
    known = [name for bundle in together for name in bundle]
    for name, layers in plan.keep.items():
        if name not in known:
            return f"plan.keep has {name!r}; this model can keep {', '.join(known)}"
        if layers > len(blocks):
            return f"plan.keep has {name} in {layers} layers; the model has {len(blocks)}"
    for bundle in together:
        if len({plan.keep.get(name, 0) for name in bundle}) > 1:
            return f"plan.keep must have {', '.join(bundle)} in the same number of layers"
    for name, encoding in plan.encodings.items():
        able = {each for block in blocks if name in block.intermediates for each in block.intermediates[name].encodings}
        if encoding not in able:
            return f"plan.encodings has {encoding!r} for {name}, which can be kept as {', '.join(sorted(able))}"
    return None


def check_new(path: Path) -> None:
    """Raise FeatherbackError if a new run cannot use `path`: it is not empty, or cannot be written."""
    if (path / RUN_FILE).exists():
        raise FeatherbackError(
            f"{path} already contains a run. To continue it, add {argument('resume', True)}. To train its result "
            f"further, add {argument('from', str(path))} and choose another {argument('out')}."
        )
    if path.is_dir():
        if any(path.iterdir()) and not _is_unfinished(path):
            raise FeatherbackError(f"The output directory {path} is not empty; choose another {argument('out')}.")
    elif path.exists():
        raise FeatherbackError(f"The output directory {path} is a file; choose another {argument('out')}.")
    home = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not home.is_dir() or not os.access(home, os.W_OK | os.X_OK):
        raise FeatherbackError(f"Cannot write to the output directory {path}: {home} is not a writable directory.")


def _is_begun(path: Path) -> bool:
    """Return whether a directory contains what a killed preparation leaves."""
    return path.is_dir() and any(path.iterdir()) and _is_unfinished(path)


def _is_unfinished(path: Path) -> bool:
    """Return whether a directory contains only files that a killed preparation leaves."""
    ours = [entry for entry in path.iterdir() if not _RECORD_PART.fullmatch(entry.name)]
    return all(entry.name in _PREPARED and entry.is_dir() and not entry.is_symlink() for entry in ours) and all(
        _PREPARED[folder.name].fullmatch(entry.name) for folder in ours for entry in folder.iterdir()
    )


def _wrong_entry(record: dict[str, Any]) -> str | None:
    """Return the name of an entry of run.json that is damaged; None if all are good."""
    for name, kind in _RECORD.items():
        if name in record and not isinstance(record[name], kind):
            return name
    if not all(isinstance(counts, dict) for counts in record.get("data", {}).values()):
        return "data"
    if not are_evaluations(record.get("evaluations", [])):
        return "evaluations"
    if not all(map(_is_source, record.get("sources", {}).values())):
        return "sources"
    if not _is_gradient(record.get(GRADIENT)):
        return GRADIENT
    return None if _is_summary(record.get("summary", {})) else "summary"


def _is_gradient(values: dict[str, Any] | None) -> bool:
    """Return whether the entry of an approximated gradient is complete; there may be none."""
    if values is None:
        return True
    layers = values.get("approximated")
    cosines = [values.get(name) for name in ("cosine", "lowest_cosine")]
    return isinstance(layers, dict) and all(map(is_number, [*layers.values(), *cosines]))


def _is_summary(values: dict[str, Any]) -> bool:
    """Return whether the entries of a summary have the right types; the summary may be incomplete."""
    recommended = values.get("recommended", {})
    if not isinstance(recommended, dict) or not recommended.keys() <= RECOMMENDED:
        return False
    numbers = [*(values[name] for name in NUMBERS if name in values), *recommended.values()]
    maybe = [values[name] for name in (*LOSSES, *_PREDICTED, "best_step") if values.get(name) is not None]
    if values.get("best_eval_loss") is not None and values.get("best_step") is None:
        return False
    return all(map(is_number, numbers + maybe)) and isinstance(values.get("worse", False), bool)


def are_evaluations(values: Any) -> bool:
    """Return whether `values` is a list of held-out losses as a run records them."""
    return isinstance(values, list) and all(
        isinstance(each, dict)
        and is_number(each.get("step"))
        and is_number(each.get("loss"))
        and isinstance(each.get("mean", False), bool)
        for each in values
    )


def _is_source(value: Any) -> bool:
    """Return whether `value` records the paths of data. Only `train --config run.yaml` uses them."""
    paths = value.get("paths") if isinstance(value, dict) else None
    return isinstance(paths, list) and all(isinstance(path, str) for path in paths)


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether `value` is a number that is finite and small enough to be added up."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MOST


def _fits(value: Any, expected: Any) -> bool:
    """Return whether a JSON value fits a field's type: Literal, positive int, bool, float, mapping, or None."""
    if get_origin(expected) is Literal:
        return value in get_args(expected)
    if get_origin(expected) is Mapping:
        sizes = get_args(expected)[1]
        return isinstance(value, dict) and all(_fits(size, sizes) for size in value.values())
    return type(value) in (get_args(expected) or (expected,)) and (type(value) is not int or value > 0)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
