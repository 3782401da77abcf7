"""The record of a run: the content of its run.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from featherback.core.decode import Amount, Count, Number, Positive
from featherback.data.report import PrepareReport
from featherback.errors import FeatherbackError
from featherback.methods.memory.plan import Plan
from featherback.runs.config import TrainConfig
from featherback.runs.events import Judged, Sample
from featherback.runs.summary import Summary

FORMAT = 3
"""The form of a run directory. Only runs of this form can be used."""
Status = Literal["prepared", "running", "interrupted", "failed", "finished", "stopped early"]
PREPARED: Status = "prepared"
"""The status of a new run before training. A run that is resumed has another one."""
Part = Literal["train", "eval"]


@dataclass(frozen=True, kw_only=True)
class Versions:
    featherback: str
    python: str
    numpy: str


@dataclass(frozen=True, kw_only=True)
class Machine:
    system: str
    cores: Positive | None
    instruction_set: str


@dataclass(frozen=True, kw_only=True)
class TokenCounts:
    """Counts of a token file whose data were given as tokens, or held out."""

    sequences: Count
    tokens: Count
    supervised_tokens: Count
    also_trained: Count = 0  #: as in PrepareReport
    also_trained_exact: bool = True
    sequences_before: Count | None = None  #: of the data from which these sequences were held out


@dataclass(frozen=True)
class DataFiles:
    """Where data come from: absolute paths, and fingerprints of all but standard input."""

    paths: list[str]
    fingerprint: list[str]


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What a pass before training took."""

    examples: Count
    seconds: Amount
    peak_rss_mb: Amount


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A teacher's pass. `model`: the teacher's fingerprint, once the pass has begun. `taken`: None until it ends."""

    plan: Plan
    disk_bytes: Count
    model: str | None = None
    taken: Pass | None = None


@dataclass(frozen=True, kw_only=True)
class Replay:
    """General examples that were added to the training examples: some of `different` ones, perhaps several times."""

    examples: Count
    tokens: Count
    different: Count


@dataclass(frozen=True, kw_only=True)
class ApproximateGradient:
    """The kept intermediates by which gradients are approximate -> layers; the cosine with the exact gradient."""

    approximated: Mapping[str, Positive]
    cosine: Number
    lowest_cosine: Number  #: of a layer


@dataclass(frozen=True)
class HeldOutLoss:
    """The held-out loss after a step; fields as in `events.Evaluation`."""

    step: Count
    loss: Number
    mean: bool = False
    measures: Mapping[str, Number] = field(default_factory=dict)
    answers: list[Judged] = field(default_factory=list)


@dataclass(frozen=True)
class Failure:
    step: Count
    reason: str


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The content of run.json. An entry that is not known yet, or that the run does not have, is None."""

    format: Count = FORMAT
    created: str  #: UTC, as by ISO 8601
    status: Status = PREPARED
    folder_existed: bool  #: whether the directory existed before the run
    configuration: TrainConfig
    versions: Versions
    machine: Machine
    base_model: str
    model: str  #: fingerprint
    data: Mapping[Part, PrepareReport | TokenCounts] = field(default_factory=dict)
    sources: Mapping[Part, DataFiles] = field(default_factory=dict)
    replay: Replay | None = None
    plan: Plan | None = None
    teacher: Teacher | None = None
    reference: Pass | None = None
    gradient: ApproximateGradient | None = None
    steps: Count | None = None
    evaluations: list[HeldOutLoss] = field(default_factory=list)
    summary: Summary | None = None
    samples: list[Sample] = field(default_factory=list)
    failure: Failure | None = None
    patient_since: Count = 0  #: the step after which a run that had stopped early went on

    def __post_init__(self) -> None:
        if self.summary is None and self.status in ("finished", "stopped early"):
            raise FeatherbackError(f"the status is {self.status}, but the summary is null.")
