"""What is to be trained, as far as memory and time depend on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from featherback.adapters.shapes import layer_size, projection_shapes
from featherback.host.pager import mapped, most_mapped
from featherback.memory.ledger import Sizes
from featherback.models.config import ModelConfig
from featherback.models.model import Model
from featherback.models.names import TARGETS
from featherback.weights.types import TensorType

STATES = {"adamw": 2, "sgd": 0}
"""Optimiser -> float32 states a parameter."""


class Sizing(Protocol):
    """What a method tells of itself before it works: `methods.Method` fits."""

    needs_checkpoints: ClassVar[bool]
    can_keep_blocks: ClassVar[bool]  # instead of recomputing them
    whole_head: ClassVar[bool]  # the output head's pages are all in use at once

    @classmethod
    def workspace(cls, sizes: Sizes) -> int:
        """Bytes of scratch."""

    @classmethod
    def products(cls, sizes: Sizes) -> tuple[float, float]:
        """Passes over a block's forward products and over its forward attention, a step."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A model's sizes and the options of a run."""

    config: ModelConfig
    layer_bytes: int  # of the largest layer, as stored
    layer_mapped: int  # bytes of the file that a layer at work may have mapped, at most
    weight_bytes: int  # of all weights, as stored
    head_row_bytes: int  # of one row of the output head, as stored
    method: type[Sizing]
    rank: int = 8
    targets: tuple[str, ...] = TARGETS
    tokens: int = 256  # most tokens a batch holds: seq_len * batch_size
    sequence: int = 256  # most tokens a sequence holds
    compute: str = "bf16"
    optimizer: str = "adamw"
    threads: int = 1
    files: bool = True  # False: the run directory lies in memory, where a file would save none

    @classmethod
    def of(cls, model: Model, **options: object) -> Job:
        """The job of training `model`; `options` are this class's other fields."""
        matrices = [model.layer(i).matrices().values() for i in range(model.config.num_hidden_layers)]
        layers = [sum(m.nbytes for m in layer) for layer in matrices]
        head = 0 if model.lm_head is model.embed_tokens else model.lm_head.nbytes
        return cls(
            config=model.config,
            layer_bytes=max(layers),
            layer_mapped=max(map(mapped, matrices)),
            weight_bytes=sum(layers) + model.embed_tokens.nbytes + head,
            head_row_bytes=model.lm_head.row_bytes,
            **options,  # type: ignore[arg-type]
        )

    @classmethod
    def of_shape(cls, config: ModelConfig, stored: TensorType, **options: object) -> Job:
        """The job of training a model of this shape, every matrix stored as `stored`."""
        shapes = projection_shapes(config).values()
        layer = sum(rows * stored.row_bytes(cols) for rows, cols in shapes)
        table = config.vocab_size * stored.row_bytes(config.hidden_size)
        return cls(
            config=config,
            layer_bytes=layer,
            layer_mapped=most_mapped(layer),
            weight_bytes=config.num_hidden_layers * layer + (1 if config.tie_word_embeddings else 2) * table,
            head_row_bytes=stored.row_bytes(config.hidden_size),
            **options,  # type: ignore[arg-type]
        )

    @property
    def layer_floats(self) -> int:
        """Adapter parameters a layer."""
        return layer_size(self.config, self.rank, self.targets)

    @property
    def parameter_arrays(self) -> int:
        """Arrays as large as the adapter: parameters, gradients and the optimiser's states."""
        return 2 + STATES[self.optimizer]

    @property
    def layer_weights(self) -> int:
        """Weights in a layer's projections."""
        c = self.config
        return c.hidden_size * (2 * c.q_size + 2 * c.kv_size + 3 * c.intermediate_size)
