"""Models on disk: opening them, checking them, and handles of their weights."""

from featherback.architecture.config import ModelConfig
from featherback.models.loader import load
from featherback.models.model import Model
from featherback.weights.matrix import LayerWeights

__all__ = ["LayerWeights", "Model", "ModelConfig", "load"]
