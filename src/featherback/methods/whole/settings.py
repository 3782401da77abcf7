"""How a model's own weights are trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from featherback.core.naming import argument
from featherback.engine.backend.counting import BlankMatrix
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.methods.whole.places import Place, trained_places
from featherback.models.architecture.config import ModelConfig
from featherback.models.model import Model
from featherback.nn.block import Block
from featherback.optim.rule import Rule


@dataclass(frozen=True)
class Whole:
    """The optimiser, the type of matrices while they are trained, and what is not trained."""

    rule: Rule
    kind: TensorType = TensorType.BF16
    frozen: tuple[str, ...] = ()  # patterns of names: methods.whole.places

    def wants(self, place: Place) -> bool:
        """Whether a weight is trained."""
        return not place.is_one_of(self.frozen)

    def check(self, model: Model) -> None:
        """FeatherbackError if a pattern matches no weight of `model`, or all are frozen."""
        places = [place for place, _ in _places(model.config, model.blocks)]
        for pattern in self.frozen:
            if not any(place.is_one_of((pattern,)) for place in places):
                layer = next(place for place in places if place.layer is not None)
                outside = ", ".join(place.part for place in places if place.layer is None)
                raise FeatherbackError(
                    f"{argument('freeze')}: no weight of {model.path} is called {pattern}; there are {outside} "
                    f"and names such as {layer.name}."
                )
        if not any(map(self.wants, places)):
            raise FeatherbackError(f"{argument('freeze', ','.join(self.frozen))} leaves nothing to train; name less.")

    def wanted_in(self, layer: int, block: Block) -> tuple[bool, ...]:
        """Of a layer's weights, which are: layers that differ in this cost differently."""
        return tuple(self.wants(Place(part, layer)) for part in block.shapes)

    def trained(
        self, config: ModelConfig, blocks: Sequence[Block], layers: Sequence[int] | None = None
    ) -> dict[Place, tuple[int, int]]:
        """Every weight that is, with its shape. `layers`: which of the model's `blocks` are, if not all in order."""

        def named(place: Place) -> Place:
            return place if place.layer is None or layers is None else place._replace(layer=layers[place.layer])

        return {place: shape for place, shape in _places(config, blocks) if self.wants(named(place))}

    def stored(self, matrix: BlankMatrix, place: Place) -> BlankMatrix:
        """A matrix as it lies on disk while it is trained."""
        if not self.wants(place):
            return matrix
        return BlankMatrix(matrix.shape, self.kind.row_bytes(matrix.cols), matrix.name, int(self.kind))


def _places(config: ModelConfig, blocks: Sequence[Block]) -> Iterator[tuple[Place, tuple[int, int]]]:
    return trained_places(blocks, config.vocab_size, config.hidden_size, config.tie_word_embeddings)
