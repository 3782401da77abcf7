"""Open a model: a GGUF file, or a Hugging Face folder."""

import re
from pathlib import Path

from featherback import families
from featherback.architecture.gguf_metadata import GGUFKeys
from featherback.architecture.hf_config import HFConfig
from featherback.errors import FeatherbackError, shown
from featherback.files import read_json
from featherback.models.model import Model
from featherback.weights.gguf import GGUFFile
from featherback.weights.safetensors import SafetensorsFolder

CONFIG = "config.json"

# Buffers that old checkpoints saved although the configuration tells them.
_DERIVED = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


def load(path: str | Path) -> Model:
    """Open the model in a GGUF file or a Hugging Face folder, without reading its weights.

    FeatherbackError, one sentence, if it cannot be opened or is not a model Featherback computes exactly.
    """
    path = Path(path)
    if path.is_dir():
        return _load_hf(path)
    if path.suffix == ".safetensors":
        raise FeatherbackError(
            f"{path} holds weights only; give the folder that it lies in with its {CONFIG}."
        )
    return _load_gguf(path)


def _load_gguf(path: Path) -> Model:
    file = GGUFFile(path)
    try:
        architecture = file.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise FeatherbackError(f"{path} has no metadata key general.architecture.")
        if (kind := file.metadata.get("general.type", "model")) != "model":
            raise FeatherbackError(f"{path} holds a GGUF of type {shown(kind)}, not a model.")
        if file.metadata.get("split.count", 0) not in (0, 1):
            raise FeatherbackError(
                f"{path} is one part of a split model; join the parts with llama-gguf-split --merge first."
            )
        family = families.of_architecture(architecture, path)
        config = family.read_gguf(GGUFKeys(file, architecture))
        return Model(file, config, "gguf", family.naming(None), family.also_used)
    except BaseException:
        file.close()
        raise


def _load_hf(path: Path) -> Model:
    if not (path / CONFIG).is_file():
        raise FeatherbackError(f"{path} is not a Hugging Face model folder (it has no {CONFIG}).")
    entries = read_json(path / CONFIG)
    if not isinstance(entries, dict):
        raise FeatherbackError(f"{path / CONFIG} is not a JSON object.")
    family = families.of_model_type(entries.get("model_type"), path)
    stated = HFConfig(path / CONFIG, entries)
    config, naming = family.read_hf(stated), family.naming(stated)
    folder = SafetensorsFolder(path)
    try:
        ignored = [
            name for name in folder.tensors if _DERIVED.fullmatch(name) or name.startswith(naming.others)
        ]
        if config.tie_word_embeddings:  # some checkpoints save the shared matrix under both names
            ignored.append(naming.tensors["lm_head"])
        return Model(folder, config, "hf", naming, tuple(ignored))
    except BaseException:
        folder.close()
        raise
