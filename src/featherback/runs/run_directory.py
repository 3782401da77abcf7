"""The directory of one training run.

run.json                                     configuration, versions, status, evaluations, summary, samples
run.yaml                                     the configuration once more, as `train --config` reads it
metrics.jsonl                                a line per step
directions.log                               the slopes of a zeroth-order run, with --log-directions
adapter_config.json, adapter_model.safetensors    the adapter, as PEFT reads it
model.gguf, or model/                        with --train full: the model, in the form of the one it was trained from
report.html, loss.svg                        what happened, as pictures
tokens/train.tokens, tokens/eval.tokens      the data as the run sees it; of sequences that were chosen from others, or
                                             cut, the tokens are in tokens/train.whole.tokens, tokens/eval.whole.tokens
start/                                       the adapter that it starts from (--from), as PEFT reads it
checkpoint-000050.fbc, and the one before    what resuming needs
weights-000050/                              with --train full: the weights and states of the one checkpoint
work/                                        scratch files, gone when the run ends
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from featherback.errors import FeatherbackError
from featherback.methods.memory.plan import Plan
from featherback.nn.block import Block, bundles
from featherback.nn.encodings import EXACT
from featherback.runs.config import TrainConfig
from featherback.runs.panels.adapter import USUAL
from featherback.runs.panels.optimisation import NEXT_TOKEN
from featherback.runs.panels.run import COMPUTE

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

RUN_FILE = private.RUN_FILE
MOST_RECORD = 64 << 20  # bytes; every evaluation of a run is in it
FORMAT = 1
_RECORD = {
    "status": str,
    "configuration": dict,
    "base_model": str,
    "data": dict,
    "evaluations": list,
    "summary": dict,
    "samples": list,
    "model": str,
    "sources": dict,
}
"""Entries of run.json that are read again, with their types. The plan is checked where it is read."""
_OPTIONS = {"configuration", "sources", "plan"}
"""Entries of run.json that run.yaml renders."""
_METRICS = ("step", "loss", "seconds", "tokens")
"""Numbers of a line of metrics.jsonl that are read again."""
NUMBERS = ("steps", "seconds", "step_seconds", "tokens_per_second", "peak_footprint_mb", "peak_rss_mb")
"""Entries of a summary that are read again."""
LOSSES = ("first_loss", "final_loss", "early_loss", "late_loss", "first_eval_loss", "final_eval_loss", "best_eval_loss")
"""The same; a loss may be None."""
_PREDICTED = ("predicted_footprint_mb", "predicted_rss_mb")
RECOMMENDED = {"lr", "epochs"}
"""Options with which a run that ended worse than it began is to be repeated."""
_MOST = 2**53
"""Of any number that is read again."""
TOKENS, START, WORK = "tokens", "start", "work"
RESERVE = 64 << 10
"""Bytes that a run keeps for its last record, should the disk be full by then."""

# What can be there when there is no record yet, by the names that files.atomic_file and TokenFileWriter give.
_RECORD_PART = re.compile(rf"\.run\.json\.{private.TEMPORARY}\.tmp")
_PREPARED = {
    TOKENS: re.compile(
        r"(train|eval)(\.whole)?\.tokens|"
        rf"\.(train|eval)(\.whole)?\.tokens\.{private.TEMPORARY}\.(tokens|supervised|offsets|records|tmp)"
    ),
    START: re.compile(rf"(?P<part>\.)?adapter_(config\.json|model\.safetensors)(?(part)\.{private.TEMPORARY}\.tmp)"),
}
"""By folder."""


class RunDirectory:
    """A run directory that exists. `record` is the content of run.json."""

    def __init__(self, path: Path, record: dict[str, Any]) -> None:
        self.path = path
        self.record = record
        self._lock: int | None = None  # descriptor of the directory while this holds the run's lock
        self._unlock: Any = None

    @classmethod
    def create(cls, path: str | Path, record: Mapping[str, Any]) -> RunDirectory:
        """Begin a run in `path`, which `check_new` accepts."""
        path = Path(path)
        check_new(path)
        run = cls(path, {"format": FORMAT, "created": _now(), "status": "prepared", **record})
        try:
            private.make_private_folder(path)
        except OSError as error:
            raise FeatherbackError(f"Cannot write to the output directory {path}: {error.strerror}.") from error
        return run

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """The run in `path`; FeatherbackError if there is none."""
        path = Path(path)
        if not (path / RUN_FILE).is_file():
            raise FeatherbackError(f"{path} holds no training run (it has no {RUN_FILE}).")
        private.check_links(path)
        record = read_json(path / RUN_FILE, MOST_RECORD)
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise FeatherbackError(f"{path / RUN_FILE} is not a run of this version of Featherback.")
        if wrong := _wrong_entry(record):
            raise FeatherbackError(f"{path / RUN_FILE} is damaged: its entry {wrong!r} cannot be read.")
        try:
            json.dumps(record, allow_nan=False)
        except ValueError:
            raise FeatherbackError(f"{path / RUN_FILE} is damaged: it holds a number that is not finite.") from None
        return cls(path, record)

    @classmethod
    def take(cls, path: str | Path, inherited: int | None = None) -> RunDirectory:
        """The run in `path`, locked as by `lock`, and as it is then."""
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
        """The run's options."""
        try:
            return TrainConfig.from_json(self.record["configuration"])
        except (KeyError, TypeError, AttributeError):
            raise FeatherbackError(f"{self.path / RUN_FILE} is damaged: it holds no whole configuration.") from None
        except FeatherbackError as error:
            raise FeatherbackError(f"{self.path / RUN_FILE} cannot be used: {error}") from None

    @property
    def identity(self) -> str:
        """A checksum of what a run cannot change: its fixed options, its model's contents, its data as tokens."""
        return json_checksum([*self._origin, TokenFile(self.tokens / "train.tokens").checksum])

    @property
    def origin(self) -> str:
        """The same without the data: what a replay needs."""
        return json_checksum(self._origin)

    @property
    def _origin(self) -> list[Any]:
        fixed = self.config.fixed()
        # As in runs of versions that had no choice.
        if not self.config.averages:
            del fixed["keep"]
        if self.config.objective == NEXT_TOKEN:
            del fixed["objective"]
        if fixed["adapter"] == USUAL["adapter"]:
            del fixed["adapter"]
        if fixed.get("keep_precision") == EXACT:
            del fixed["keep_precision"]
        for name in ("batch_size", "batch_tokens"):
            del fixed[name]
        fixed |= self.config.batch_in_checksums
        return [sorted(fixed.items()), self.record.get("model")]

    @property
    def plan(self) -> Plan:
        """How the run lays out its memory: chosen once, so that resuming gives the same bits."""
        if (plan := plan_from_json(self.record.get("plan"))) is None:
            raise FeatherbackError(
                f"{self.path / RUN_FILE} holds no plan of this version of Featherback; "
                f"training with {argument('resume', True)} makes one."
            )
        return plan

    def plan_of(self, blocks: Sequence[Block]) -> Plan:
        """The plan, for a model of these blocks; FeatherbackError if it keeps what they do not have."""
        plan = self.plan
        if problem := _misfit(plan, blocks, self.config.form.kind.needs_output):
            raise FeatherbackError(
                f"{self.path / RUN_FILE} is damaged: {problem}. Correct it, or delete the entry plan and "
                f"let training with {argument('resume', True)} make one."
            )
        return plan

    @property
    def tokens(self) -> Path:
        """Folder of the token files."""
        return self.path / TOKENS

    @property
    def start(self) -> Path:
        """Folder of the adapter that the run starts from."""
        return self.path / START

    @property
    def work(self) -> Path:
        """Folder of the scratch files."""
        return self.path / WORK

    @property
    def metrics_path(self) -> Path:
        """The file of the steps' metrics."""
        return self.path / "metrics.jsonl"

    def make_private(self) -> None:
        """Let nobody but its owner read the directory, as those of earlier versions could be; FeatherbackError for
        links out of it."""
        private.check_links(self.path, tighten=True)

    def update(self, **values: Any) -> None:
        """Change entries of run.json, and run.yaml with them."""
        self.record.update(values)
        write_json(self.path / RUN_FILE, self.record)
        if values.keys() & _OPTIONS:
            from featherback.runs.run_file import RUN_YAML, render  # what trains has no need of it

            write_bytes(self.path / RUN_YAML, render(self.record).encode())

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        """Add a step's metrics."""
        append_bytes(self.metrics_path, (json.dumps(line) + "\n").encode())

    def sync_metrics(self) -> None:
        """Bring the metrics so far to the disk."""
        append_bytes(self.metrics_path, sync=True)

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The steps' metrics, in order. A last line cut short by a crash is left out."""
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
            raise FeatherbackError(f"{self.metrics_path} is damaged: a line is not JSON.") from None
        if not isinstance(values, dict) or not all(is_number(values.get(name)) for name in _METRICS):
            raise FeatherbackError(f"{self.metrics_path} is damaged: a line is not a step's metrics.")
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
        """Keep other processes from preparing or training here until `release`, or the end of this process.

        `inherited`: a descriptor that holds the lock already. FeatherbackError if another holds it.
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

    def release(self) -> None:
        """Let other processes have the run."""
        if self._lock is not None:
            self._lock = None
            self._unlock()

    def pass_lock(self) -> int | None:
        """The descriptor that holds the lock, made to outlast `exec`: there is no moment without the lock. It is then
        for the program that inherits it to close."""
        if self._lock is not None:
            os.set_inheritable(self._lock, True)
            self._unlock.detach()
        return self._lock

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock inside; FeatherbackError if another process does."""
        self.lock()
        try:
            yield
        finally:
            self.release()

    def begin_tokens(self) -> None:
        """Make an empty folder for token files; what a preparation that was killed left is deleted."""
        check_new(self.path)  # once more: another process may have prepared a run before this one had the lock
        for folder in _PREPARED:
            shutil.rmtree(self.path / folder, ignore_errors=True)
        try:
            remove_leftovers(self.path)
            with private.opened_folder(self.path) as home:
                private.create_folder(home, TOKENS)
        except OSError as error:
            raise FeatherbackError(f"Cannot write to the output directory {self.path}: {error.strerror}.") from error

    def begin_work(self) -> None:
        """Make an empty folder for scratch files; what a run that was killed left is deleted."""
        self.remove_work()
        try:
            remove_leftovers(self.path)
            with private.opened_folder(self.path) as folder:
                private.create_folder(folder, WORK)
            with private.create_anew(self.work / "reserve") as file:
                file.write(os.urandom(RESERVE))  # which no file system stores in less
        except OSError as error:
            raise FeatherbackError(f"Cannot write to the run directory {self.path}: {error.strerror}.") from error

    def remove_work(self) -> None:
        """Delete the scratch files, and with them what was reserved for the record that comes next."""
        shutil.rmtree(self.work, ignore_errors=True)


