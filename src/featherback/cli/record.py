"""`featherback record`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from featherback.cli.options import MODEL
from featherback.core.options import option
from featherback.core.terminal import say
from featherback.errors import FeatherbackError

FIELDS = ("rank", "alpha", "rslora", "targets", "layers", "seed", "compute")
"""The options that a step depends on, which are those of `train`."""
OWN_OF = ()
"""No choice among them has options of its own."""
SHORT = {"Options": ("model", "out", "tokens", "rank", "targets", "compute")}
"""The options that `featherback record --help` shows."""
WITHOUT_BUDGET = "reads the header of the model, and computes nothing"
"""Why the command has no memory budget, as docs/memory.md says it."""


def record(
    model: str = MODEL,
    out: Path = option(metavar="FOLDER", help="The folder to write; it must not exist."),
    tokens: int = option(256, least=16, help="Most tokens of a batch. Batches may be shorter."),
    **options: Any,
) -> None:
    """Record a training step of MODEL, for programs that train without Python (libfeatherback).

    Example: featherback record model.gguf --out recorded --tokens 256 --rank 8

    The folder then has the step (step.recording), and an adapter to begin with, in PEFT's form. Without --compute the
    step computes in bf16, which takes the least memory.
    """
    from featherback.cli.options import open_model
    from featherback.core.files import atomic_file, atomic_folder
    from featherback.core.sizes import MB
    from featherback.exports.formats.peft import FORMAT as PEFT
    from featherback.exports.recording import file, step
    from featherback.models.adapter import Adapter
    from featherback.runs.config import TrainConfig

    if out.exists():
        raise FeatherbackError(f"{out} already exists; choose another --out.")
    opened, _ = open_model(model)
    if opened.source != "gguf":
        raise FeatherbackError(f"{opened.path} is not a GGUF file, which programs without Python read.")
    config = TrainConfig.of(model=str(opened.path), out="", seq_len=tokens, **options).for_model(opened)
    compute = "bf16" if config.compute == "auto" else config.compute
    adapter = Adapter(opened, config.form, config.seed)
    recorded = step.record(opened, adapter, tokens, compute)
    with atomic_folder(out) as folder:
        PEFT.save(adapter, folder)
        with atomic_file(folder / "step.recording") as target:
            file.write(recorded, target)
    say(f"{out} has a step of up to {recorded.plan.tokens} tokens in {compute}: {len(recorded.calls):,} operations,")
    say(f"{(recorded.scratch + recorded.kept) / MB:.1f} MB of scratch memory. Link your program with libfeatherback.")
