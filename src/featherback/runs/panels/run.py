"""Options of the run: memory, compute, measurements, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

from featherback.core.options import Panel, option
from featherback.engine import kernels
from featherback.engine.host.priority import LOWEST
from featherback.engine.host.sensors import KINDS
from featherback.methods.memory.plan import BUDGETS
from featherback.models.converted import NONE, QUANTIZE
from featherback.runs import parse
from featherback.runs.loggers import LOGGERS

COMPUTE = tuple(kernels.OPERANDS)
AUTO = "auto"
"""The --compute that is chosen by measuring (runs.choose)."""
PLANNED = ("memory", "threads", "log_to")
"""Options that a run may change and its plan depends on."""
MEASUREMENTS = 10
"""Of the held-out loss in a run, unless named otherwise."""
MEASURING = 0.2
"""Most of a run's time that they may take then: a forward pass is a third of a step."""
PATIENCE = 3
"""Of those measurements without a new best, after which a run ends."""

_free = partial(option, free_on_resume=True)


def _some_of(known: Collection[str], write: str, help: str) -> Any:
    """The option to name some of these words, or none."""
    parsed = partial(parse.listed, known, write)
    return _free(None, help=f"{help}: {','.join(known)}.", parse=parsed, words=(*known, "none"), metavar="WHAT")


@dataclass(frozen=True, kw_only=True)
class RunOptions(Panel):
    title = "Run"

    # Peak of the resident memory, in bytes; a word of `Plan.budget` until there is a plan, then what that came to.
    memory: int | str | None = _free(
        None,
        help="Memory budget, never exceeded: 96MB, 1.5GB; a number alone means MB. least: the least that will do; max: "
        "all that gives speed.",
        parse=parse.size,
        given=parse.megabytes,
        written=parse.written_size,
        words=BUDGETS,
        least=1,
        metavar="SIZE",
    )
    quantize: str = option(
        NONE,
        help="Quantise the weights of a Hugging Face folder, once, into a file in the cache.",
        choices=(NONE, *QUANTIZE),
    )
    compute: str = option(
        AUTO,
        help="What the matrix products multiply: bf16, fixed point of 16 bits, or float32, the most exact. auto: the "
        "most exact of the fastest.",
        choices=(AUTO, *COMPUTE),
    )
    threads: int | None = _free(None, help="Threads to compute with.", least=1, shown_default="one per core")
    seed: int = option(
        0, help="Seed of an adapter's initial values, of the data's order, and of all else that is drawn.", least=0
    )
    eval_every: int | None = _free(
        None,
        help="Steps between measurements of the held-out loss.",
        least=1,
        shown_default=f"{MEASUREMENTS} times in all, or less often if that takes long",
    )
    patience: int | None = _free(
        None,
        help="Stop after this many measurements without a new best, or far above the loss before training.",
        least=1,
        shown_default=f"{PATIENCE}, unless --eval-every is named",
    )
    nice: int | None = _free(
        None,
        help=f"Let other programs go first: the whole command's priority, 0 to {LOWEST} (the weakest).",
        least=0,
        most=LOWEST,
    )
    pause_on: tuple[str, ...] | None = _some_of(
        KINDS,
        f"{', '.join(KINDS)}, {','.join(KINDS)} or none",
        help="Wait, without losing anything, while the machine is on battery or too hot",
    )
    log_to: tuple[str, ...] | None = _some_of(
        LOGGERS.names,
        f"none, or a list of {', '.join(LOGGERS.names)}",
        help="Record the run with other programs as well",
    )
    samples: int = _free(
        2,
        help="How many examples (held-out ones, if any) the model answers before and after, for the report; 0: none.",
        least=0,
    )
    save_every: int = _free(50, help="Steps between checkpoints.", least=1)
    keep_checkpoints: bool = _free(
        False, help="Keep the last checkpoints when all steps are done, so that the run can be resumed to more."
    )

    @property
    def budget(self) -> int | None:
        """Bytes that the run may take; None: none is named, or a word whose amount is not known before the plan."""
        return None if isinstance(self.memory, str) else self.memory

    @property
    def stops_after(self) -> int | None:
        """Measurements without a new best after which the run ends; None: never."""
        return PATIENCE if self.patience is None and self.eval_every is None else self.patience