def plan_from_json(values: Any) -> Plan | None:
    """The inverse of `asdict`; None if that is no plan, or one of another version."""
    types = get_type_hints(Plan)
    if isinstance(values, dict):
        values = {"encodings": {}} | values  # of versions that had none
    if not isinstance(values, dict) or set(values) != set(types) or values["compute"] not in COMPUTE:
        return None
    return Plan(**values) if all(_fits(values[name], types[name]) for name in types) else None


def _misfit(plan: Plan, blocks: Sequence[Block], outputs: bool) -> str | None:
    """What is wrong with what a plan keeps of these blocks, if anything is."""
    together = bundles(blocks, outputs)
    known = [name for bundle in together for name in bundle]
    for name, layers in plan.keep.items():
        if name not in known:
            return f"plan.keep names {name!r}; what this model can keep is {', '.join(known)}"
        if layers > len(blocks):
            return f"plan.keep has {name} in {layers} layers; the model has {len(blocks)}"
    for bundle in together:
        if len({plan.keep.get(name, 0) for name in bundle}) > 1:
            return f"plan.keep must have {', '.join(bundle)} in the same number of layers"
    for name, encoding in plan.encodings.items():
        able = {each for block in blocks if name in block.intermediates for each in block.intermediates[name].encodings}
        if encoding not in able:
            return f"plan.encodings has {encoding!r} for {name}, which can be kept in {', '.join(sorted(able))}"
    return None


