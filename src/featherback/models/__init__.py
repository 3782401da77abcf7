"""Models on disk: opening them, checking them, and handles of their weights."""

from featherback.engine.formats.matrix import LayerWeights
from featherback.models.architecture.config import ModelConfig
from featherback.models.loader import load
from featherback.models.model import Model

__all__ = ["LayerWeights", "Model", "ModelConfig", "load"]
