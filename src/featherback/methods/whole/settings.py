"""The settings for training a model's own weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from featherback.core.naming import argument
from featherback.engine.backend.counting import BlankMatrix
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError, did_you_mean, near
from featherback.methods.whole.places import Place, trained_weights
from featherback.models.architecture.config import ModelConfig
from featherback.models.model import Model
from featherback.nn.block import Block
from featherback.optim.rule import Rule


@dataclass(frozen=True)
class Whole:
    """The optimiser, the type of matrices during training, and the weights that are not trained."""

    rule: Rule
    kind: TensorType = TensorType.BF16
    frozen: tuple[str, ...] = ()  # patterns of names, see methods.whole.places

    def trains(self, place: Place) -> bool:
        """Return whether a weight is trained."""
        return not place.is_one_of(self.frozen)

    def check(self, model: Model) -> None:
        """Raise FeatherbackError if a pattern matches no weight of `model`, all are frozen, or it has experts."""
        if any(block.stacks for block in model.blocks):
            raise FeatherbackError(
                f"{model.path} has experts, whose own weights cannot be trained yet; train an adapter instead, with "
                f"{argument('train', 'lora')}."
            )
        places = [place for place, _ in _places(model.config, model.blocks)]
        for pattern in self.frozen:
            if not any(place.is_one_of((pattern,)) for place in places):
                layer = next(place for place in places if place.layer is not None)
                outside = ", ".join(place.part for place in places if place.layer is None)
                raise FeatherbackError(
                    f"{argument('freeze', pattern)} matches no weight of {model.path}. Its weights are {outside}, "
                    f"and names such as {layer.name}.{did_you_mean(near(pattern, [place.name for place in places]))}"
                )
        if not any(map(self.trains, places)):
            raise FeatherbackError(
                f"{argument('freeze', ','.join(self.frozen))} leaves nothing to train; freeze fewer weights."
            )

    def trained_parts(self, layer: int, block: Block) -> tuple[bool, ...]:
        """Whether each of a layer's weights is trained. Layers that differ in this differ in cost."""
        return tuple(self.trains(Place(part, layer)) for part in block.shapes)

    def trained(
        self, config: ModelConfig, blocks: Sequence[Block], layers: Sequence[int] | None = None
    ) -> dict[Place, tuple[int, int]]:
        """Return weight -> shape of every trained weight.

        `layers`: the layers of the model that `blocks` are, if not all in order.
        """

        def named(place: Place) -> Place:
            return place if place.layer is None or layers is None else place._replace(layer=layers[place.layer])

        return {place: shape for place, shape in _places(config, blocks) if self.trains(named(place))}

    def stored(self, matrix: BlankMatrix, place: Place) -> BlankMatrix:
        """Return a matrix as it is stored on disk during training."""
        if not self.trains(place):
            return matrix
        return BlankMatrix(matrix.shape, self.kind.row_bytes(matrix.cols), matrix.name, int(self.kind))


def _places(config: ModelConfig, blocks: Sequence[Block]) -> Iterator[tuple[Place, tuple[int, int]]]:
    return trained_weights(blocks, config.vocab_size, config.hidden_size, config.tie_word_embeddings)
