"""Experts and routers in PEFT's files: parameters, named in `target_parameters`, not modules.

transformers joins the experts of a layer in two parameters: gate_up_proj (E, 2 F, D) and down_proj (E, D, F). PEFT has
one pair for each, of one rank R:

    lora_A (E R, in)      expert after expert: row e R + j is A_e's row j
    lora_B (out, R E)     rank after rank: column j E + e is B_e's column j

A file in which gate and up are apart has a pair for each of them. Together they are a pair of rank R = r_gate + r_up,
whose A holds the rows of both, and whose B is block-diagonal. In gpt-oss, the rows of gate and up take turns.

PEFT wraps a module once for each parameter: down_proj's pair is the module's own, and gate_up_proj's is that of its
`base_layer`, if both are adapted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from featherback.exports.formats.base import named_projections
from featherback.models.adapter import Adapter
from featherback.models.architecture.names import hf_module
from featherback.models.form import LayerTarget
from featherback.models.model import Model
from featherback.nn.adapters.lora import LoRAKind

Float32 = NDArray[np.float32]
GATE_UP, DOWN = "gate_up_proj", "down_proj"
WEIGHT = ".weight"


class Parameter(NamedTuple):
    """A parameter of a layer's experts in transformers."""

    layer: int
    container: str  # the module that holds it, such as "model.layers.0.mlp.experts"
    called: str  # GATE_UP or DOWN
    stacks: tuple[str, ...]  # our projections, such as ("gate_exps", "up_exps")
    shape: tuple[int, int, int]  # (E, out, in)
    in_turns: bool  # the rows of gate and up take turns

    @property
    def name(self) -> str:
        """Its full name."""
        return f"{self.container}.{self.called}"

    @property
    def places(self) -> list[LayerTarget]:
        """The projections with their layer."""
        return [(self.layer, stack) for stack in self.stacks]

    def shapes(self, rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the shapes of PEFT's lora_A and lora_B."""
        experts, outputs, inputs = self.shape
        return (experts * rank, inputs), (outputs, rank * experts)

    def joined(self, part: str, values: Sequence[Float32 | None]) -> Float32:
        """Return PEFT's lora_A or lora_B from A (E, r, in) or B (E, out, r) of each of the `stacks`.

        `part`: "A" or "B". None: the stack is not adapted.
        """
        there = [(number, each) for number, each in enumerate(values) if each is not None]
        if part == "A":
            return np.concatenate([each for _, each in there], axis=1).reshape(-1, self.shape[2])
        experts, outputs, _ = self.shape
        b, rank = np.zeros((outputs, sum(each.shape[2] for _, each in there), experts), np.float32), 0
        for number, each in there:
            b[self._rows(number), rank : rank + each.shape[2]] = each.transpose(1, 2, 0)
            rank += each.shape[2]
        return b.reshape(outputs, -1)

    def parted(self, part: str, values: Float32, number: int, diagonal: bool) -> Float32:
        """Return A (E, r, in) or B (E, out, r) of the stack `number` from PEFT's `values`. `part`: "A" or "B".

        `diagonal`: B is known to be block-diagonal, so each stack has its own part of the ranks.
        """
        experts = self.shape[0]
        by_rank = (
            values.reshape(experts, -1, values.shape[1]) if part == "A" else values.reshape(len(values), -1, experts)
        )
        rank = by_rank.shape[1] // len(self.stacks)
        own = by_rank[:, number * rank : (number + 1) * rank] if diagonal else by_rank
        return np.ascontiguousarray(own if part == "A" else own[self._rows(number)].transpose(2, 0, 1))

    def is_diagonal(self, b: Float32) -> bool:
        """Whether each of two stacks reads only its own half of the ranks in PEFT's lora_B."""
        if len(self.stacks) < 2:
            return False
        by_rank = b.reshape(len(b), -1, self.shape[0])
        half, odd = divmod(by_rank.shape[1], 2)
        return not odd and not by_rank[self._rows(0), half:].any() and not by_rank[self._rows(1), :half].any()

    def _rows(self, number: int) -> slice:
        """Return the rows of a stack."""
        count = len(self.stacks)
        rows = self.shape[1] // count
        return slice(number, None, count) if self.in_turns else slice(number * rows, (number + 1) * rows)


def parameters(model: Model) -> Iterator[Parameter]:
    """Yield the parameters of all experts, layer by layer, in PEFT's order."""
    for layer, block in enumerate(model.blocks):
        stacks = [target for target in block.projections if target in block.stacks]
        if not stacks:
            continue
        container = hf_module(model.naming.modules, layer, "down_exps").rpartition(".")[0]
        for called in (GATE_UP, DOWN):
            own = tuple(target for target in stacks if (target == "down_exps") == (called == DOWN))
            experts, rows, inputs = block.shape(own[0])
            shape = (experts, rows * len(own), inputs)
            yield Parameter(layer, container, called, own, shape, model.family.gate_up_in_turns)


def modules(model: Model) -> Iterator[tuple[LayerTarget, str]]:
    """Yield the projections that are modules in PEFT, or wrapped as if they were, with their names: all but stacks."""
    for place, module in named_projections(model):
        if place[1] not in model.blocks[place[0]].stacks:
            yield place, module


def adapted_parameters(adapter: Adapter) -> dict[Parameter, LoRAKind]:
    """The parameters of experts that the adapter changes, with the rank and alpha of the joined pair."""
    found = {}
    for parameter in parameters(adapter.model):
        pairs = [adapter.form.at(*place) for place in parameter.places]
        if (kind := kind_of(pair for pair in pairs if isinstance(pair, LoRAKind))) is not None:
            found[parameter] = kind
    return found


def routers(model: Model) -> Iterator[tuple[LayerTarget, str]]:
    """Yield each router with the name of its parameter."""
    for layer, block in enumerate(model.blocks):
        for target in block.requested - block.stacks.keys():
            yield (layer, target), hf_module(model.naming.modules, layer, target) + WEIGHT


def stems(chosen: Collection[Parameter]) -> dict[str, Parameter]:
    """The beginning of the names of a pair's tensors in PEFT, without ".lora_" -> the parameter."""
    outer = {parameter.container for parameter in chosen if parameter.called == DOWN}
    return {
        f"{each.container}.base_layer" if each.called == GATE_UP and each.container in outer else each.container: each
        for each in chosen
    }


def kind_of(pairs: Iterable[LoRAKind | None]) -> LoRAKind | None:
    """Return the rank and alpha of a joined pair: the ranks add up, and the first stack's scale is that of all."""
    there = [pair for pair in pairs if pair is not None]
    return _of_rank(there[0], sum(pair.rank for pair in there)) if there else None


def halved(kind: LoRAKind) -> LoRAKind:
    """Return the rank and alpha of each of two stacks whose joined pair has `kind`."""
    return _of_rank(kind, kind.rank // 2)


def _of_rank(kind: LoRAKind, rank: int) -> LoRAKind:
    """Return `kind` with another rank and the same scale."""
    ratio = rank / kind.rank
    return replace(kind, rank=rank, alpha=kind.alpha * (math.sqrt(ratio) if kind.rslora else ratio))
