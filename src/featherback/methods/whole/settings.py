"""The settings for training a model's own weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from featherback.core.naming import argument
from featherback.engine.backend.counting import BlankMatrix
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError, did_you_mean, near
from featherback.methods.whole.trained_weights import WeightId, trained_weights
from featherback.models import families
from featherback.models.architecture.config import ModelConfig
from featherback.models.model import Model
from featherback.nn.block import Block
from featherback.nn.slots import NORM_BIAS
from featherback.optim.rule import Rule


@dataclass(frozen=True)
class WholeModelSettings:
    """The optimiser, the type of matrices during training, and the weights that are not trained."""

    rule: Rule
    kind: TensorType = TensorType.BF16
    frozen: tuple[str, ...] = ()  # patterns of names, see methods.whole.trained_weights

    def trains(self, weight: WeightId) -> bool:
        """Return whether a weight is trained."""
        return not weight.is_one_of(self.frozen)

    def check(self, model: Model) -> None:
        """Raise FeatherbackError if a pattern matches no weight of `model`, all are frozen, or it has experts."""
        if any(block.stacks for block in model.blocks):
            raise FeatherbackError(
                f"{model.path} has experts, whose own weights cannot be trained yet; train an adapter instead, with "
                f"{argument('train', 'lora')}."
            )
        weights = [weight for weight, _ in weights_of(model.config, model.blocks)]
        for pattern in self.frozen:
            if not any(weight.is_one_of((pattern,)) for weight in weights):
                layer = next(weight for weight in weights if weight.layer is not None)
                outside = ", ".join(weight.part for weight in weights if weight.layer is None)
                raise FeatherbackError(
                    f"{argument('freeze', pattern)} matches no weight of {model.path}. Its weights are {outside}, "
                    f"and names such as {layer.name}.{did_you_mean(near(pattern, [weight.name for weight in weights]))}"
                )
        if not any(map(self.trains, weights)):
            raise FeatherbackError(
                f"{argument('freeze', ','.join(self.frozen))} leaves nothing to train; freeze fewer weights."
            )

    def trained_parts(self, layer: int, block: Block) -> tuple[bool, ...]:
        """Whether each of a layer's weights is trained. Layers that differ in this differ in cost."""
        return tuple(self.trains(WeightId(part, layer)) for part in block.shapes)

    def trained(
        self, config: ModelConfig, blocks: Sequence[Block], layers: Sequence[int] | None = None
    ) -> dict[WeightId, tuple[int, int]]:
        """Return weight -> shape of every trained weight.

        `layers`: the layers of the model that `blocks` are, if not all in order.
        """

        def named(weight: WeightId) -> WeightId:
            return weight if weight.layer is None or layers is None else weight._replace(layer=layers[weight.layer])

        return {weight: shape for weight, shape in weights_of(config, blocks) if self.trains(named(weight))}

    def stored(self, matrix: BlankMatrix, weight: WeightId) -> BlankMatrix:
        """Return a matrix as it is stored on disk during training."""
        if not self.trains(weight):
            return matrix
        return BlankMatrix(matrix.shape, self.kind.row_bytes(matrix.cols), matrix.name, int(self.kind))


def weights_of(config: ModelConfig, blocks: Sequence[Block]) -> Iterator[tuple[WeightId, tuple[int, int]]]:
    """Yield every weight of a model with its shape, in the order of the file's tensors."""
    has_bias = NORM_BIAS in families.family_of(config).top_vectors(config)
    return trained_weights(blocks, config.vocab_size, config.hidden_size, config.tie_word_embeddings, has_bias)
