"""What a run says about approximated gradients: how close they are to the exact ones, or why they are exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

from featherback.core.naming import argument
from featherback.core.sizes import MB
from featherback.core.terminal import several

if TYPE_CHECKING:
    from featherback.methods.memory.plan import Plan
    from featherback.models.model import Model
    from featherback.nn.kept import Intermediate
    from featherback.runs.config import TrainConfig
    from featherback.runs.record import ApproximateGradient


def describe_gradient(config: TrainConfig, model: Model, plan: Plan, measured: ApproximateGradient | None) -> str:
    """One line about the gradient if `--keep-precision` allows approximations; empty if it does not.

    `measured`: the entry `gradient` of run.json; None: a run has not measured it.
    """
    from featherback.nn.encodings import ENCODINGS

    precision = config.method_options.get("keep_precision")
    coded = {name for name in ENCODINGS.names if ENCODINGS[name].slopes_of and ENCODINGS[name].precision == precision}
    if not coded:
        return ""
    if not plan.approximated:
        return (
            f"exact: {argument('keep_precision', precision)} saves nothing here. {_reason(config, model, plan, coded)}"
        )
    layers = max(plan.approximated.values())
    parts = ", ".join(plan.approximated)
    sizes = [(_sizes(model, plan, name, plan.encodings[name]), count) for name, count in plan.approximated.items()]
    saved, codes = (sum(pair[index] * count for pair, count in sizes) for index in (0, 1))
    text = (
        f"approximate: of {parts} of {several(layers, 'block')}, only codes of 2 bits are kept ({codes:.1f} MB instead "
        f"of {saved:.1f} MB)"
    )
    if measured is None:
        return f"{text}. A run measures the cosine with the exact gradient on its first batch"
    return (
        f"{text}; cosine with the exact gradient {measured.cosine:.3f}, lowest in a layer "
        f"{measured.lowest_cosine:.3f} (first batch)"
    )


def _sizes(model: Model, plan: Plan, name: str, encoding: str) -> tuple[float, float]:
    """Return the size of an intermediate in one block, exact and with this encoding, in MB."""
    from featherback.engine import backend

    about = next(block.intermediates[name] for block in model.blocks if name in block.intermediates)
    operand = backend.of(plan.compute).operand
    placed = (about.placed(plan.tokens, operand, each) for each in (None, encoding))
    exact, codes = (rows * columns * dtype.itemsize / MB for (rows, columns), dtype in placed)
    return exact, codes


def _reason(config: TrainConfig, model: Model, plan: Plan, coded: set[str]) -> str:
    """Say why a plan keeps no codes, with the sizes that matter."""
    from featherback.engine import backend
    from featherback.models.architecture.names import parse_targets, short
    from featherback.nn.block import adaptable

    tokens, operand = plan.tokens, backend.of(plan.compute).operand

    def nbytes(about: Intermediate) -> float:
        (rows, columns), dtype = about.placed(tokens, operand)
        return rows * columns * dtype.itemsize / MB

    able = {name: each for block in model.blocks for name in block.intermediates
            for each in block.intermediates[name].encodings if each in coded}  # fmt: skip
    if not able:
        held = [name for name in ("gate", "up") if name in model.blocks[0].intermediates]
        size = sum(
            nbytes(block.intermediates[name]) for block in model.blocks for name in held if name in block.intermediates
        )
        return (
            f"The MLP of this model is gated: its backward pass needs gate and up themselves ({size:.1f} MB if every "
            f"block keeps them, 0 MB if it computes them again), so codes of 2 bits would save 0 MB"
        )
    (name, encoding), *_ = able.items()
    exact, codes = _sizes(model, plan, name, encoding)
    sizes = f"{codes:.1f} MB a block instead of {exact:.1f} MB"
    if config.train != "lora":
        return f"The gradients of the weights need the activation itself, not only its slope ({sizes})"
    targets = parse_targets(config.form.targets, adaptable(model.blocks))
    if "down_proj" in targets:
        others = short(target for target in targets if target != "down_proj")
        return (
            f"The gradient of the adapter on down needs the activation itself. Without it, as with "
            f"{argument('targets', others or 'q,v')}, codes take {sizes}"
        )
    return f"Within this budget, codes ({sizes}) make no step faster than exact values, or than computing {name} again"
