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
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from featherback.core import private
from featherback.core.decode import decode, encode, is_number
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
from featherback.core.system import folders, locks
from featherback.data.token_file import TokenFile
from featherback.errors import FeatherbackError, excerpt
from featherback.methods.memory.plan import Plan
from featherback.models.form import Form
from featherback.nn.block import Block, bundles
from featherback.runs.config import TrainConfig
from featherback.runs.record import FORMAT, PREPARED, RunRecord
from featherback.version import __version__

RUN_FILE = private.RUN_FILE
MOST_RECORD = 64 << 20  # bytes; the file contains every evaluation of a run
_OPTIONS = {"configuration", "sources", "plan"}
"""Entries of run.json that also appear in run.yaml."""
_METRICS = ("step", "loss", "seconds", "tokens")
"""Numbers that a line of metrics.jsonl must have."""
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

    def __init__(self, path: Path, record: RunRecord) -> None:
        self.path = path
        self.record = record
        self._lock: int | None = None  # descriptor of the directory while this object holds the run's lock
        self._unlock: Any = None

    @classmethod
    def create(cls, path: str | Path, **values: Any) -> RunDirectory:
        """Create the directory of a new run, with these fields of a RunRecord.

        Raises FeatherbackError if `path` cannot be used, as by `check_new`.
        """
        path = Path(path)
        check_new(path)
        run = cls(path, RunRecord(created=_now(), folder_existed=path.exists(), **values))
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
        return cls(path, _read(path / RUN_FILE))

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
        """The options of the run."""
        return self.record.configuration

    @property
    def identity(self) -> str:
        """A checksum of everything that is fixed: certain options, the model's contents, the data as tokens."""
        fixed, model = sorted(self.config.fixed().items()), self.record.model
        return json_checksum([fixed, model, TokenFile(self.tokens / "train.tokens").checksum])

    @property
    def plan(self) -> Plan:
        """The memory plan of the run. It is chosen once, so that a resumed run gives the same bits."""
        if (plan := self.record.plan) is None:
            raise FeatherbackError(
                f"{self.path / RUN_FILE} has no plan; resume the run with {argument('resume', True)} to make one."
            )
        return plan

    def plan_of(self, blocks: Sequence[Block]) -> Plan:
        """Return the plan, checked for a model of these blocks; raises FeatherbackError if it does not fit them."""
        plan = self.plan
        if problem := misfit(plan, self.config.form, blocks):
            raise FeatherbackError(
                f"{self.path / RUN_FILE} is damaged: {problem}. Correct it, or set the entry plan to null and "
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
        """Change fields of the record, and rewrite run.yaml if it shows them."""
        self.record = replace(self.record, **values)
        write_json(self.path / RUN_FILE, encode(self.record))
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
        self.update(evaluations=[each for each in self.record.evaluations if each.step <= step])

    def lock(self, inherited: int | None = None) -> None:
        """Lock the run against other processes until `release`, or until this process ends.

        `inherited`: a descriptor that already holds the lock. Raises FeatherbackError if another process holds it.
        """
        if self._lock is not None:
            return
        try:
            descriptor = locks.hold(self.path, wait=False) if inherited is None else inherited
        except BlockingIOError:
            raise FeatherbackError(f"The run {self.path} is being prepared or trained by another process.") from None
        except OSError as error:
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
        return self.record.status == PREPARED

    @property
    def is_untrained(self) -> bool:
        """Whether no step of the run has ended, and no pass of a teacher or a reference has begun."""
        passes = (each for kind in ("logps", "teacher") for each in self.tokens.glob(f"*.{kind}"))
        return next(self.metrics(), None) is None and next(passes, None) is None

    def delete(self) -> None:
        """Delete a run that cannot begin, and the directory unless it existed before; release the run."""
        from featherback.runs.run_file import RUN_YAML  # training does not need this module

        if self.record.folder_existed:
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
        if not self.record.folder_existed:
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
        return locks.is_held(self.path)

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
            with folders.Folder(self.path) as home:
                private.create_folder(home, TOKENS)
        except OSError as error:
            raise FeatherbackError(f"Cannot write to the output directory {self.path}: {error.strerror}.") from error

    def begin_work(self) -> None:
        """Make an empty folder for scratch files, and delete what a killed run left."""
        self.remove_work()
        try:
            remove_leftovers(self.path)
            with folders.Folder(self.path) as folder:
                private.create_folder(folder, WORK)
            with private.create_anew(self.work / "reserve") as file:
                file.write(os.urandom(RESERVE))  # random bytes, which no file system can compress
        except OSError as error:
            raise FeatherbackError(f"Cannot write to the run directory {self.path}: {error.strerror}.") from error

    def remove_work(self) -> None:
        """Delete the scratch files. This frees the reserved space for the last record."""
        shutil.rmtree(self.work, ignore_errors=True)


def _read(file: Path) -> RunRecord:
    """Return the record in a file. Raises FeatherbackError if it is damaged, or was made by another version."""
    values = read_json(file, MOST_RECORD)
    if not isinstance(values, dict) or "format" not in values:
        raise FeatherbackError(f"{file} is damaged: it is not the record of a run.")
    versions = values.get("versions")
    maker = versions.get("featherback") if isinstance(versions, dict) else None
    try:
        if values["format"] == FORMAT:
            record = decode(RunRecord, values, file)
            if "train" not in record.data:
                raise FeatherbackError(f"{file}: data.train is missing.")
            return record
    except FeatherbackError:
        if maker == __version__:
            raise
    named = "another version of Featherback" if maker is None else f"Featherback {excerpt(maker)}"
    build = "an earlier build of " * (maker == __version__)
    raise FeatherbackError(
        f"{file} was made by {build}{named}, in another form than this one reads. What it trained can still be used; "
        "to go on with the run, use the Featherback that made it."
    )


def misfit(plan: Plan, form: Form, blocks: Sequence[Block]) -> str | None:
    """Return why the kept intermediates of a plan do not fit a model of these blocks; None if they fit."""
    blocks = form.extended(blocks)
    together = bundles(blocks, form.kind.needs_output)
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


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
