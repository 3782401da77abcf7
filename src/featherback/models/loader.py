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
from featherback.errors import FeatherbackError, excerpt, expected
from featherback.models import families, mlx, mxfp4, ternary
from featherback.models.architecture.config import ModelConfig
from featherback.models.architecture.gguf_keys import GGUFKeys
from featherback.models.architecture.hf_entries import HFConfig
from featherback.models.architecture.names import Naming
from featherback.models.assembled import Assembled
from featherback.models.converted import NONE, QUANTIZE, UnconvertedWeights, converted
from featherback.models.families.base import Family
from featherback.models.floats import FloatFolder
from featherback.models.layout import Named, check, check_layers, names_of_floats, tensor_shapes
from featherback.models.model import Model
from featherback.models.source import Made, RowSource, Source

# Buffers that old checkpoints contain, although they follow from the configuration.
_DERIVED = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


M = TypeVar("M", bound=Model)


def results(run: Path) -> tuple[Path, Path]:
    """The paths at which a run's directory may hold its trained model: a GGUF file, a Hugging Face folder."""
    return run / "model.gguf", run / "model"


@overload
def load(path: str | Path, quantize: str = NONE, *, without_converting: bool = False) -> Model: ...


@overload
def load(path: str | Path, quantize: str = NONE, *, kind: type[M]) -> M: ...


