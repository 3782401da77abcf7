"""The architecture families Featherback knows."""

from typing import Any, Protocol

from featherback.errors import FeatherbackError
from featherback.models import llama, qwen2
from featherback.models.config import ModelConfig
from featherback.models.hf_config import HFConfig
from featherback.weights.gguf import GGUFFile


class Family(Protocol):
    """What a family's module offers."""

    ALSO_USED: tuple[str, ...]

    def read_gguf(self, file: GGUFFile) -> ModelConfig:
        """The configuration of a GGUF file."""

    def read_hf(self, config: HFConfig) -> ModelConfig:
        """The configuration of a Hugging Face folder."""


GGUF_FAMILIES: dict[str, Any] = {"llama": llama, "qwen2": qwen2}  # by general.architecture
HF_FAMILIES: dict[str, Any] = {"llama": llama, "mistral": llama, "qwen2": qwen2}  # by model_type


def family(families: dict[str, Any], architecture: object, path: object) -> Family:
    """The module of an architecture; FeatherbackError naming it and the known ones if there is none."""
    module: Family | None = families.get(architecture) if isinstance(architecture, str) else None
    if module is None:
        known = ", ".join(families)
        raise FeatherbackError(
            f"{path} has the architecture {architecture!r}, which is not supported (supported: {known})."
        )
    return module