def check_new(path: Path) -> None:
    """FeatherbackError if no run can begin in `path`: it holds something already, or cannot be written."""
    if (path / RUN_FILE).exists():
        raise FeatherbackError(
            f"{path} holds another run already; continue it with {argument('resume', True)} or choose "
            f"another {argument('out')}."
        )
    if path.is_dir():
        if any(path.iterdir()) and not _is_unfinished(path):
            raise FeatherbackError(f"The output directory {path} is not empty; choose another {argument('out')}.")
    elif path.exists():
        raise FeatherbackError(f"The output directory {path} is a file; choose another {argument('out')}.")
    home = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not home.is_dir() or not os.access(home, os.W_OK | os.X_OK):
        raise FeatherbackError(f"Cannot write to the output directory {path}: {home} is not a writable directory.")


def _is_unfinished(path: Path) -> bool:
    """Whether a directory holds only what a preparation that was killed leaves: what it made, or parts of it."""
    ours = [entry for entry in path.iterdir() if not _RECORD_PART.fullmatch(entry.name)]
    return all(entry.name in _PREPARED and entry.is_dir() and not entry.is_symlink() for entry in ours) and all(
        _PREPARED[folder.name].fullmatch(entry.name) for folder in ours for entry in folder.iterdir()
    )


def _wrong_entry(record: dict[str, Any]) -> str | None:
    """The name of an entry that is not what `_RECORD` says, or whose parts cannot be read again."""
    for name, kind in _RECORD.items():
        if name in record and not isinstance(record[name], kind):
            return name
    if not all(isinstance(counts, dict) for counts in record.get("data", {}).values()):
        return "data"
    if not are_evaluations(record.get("evaluations", [])):
        return "evaluations"
    if not all(map(_is_source, record.get("sources", {}).values())):
        return "sources"
    return None if _is_summary(record.get("summary", {})) else "summary"


