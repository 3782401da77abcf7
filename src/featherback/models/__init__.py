"""A model opened from disk: its configuration, its blocks, handles of its weights; and adapters of it (`lora`)."""

from featherback.engine.formats.matrix import LayerWeights
from featherback.models.architecture.config import ModelConfig
from featherback.models.loader import load
from featherback.models.model import Model

__all__ = ["LayerWeights", "Model", "ModelConfig", "load"]