def load(
    path: str | Path, quantize: str = NONE, *, kind: type[Model] = Model, without_converting: bool = False
) -> Model:
    """Open a GGUF file, a Hugging Face folder or an MLX folder as a model, without reading its weights.

    `path` may be any part of a split GGUF, or the directory of a run that trained a whole model.

    `quantize` (q4_0 or q8_0): convert the matrices of a Hugging Face folder to this type. Quantised and MLX folders are
    converted when they are first opened, into a file in the cache.

    `without_converting`: the model has the types and sizes that it would have after conversion, but no weights.

    Raises FeatherbackError if the model cannot be opened, or if Featherback cannot compute it exactly.
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
        return _load_folder(path, quantize, kind, without_converting)
    if path.suffix == ".safetensors":
        raise FeatherbackError(f"{path} holds only weights; name the folder that also has the {CONFIG}: {path.parent}")
    if quantize != NONE:
        raise FeatherbackError(
            f"{path} is a GGUF file, whose weights are used as they are; remove {argument('quantize')}, which is for "
            f"Hugging Face folders."
        )
    return _load_gguf(path, kind, without_converting)


def _load_gguf(path: Path, kind: type[Model], without_converting: bool) -> Model:
    file = open_gguf(path)
    try:
        architecture = file.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise FeatherbackError(f"{path} has no metadata key general.architecture.")
        if (stated := file.metadata.get("general.type", "model")) != "model":
            raise FeatherbackError(f"{path} holds a GGUF of type {excerpt(stated)}, not a model.")
        family = families.of_architecture(architecture, path)
        keys = GGUFKeys(file, architecture)
        config = family.read_gguf(keys)
        naming = family.of_layers(family.naming(None), config.num_hidden_layers)
        also_used = (*family.also_used, *family.unused(keys))
        if not ternary.needs_conversion(file):
            return kind(file, config, "gguf", naming, also_used)
        source = ternary.TernaryGGUF(file)
        store = _converted(source, config, naming, also_used, without_converting, {})
    except BaseException:
        file.close()
        raise
    return _made(kind, store, config, "gguf", naming)


def _of_adapter(run: Path) -> str:
    """The message about the directory of a run that trained an adapter, when a model is needed."""
    record = read_json(run / private.RUN_FILE)
    options = record.get("configuration") if isinstance(record, dict) else None
    recorded = options.get("model") if isinstance(options, dict) else None
    gone = isinstance(recorded, str) and not Path(recorded).exists()
    model = recorded if isinstance(recorded, str) and not gone else "MODEL"
    if in_python():
        use = f"{model!r}, with {argument('adapter', run)}"
    else:
        use = quoted("featherback", "chat", model, "--adapter", run)
    moved = f" (which is no longer at {recorded})" if gone else ""
    return f"{run} is a run that trained an adapter; use it with its model{moved}: {use}"


def _load_folder(path: Path, quantize: str, kind: type[Model], without_converting: bool) -> Model:
    if not (path / CONFIG).is_file():
        if (path / private.RUN_FILE).is_file():
            raise FeatherbackError(_of_adapter(path))
        raise FeatherbackError(f"{path} is not a Hugging Face model folder (it has no {CONFIG}).")
    entries = read_json(path / CONFIG)
    if not isinstance(entries, dict):
        raise FeatherbackError(f"{path / CONFIG} is not a JSON object.")
    found = ((module, module.take(entries, path / CONFIG)) for module in (mlx, ternary, mxfp4))
    stated_by, packed = next((each for each in found if each[1] is not None), (None, None))
    if stated_by is not None and quantize != NONE:
        raise FeatherbackError(
            f"{path} is already quantised, {stated_by.TITLE}; remove {argument('quantize')}, or name the folder that "
            f"it was made from."
        )
    family = families.of_model_type(entries.get("model_type"), path)
    stated = HFConfig(path / CONFIG, entries)
    config, naming = family.read_hf(stated), family.naming(stated)
    source: Source
    made: Made = {}
    if isinstance(packed, ternary.Quantization):
        source = ternary.TernaryFolder(path, packed, naming.tensors)
    else:
        rows = _rows(path, stated_by, packed, family)
        try:
            check_layers(rows, config)
            config, naming, made = family.as_stored(config, naming, rows.tensors)
            naming = family.of_layers(naming, config.num_hidden_layers)
            own = family.conversion(rows.store, config) if isinstance(rows.store, SafetensorsFolder) else None
            if own is not None and quantize != NONE:
                raise FeatherbackError(
                    f"{path} is converted to {own.label} weights when it is opened; remove {argument('quantize')}."
                )
            if own is None and packed is None and quantize == NONE and not made:
                return kind(rows.store, config, "hf", naming, _ignored(rows, config, naming))
            shapes, exact = tensor_shapes(config, naming.tensors), names_of_floats(config, naming.tensors)
            source = own or Assembled(rows, shapes, made, exact, quantize)
        except BaseException:
            rows.close()
            raise
    try:
        store = _converted(source, config, naming, _ignored(source, config, naming), without_converting, made)
    except BaseException:
        source.close()
        raise
    return _made(kind, store, config, "hf", naming, quantize)


def _rows(path: Path, stated_by: object, packed: object, family: Family) -> RowSource:
    """The tensors of a folder. `packed`: the entry of config.json that `stated_by` took; None: there is none."""
    if stated_by is mxfp4:
        return mxfp4.MXFP4Folder(path)
    if stated_by is mlx:
        return mlx.MLXFolder(path, packed)
    return FloatFolder(SafetensorsFolder(path), family.turned)


def _converted(
    source: Source,
    config: ModelConfig,
    naming: Naming,
    also_used: tuple[str, ...],
    without_converting: bool,
    made: Made,
) -> TensorStore:
    """The converted weights of a source, which is closed, or their types and sizes, which keep it open."""
    check(source, config, naming.tensors, also_used)
    shapes = tensor_shapes(config, naming.tensors)
    if without_converting:
        return UnconvertedWeights(source, shapes, names_of_floats(config, naming.tensors))
    store = converted(source, shapes, made)
    source.close()
    return store


def _made(
    kind: type[M], store: TensorStore, config: ModelConfig, source: str, naming: Naming, quantize: str = NONE
) -> M:
    """Make the model of converted weights."""
    try:
        return kind(store, config, source, naming, quantize=quantize)
    except BaseException:
        store.close()
        raise


def _ignored(store: Named, config: ModelConfig, naming: Naming) -> tuple[str, ...]:
    """The tensors of a folder that the model does not need."""
    ignored = [name for name in store.tensors if _DERIVED.fullmatch(name) or name.startswith(naming.others)]
    if config.tie_word_embeddings:  # some checkpoints save the shared matrix under both names
        ignored.append(naming.tensors["lm_head"])
    return tuple(ignored)
