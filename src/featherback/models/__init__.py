"""Models on disk: configuration, blocks and handles of the weights; and their adapters (`adapter`)."""

from featherback.engine.formats.matrix import LayerWeights
from featherback.models.architecture.config import ModelConfig
from featherback.models.loader import load
from featherback.models.model import Model

__all__ = ["LayerWeights", "Model", "ModelConfig", "load"]
