"""Options of the run: memory, compute, evaluation, and the files that it writes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

from featherback.core.naming import argument
from featherback.core.options import Panel, option
from featherback.core.system import machine
from featherback.engine import backend, kernels
from featherback.engine.backend.protocol import Card
from featherback.engine.host.sensors import KINDS
from featherback.errors import FeatherbackError
from featherback.methods.memory.plan import BUDGETS
from featherback.models.converted import NONE, QUANTIZE
from featherback.runs import parse
from featherback.runs.loggers import LOGGERS

COMPUTE = tuple(kernels.OPERANDS)
AUTO = "auto"
"""The value of --compute that measures and chooses (runs.choose)."""
PLANNED = ("memory", "vram", "threads", "log_to")
"""Options that affect the memory plan and may change when a run is resumed."""
MEASUREMENTS = 10
"""Default number of times that a run measures the held-out loss."""
MEASURING = 0.2
"""Largest share of a run's time for these measurements. A forward pass counts as a third of a step."""
PATIENCE = 3
"""Default number of measurements without a new best after which a run stops."""

_free = partial(option, free_on_resume=True)


def _some_of(known: Collection[str], write: str, help: str) -> Any:
    """An option whose value is a list of some of the `known` words, or none."""
    parsed = partial(parse.listed, known, write)
    return _free(None, help=f"{help}: {','.join(known)}.", parse=parsed, words=(*known, "none"), metavar="LIST")


def check_device(device: str, vram: int | None, memory: int | str | None) -> None:
    """Raise FeatherbackError if a limit is set for memory that the device does not use."""
    if device == backend.USUAL and vram is not None:
        raise FeatherbackError(
            f"{argument('vram')} limits the memory of another device than the CPU. Add {argument('device')} with "
            f"one of {', '.join(backend.CARDS)}, or remove {argument('vram')}."
        )
    if device != backend.USUAL and memory is not None:
        raise FeatherbackError(
            f"{argument('memory')} limits the memory of computing on the CPU, and does not work with "
            f"{argument('device', device)}. Use {argument('vram')} to limit the device's memory, or remove "
            f"{argument('memory')}."
        )


@dataclass(frozen=True, kw_only=True)
class RunOptions(Panel):
    title = "Run"

    # Peak resident memory in bytes. A word such as "least" stays until the plan has replaced it by an amount.
    memory: int | str | None = _free(
        None,
        help="Memory budget, never exceeded: 96MB or 1.5GB. A number without a unit means MB. least: the smallest "
        "budget that works. max: the smallest budget with the full speed.",
        brief="Memory limit, such as 96MB",
        shown_default="a quarter of RAM",
        parse=parse.size,
        given=parse.megabytes,
        written=parse.written_size,
        words=BUDGETS,
        least=1,
        metavar="SIZE",
    )
    device: str = option(
        backend.USUAL,
        help="Where to compute: on this machine's CPU, or with PyTorch on a GPU or on PyTorch's own CPU device. See "
        "docs/devices.md.",
        choices=backend.DEVICES,
    )
    vram: int | None = _free(
        None,
        help="Limit for the memory of the --device, such as 1GB. Weights that do not fit stay in this "
        "machine's memory and pass through the device block by block.",
        shown_default="nine tenths of what is free",
        parse=parse.vram,
        given=parse.megabytes,
        written=parse.written_size,
        least=1,
        metavar="SIZE",
    )
    quantize: str = option(
        NONE,
        help="Quantise the weights of a Hugging Face folder. The result is cached, so this happens once.",
        choices=(NONE, *QUANTIZE),
    )
    compute: str = option(
        AUTO,
        help="Number format of matrix products: bf16, int16 (16-bit fixed point) or fp32, the most exact. auto: "
        "the fastest format on this machine. If several are about equally fast, the most exact of them is used.",
        choices=(AUTO, *COMPUTE),
    )
    threads: int | None = _free(None, help="Number of threads.", least=1, shown_default="one per core")
    seed: int = option(
        0, help="Random seed: initial adapter, order of the data, and everything else that is random.", least=0
    )
    eval_every: int | None = _free(
        None,
        help=f"Steps between measurements of the held-out loss. By default there are {MEASUREMENTS} measurements, "
        "fewer if they take long.",
        least=1,
        shown_default=f"{MEASUREMENTS} times",
    )
    patience: int | None = _free(
        None,
        help="Stop early if the held-out loss reaches no new minimum in this many measurements in a row, or if all "
        "of them are far above the loss before training. If --eval-every is given, the default is never.",
        least=1,
        shown_default=str(PATIENCE),
    )
    nice: int | None = _free(
        None,
        help="Let other programs run first: priority of the whole command, from 0 to "
        f"{machine.LOWEST_PRIORITY} (lowest).",
        least=0,
        most=machine.LOWEST_PRIORITY,
    )
    pause_on: tuple[str, ...] | None = _some_of(
        KINDS,
        f"{', '.join(KINDS)}, {','.join(KINDS)} or none",
        help="Pause while the machine runs on battery or is too hot",
    )
    log_to: tuple[str, ...] | None = _some_of(
        LOGGERS.names, f"none, or a list of {', '.join(LOGGERS.names)}", help="Record the run in other programs as well"
    )
    samples: int = _free(
        2,
        help="Number of examples for which the report shows the model's answers before and after training. Held-out "
        "examples are used if there are any.",
        least=0,
    )
    save_every: int = _free(50, help="Steps between checkpoints.", least=1)
    keep_checkpoints: bool = _free(
        False, help="Keep the last checkpoints of a finished run, so that --resume can add more steps."
    )

    def check_rules(self) -> None:
        super().check_rules()
        check_device(self.device, self.vram, self.memory)

    def use_machine(self) -> Card | None:
        """Let this process compute on the device, in as many threads as the options say. Return the device, if it is
        not the CPU.
        """
        kernels.set_threads(self.threads or kernels.default_threads())
        return backend.use(self.device, self.vram)

    @property
    def budget(self) -> int | None:
        """The memory budget in bytes; None without one, or while it is a word that the plan has not yet replaced."""
        return None if isinstance(self.memory, str) else self.memory

    @property
    def stops_after(self) -> int | None:
        """Number of measurements without a new best after which the run stops; None: never."""
        return PATIENCE if self.patience is None and self.eval_every is None else self.patience