def _is_summary(values: dict[str, Any]) -> bool:
    """Whether what is there of a run's summary can be read again: numbers, some of which may be None."""
    recommended = values.get("recommended", {})
    if not isinstance(recommended, dict) or not recommended.keys() <= RECOMMENDED:
        return False
    numbers = [*(values[name] for name in NUMBERS if name in values), *recommended.values()]
    maybe = [values[name] for name in (*LOSSES, *_PREDICTED, "best_step") if values.get(name) is not None]
    if values.get("best_eval_loss") is not None and values.get("best_step") is None:
        return False
    return all(map(is_number, numbers + maybe)) and isinstance(values.get("worse", False), bool)


def are_evaluations(values: Any) -> bool:
    """Whether they are held-out losses, as a run records them."""
    return isinstance(values, list) and all(
        isinstance(each, dict)
        and is_number(each.get("step"))
        and is_number(each.get("loss"))
        and isinstance(each.get("mean", False), bool)
        for each in values
    )


def _is_source(value: Any) -> bool:
    """Whether it says where data were, which nothing reads again but a user who runs `train --config run.yaml`."""
    paths = value.get("paths") if isinstance(value, dict) else None
    return isinstance(paths, list) and all(isinstance(path, str) for path in paths)


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether it can be reckoned with: no infinity, no NaN, and nothing that a sum could make one."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= _MOST


def _fits(value: Any, expected: Any) -> bool:
    """Whether a value from JSON can be such a field: a word of several, a size, a switch, sizes by name, or None."""
    if get_origin(expected) is Literal:
        return value in get_args(expected)
    if get_origin(expected) is Mapping:
        sizes = get_args(expected)[1]
        return isinstance(value, dict) and all(_fits(size, sizes) for size in value.values())
    return type(value) in (get_args(expected) or (expected,)) and (type(value) is not int or value > 0)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
