"""Open a model: a GGUF file, or a Hugging Face folder."""

import re
from pathlib import Path
from typing import TypeVar, overload

from featherback.core import private
from featherback.core.files import read_json
from featherback.core.naming import argument, argument_is, in_python
from featherback.core.terminal import quoted
from featherback.engine.formats.safetensors import CONFIG, SafetensorsFolder
from featherback.engine.formats.split import open_gguf
from featherback.engine.formats.store import TensorStore
from featherback.errors import FeatherbackError, expected, shown
from featherback.models import families, mlx
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.architecture.names import Naming
from featherback.models.converted import NONE, QUANTIZE, Foreseen, Quantizing, Source, converted
from featherback.models.layout import Named, check, tensor_shapes
from featherback.models.model import Model

# Buffers that old checkpoints saved although the configuration tells them.
_DERIVED = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


M = TypeVar("M", bound=Model)


def results(run: Path) -> tuple[Path, Path]:
    """Where the directory of a run has the model that it trained, if it did: a GGUF file, or a Hugging Face folder."""
    return run / "model.gguf", run / "model"


@overload
def load(path: str | Path, quantize: str = NONE, *, foresee: bool = False) -> Model: ...


@overload
def load(path: str | Path, quantize: str = NONE, *, kind: type[M]) -> M: ...


def load(path: str | Path, quantize: str = NONE, *, kind: type[Model] = Model, foresee: bool = False) -> Model:
    """Open the model in a GGUF file, a Hugging Face folder or an MLX folder, without reading its weights.

    Any part of a split GGUF stands for all of them, and a run's directory for the model that it trained. `quantize`
    (q4_0, q8_0): the type that the matrices of a Hugging Face folder get; they and MLX's are converted into a file in
    the cache when they are opened first. `foresee`: not even then, for its types and sizes alone: what would be
    converted holds no weights.

    FeatherbackError, one sentence, if it cannot be opened or is not a model Featherback computes exactly.
    """
    path = Path(path)
    if quantize not in (NONE, *QUANTIZE):
        raise FeatherbackError(f"{argument_is('quantize', repr(quantize))}; {expected(quantize, (NONE, *QUANTIZE))}")
    if path.is_dir():
        private.check_run(path)
    if (whole := path.absolute()) in results(whole.parent):
        private.check_run(whole.parent)
    if path.is_dir() and not (path / CONFIG).is_file():
        path = next((each for each in results(path) if each.exists()), path)
    if path.is_dir():
        return _load_folder(path, quantize, kind, foresee)
    if path.suffix == ".safetensors":
        raise FeatherbackError(f"{path} holds weights only; give the folder that it lies in with its {CONFIG}.")
    if quantize != NONE:
        raise FeatherbackError(
            f"{path} is a GGUF file, whose weights are used as they are; {argument('quantize')} is for Hugging Face "
            f"folders."
        )
    return _load_gguf(path, kind)


def _load_gguf(path: Path, kind: type[Model]) -> Model:
    file = open_gguf(path)
    try:
        architecture = file.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise FeatherbackError(f"{path} has no metadata key general.architecture.")
        if (stated := file.metadata.get("general.type", "model")) != "model":
            raise FeatherbackError(f"{path} holds a GGUF of type {shown(stated)}, not a model.")
        family = families.of_architecture(architecture, path)
        config = family.read_gguf(GGUFKeys(file, architecture))
        return kind(file, config, "gguf", family.naming(None), family.also_used)
    except BaseException:
        file.close()
        raise


def _of_adapter(run: Path) -> str:
    """What to do with the directory of a run that trained an adapter, where a model is wanted."""
    record = read_json(run / private.RUN_FILE)
    options = record.get("configuration") if isinstance(record, dict) else None
    recorded = options.get("model") if isinstance(options, dict) else None
    model = recorded if isinstance(recorded, str) else "MODEL"
    if in_python():
        use = f"{model!r}, with {argument('adapter', run)}"
    else:
        use = quoted("featherback", "chat", model, "--adapter", run)
    return f"{run} is a run that trained an adapter; use it with its model: {use}"


def _load_folder(path: Path, quantize: str, kind: type[Model], foresee: bool) -> Model:
    if not (path / CONFIG).is_file():
        if (path / private.RUN_FILE).is_file():
            raise FeatherbackError(_of_adapter(path))
        raise FeatherbackError(f"{path} is not a Hugging Face model folder (it has no {CONFIG}).")
    entries = read_json(path / CONFIG)
    if not isinstance(entries, dict):
        raise FeatherbackError(f"{path / CONFIG} is not a JSON object.")
    packed = entries.pop(mlx.QUANTIZATION, None)
    if packed is not None and entries.get(mlx.COPY) == packed:
        del entries[mlx.COPY]
    if packed is not None and quantize != NONE:
        raise FeatherbackError(
            f"{path} is quantised already, by MLX; leave {argument('quantize')} out, or name the folder that it was "
            f"made of."
        )
    family = families.of_model_type(entries.get("model_type"), path)
    stated = HFConfig(path / CONFIG, entries)
    config, naming = family.read_hf(stated), family.naming(stated)
    if packed is None and quantize == NONE:
        folder = SafetensorsFolder(path)
        try:
            return kind(folder, config, "hf", naming, _ignored(folder, config, naming))
        except BaseException:
            folder.close()
            raise
    source: Source
    store: TensorStore
    source = Quantizing(SafetensorsFolder(path), quantize) if packed is None else mlx.MLXFolder(path, packed)
    try:
        check(source, config, naming.tensors, _ignored(source, config, naming))
        shapes = tensor_shapes(config, naming.tensors)
        store = Foreseen(source, shapes) if foresee else converted(source, shapes)
    except BaseException:
        source.close()
        raise
    if not foresee:
        source.close()
    try:
        return kind(store, config, "hf", naming, quantize=quantize)
    except BaseException:
        store.close()
        raise


def _ignored(store: Named, config: ModelConfig, naming: Naming) -> tuple[str, ...]:
    """The tensors that a folder holds beside those of the model."""
    ignored = [name for name in store.tensors if _DERIVED.fullmatch(name) or name.startswith(naming.others)]
    if config.tie_word_embeddings:  # some checkpoints save the shared matrix under both names
        ignored.append(naming.tensors["lm_head"])
    return tuple(ignored)
