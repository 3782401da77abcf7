"""Models: configuration, weights by their Hugging Face names, and one module an architecture family."""

from featherback.models.config import ModelConfig
from featherback.models.loader import load
from featherback.models.model import LayerWeights, Model

__all__ = ["LayerWeights", "Model", "ModelConfig", "load"]
