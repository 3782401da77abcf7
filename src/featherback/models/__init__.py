"""Models on disk: opening them, checking them, and handles of their weights."""

from featherback.architecture.config import ModelConfig
from featherback.models.loader import load
from featherback.models.model import LayerWeights, Model

__all__ = ["LayerWeights", "Model", "ModelConfig", "load"]
