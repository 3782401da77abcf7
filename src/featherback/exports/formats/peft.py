"""PEFT directories: adapter_config.json and adapter_model.safetensors (https://github.com/huggingface/peft).

Experts and routers are parameters in PEFT, not modules: see `peft_parameters`. The configuration: `peft_configuration`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from featherback.core.files import atomic_folder, make_folder, read_json, write_json
from featherback.core.naming import argument
from featherback.core.terminal import quoted
from featherback.engine.formats.mapping import reading
from featherback.engine.formats.safetensors import SafetensorsFile
from featherback.engine.formats.store import floats
from featherback.engine.formats.types import TensorInfo
from featherback.errors import FeatherbackError, excerpt
from featherback.exports.base_model import base_model_name
from featherback.exports.formats.base import (
    Exported,
    Factor,
    Float32,
    Format,
    MisfitError,
    Request,
    StoredAdapter,
    check_modules,
    finite_factor,
    first_part,
    form_of,
)
from featherback.exports.formats.peft_configuration import (
    MARKS,
    PREFIX,
    Configuration,
    Joined,
    configuration,
    parts_of,
    tensor_name,
)
from featherback.exports.formats.peft_parameters import GATE_UP, Parameter, adapted_parameters, halved, modules, stems
from featherback.exports.safetensors_writer import write_safetensors
from featherback.exports.stops import stop_note
from featherback.models.adapter import Adapter
from featherback.models.converted import ConvertedWeights
from featherback.models.form import Form, LayerTarget
from featherback.models.mlx import MLXFolder
from featherback.models.model import Model
from featherback.models.ternary import LABEL as TERNARY
from featherback.nn.adapters.base import Kind
from featherback.nn.adapters.lora import LoRAKind
from featherback.nn.score import SCORE

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
LABELS_FILE = "labels.json"
"""The names of a classifier's labels: id2label and label2id, as transformers has them in the config.json of a model."""
PICKLE = "adapter_model.bin"
_HEAD = f"{PREFIX}{SCORE}.weight"

HEAD_DIMS: dict[str, int | None] = {"llama": None, "qwen2": None, "qwen3": 128}
"""Architectures whose GGUF files transformers computes correctly -> the head size that it assumes (None: any).

transformers opens other architectures too, but ignores some of their keys (Gemma's scale and caps) and scalings of
rotary frequencies.
"""


class PEFT(Format):
    title = f"a PEFT directory ({CONFIG_FILE}, {WEIGHTS_FILE})"
    files = (WEIGHTS_FILE, CONFIG_FILE, LABELS_FILE)
    help = "a PEFT directory"
    any_family = holds_heads = True

    def recognises(self, path: Path) -> bool:
        return (path / WEIGHTS_FILE).is_file() or (path / PICKLE).is_file()

    @contextmanager
    def open(self, path: Path, model: Model) -> Iterator[StoredAdapter]:
        if not (path / CONFIG_FILE).is_file():
            raise FeatherbackError(f"{path} is not an adapter directory (it has no {CONFIG_FILE}).")
        entries = read_json(path / CONFIG_FILE)
        if not isinstance(entries, dict):
            raise FeatherbackError(f"{path / CONFIG_FILE} does not describe an adapter: it is not a JSON object.")
        if not (path / WEIGHTS_FILE).is_file() and (path / PICKLE).is_file():
            raise FeatherbackError(
                f"{path / PICKLE} is a pickle, which Featherback never loads; open the adapter with PEFT and save it "
                f"as {WEIGHTS_FILE}: save_pretrained(folder, safe_serialization=True)."
            )
        config = Configuration(path / CONFIG_FILE, entries, model)
        with reading(SafetensorsFile(path / WEIGHTS_FILE)) as file:
            where = f"The adapter in {path}"
            known = [*(module for _, module in modules(model)), *config.joined]
            check_modules(where, model, file.tensors, MARKS[config.type], (each.rsplit(".", 1)[-1] for each in known))
            names = config.names(model)
            there = {names[name].place for name in file.tensors if name in names}
            kinds = config.kinds(model, there)
            outputs = _outputs(where, path, model, file.tensors)
            others = {name: info for name, info in file.tensors.items() if name != _HEAD}
            _check_tensors(where, model, others, names, kinds, config)
            both = [(stem, each) for stem, (each, _) in config.joined.items() if each.called == GATE_UP]
            apart = bool(both) and all(each.is_diagonal(floats(file, tensor_name(stem, "B"))) for stem, each in both)
            for parameter, kind in config.joined.values():
                own = halved(kind) if parameter.called == GATE_UP and apart else kind
                kinds |= dict.fromkeys(parameter.places, own)
            form = replace(form_of(where, model, kinds, config.usual), outputs=outputs)
            names[_HEAD] = Factor((len(model.blocks), SCORE), "weight")
            yield _Stored(form, file, names, config.joined, apart)

    def save(self, adapter: Adapter, path: Path, base_model: str | None = None) -> None:
        make_folder(path)
        write_safetensors(path / WEIGHTS_FILE, _shapes(adapter), _tensors(adapter), {"format": "pt"})
        base = base_model or base_model_name(adapter.model)
        write_json(path / CONFIG_FILE, configuration(adapter, base))
        if adapter.outputs:
            ids = {name: number for number, name in enumerate(adapter.outputs)}
            write_json(path / LABELS_FILE, {"id2label": dict(enumerate(adapter.outputs)), "label2id": ids})

    def remove(self, folder: Path) -> None:
        heads = (folder / CONFIG_FILE).is_file() and read_json(folder / CONFIG_FILE).get("modules_to_save")
        for name in self.files if heads else (WEIGHTS_FILE, CONFIG_FILE):
            (folder / name).unlink(missing_ok=True)

    def name(self, request: Request, stem: str) -> str:
        return f"{stem}-peft"

    def write(self, request: Request) -> Exported:
        model = request.adapter.model
        base = request.base_model or base_model_name(model)
        request.check_room()
        with atomic_folder(request.out) as folder:
            self.save(request.adapter, folder, base)
        notes = [f"base_model_name_or_path: {base}", *stop_note(model.path)]
        is_path = base == str(model.path.absolute())
        outputs = len(request.adapter.outputs)
        if not is_path or _opens_folder(model):
            return Exported(request.out, _python(_auto(request.out, outputs)), notes)
        advice = f"name the model on the Hub with {argument('base_model', 'OWNER/NAME')}, so that others can find it"
        if not _opens_gguf(model):
            notes.append(
                f"transformers cannot open {model.path.name}; {advice}. PEFT then opens the adapter with: "
                f"{_python(_auto(request.out, outputs))}"
            )
            return Exported(request.out, request.try_out(), notes)
        notes.append(f"transformers converts the model at this path to floats; {advice}")
        return Exported(request.out, _python(_program(first_part(model), request.out, outputs)), notes)


class _Stored(StoredAdapter):
    """`apart`: every joined pair of gate and up consists of a pair for each."""

    def __init__(self, form: Form, file: SafetensorsFile, names: Mapping[str, Factor], joined: Joined, apart: bool):
        super().__init__(form, file, names)
        self._apart = apart
        self._joined = {
            place: (stem, parameter, number)
            for stem, (parameter, _) in joined.items()
            for number, place in enumerate(parameter.places)
        }

    def factor(self, factor: Factor) -> Float32:
        if factor.place not in self._joined:
            return super().factor(factor)
        stem, parameter, number = self._joined[factor.place]
        values = floats(self._file, tensor_name(stem, factor.part))
        return parameter.parted(factor.part, values, number, self._apart and parameter.called == GATE_UP)


def _outputs(where: str, path: Path, model: Model, tensors: Mapping[str, TensorInfo]) -> tuple[str, ...]:
    """Return the names of the scores of an adapter's trained head; empty without one. Raises MisfitError."""
    if _HEAD not in tensors:
        return ()
    shape, width = tensors[_HEAD].shape, model.config.hidden_size
    if len(shape) != 2 or shape[1] != width or not shape[0]:
        raise MisfitError(where, model, [f"{_HEAD} has shape {shape}, not (number of labels, {width})"])
    return _label_names(path / LABELS_FILE, shape[0])


def _label_names(file: Path, count: int) -> tuple[str, ...]:
    """Return the names of `count` labels: those in `file` if it has them, else transformers' LABEL_0, LABEL_1, ..."""
    entries = read_json(file) if file.is_file() else {}
    named = entries.get("id2label") if isinstance(entries, dict) else None
    known = named if isinstance(named, dict) else {}
    found = tuple(name for number in range(count) if isinstance(name := known.get(str(number)), str))
    if len(set(found)) == count:
        return found
    return tuple(f"LABEL_{number}" for number in range(count))


def _check_tensors(
    where: str,
    model: Model,
    tensors: Mapping[str, TensorInfo],
    names: Mapping[str, Factor],
    kinds: Mapping[LayerTarget, Kind],
    config: Configuration,
) -> None:
    """Raise MisfitError, listing every tensor that is missing, unknown or of another shape."""
    by_factor = {factor: name for name, factor in names.items()}
    wanted = {
        by_factor[Factor(place, name)]: part.stored
        for place, kind in kinds.items()
        for name, part in parts_of(model, place, kind).items()
    }
    joined = {
        tensor_name(stem, part): shape
        for stem, (parameter, pair) in config.joined.items()
        for part, shape in zip("AB", parameter.shapes(pair.rank))
    }
    wanted |= joined
    unknown = [name for name in tensors if name not in names and name not in joined]
    if whole := [name for name in unknown if not any(mark in name for mark in MARKS.values())]:
        raise FeatherbackError(
            f"{where} holds whole weights of a model, such as {excerpt(whole[0])}. Featherback opens adapters "
            "only. Merge it into its model with PEFT (merge_and_unload), and use the merged model."
        )
    problems = [f"{name} is missing" for name in wanted if name not in tensors]
    for name, info in tensors.items():
        if name not in names and name not in joined:
            problems.append(f"{name} is not a {config.kind.title} tensor of this model")
        elif name not in wanted:
            problems.append(f"{name} belongs to a module that the configuration leaves out")
        elif info.shape != wanted[name]:
            problems.append(f"{name} has shape {info.shape}, not {wanted[name]}")
    if problems:
        raise MisfitError(where, model, problems)


def _shapes(adapter: Adapter) -> dict[str, tuple[int, ...]]:
    """Name -> shape of each stored tensor, in the order of `_tensors`."""
    adapted, shapes = adapted_parameters(adapter), dict[str, tuple[int, ...]]()
    stacks = {place for parameter in adapted for place in parameter.places}
    for layer in adapter.layout.adapted:
        for target in adapter.layout.targets(layer):
            if (layer, target) not in stacks:
                for name, part in adapter.layout.parts(layer, target).items():
                    shapes[PREFIX + adapter.name(layer, target, name)] = part.stored
        for stem, parameter in stems([each for each in adapted if each.layer == layer]).items():
            for name, shape in zip("AB", parameter.shapes(adapted[parameter].rank)):
                shapes[tensor_name(stem, name)] = shape
    return shapes


def _tensors(adapter: Adapter) -> Iterator[tuple[str, Float32]]:
    adapted = adapted_parameters(adapter)
    stacks = {place for parameter in adapted for place in parameter.places}
    for layer in adapter.layout.adapted:
        for target in adapter.layout.targets(layer):
            if (layer, target) not in stacks:
                for part in adapter.layout.parts(layer, target):
                    yield (
                        PREFIX + adapter.name(layer, target, part),
                        finite_factor(adapter, Factor((layer, target), part)),
                    )
        for stem, parameter in stems([each for each in adapted if each.layer == layer]).items():
            for part in "AB":
                yield tensor_name(stem, part), _joined(adapter, parameter, part, adapted[parameter])


def _joined(adapter: Adapter, parameter: Parameter, part: str, kind: LoRAKind) -> Float32:
    """PEFT's lora_A or lora_B of a parameter. The factors of its stacks are freed."""
    return parameter.joined(part, [_own(adapter, Factor(place, part), kind) for place in parameter.places])


def _own(adapter: Adapter, factor: Factor, joined: LoRAKind) -> Float32 | None:
    """A factor of a stack, with the scale of the `joined` pair; None if the stack is not adapted."""
    kind = adapter.form.at(*factor.place)
    if not isinstance(kind, LoRAKind):
        return None
    values = finite_factor(adapter, factor)
    if factor.part == "B" and kind.scale != joined.scale:
        values *= np.float32(kind.scale / joined.scale)
    return values


def _auto(out: Path, outputs: int) -> str:
    """Code for a base model that transformers finds by its name in adapter_config.json."""
    kind, labels = _task(outputs)
    return f"from peft import AutoPeftModelFor{kind} as Auto; model = Auto.from_pretrained({str(out)!r}{labels})"


def _program(base: Path, out: Path, outputs: int) -> str:
    """Code for a base model that is a GGUF file."""
    place = base.absolute()
    kind, labels = _task(outputs)
    return (
        f"from peft import PeftModel; from transformers import AutoModelFor{kind} as Auto; "
        f"base = Auto.from_pretrained({str(place.parent)!r}, gguf_file={place.name!r}{labels}); "
        f"model = PeftModel.from_pretrained(base, {str(out)!r})"
    )


def _task(outputs: int) -> tuple[str, str]:
    """Return the end of the class's name in transformers, and the argument that it needs for `outputs` scores."""
    return ("SequenceClassification", f", num_labels={outputs}") if outputs else ("CausalLM", "")


def _python(program: str) -> str:
    return quoted("python", "-ic", program)


def _opens_folder(model: Model) -> bool:
    """Whether transformers can open the base model as a folder. It cannot open MLX's packed weights."""
    packed = isinstance(model.store, ConvertedWeights) and model.store.label in (MLXFolder.label, TERNARY)
    return model.source != "gguf" and not packed


def _opens_gguf(model: Model) -> bool:
    """Whether transformers can open the base model as a GGUF file, and computes the same model."""
    config, architecture = model.config, model.family.architecture
    if model.source != "gguf" or len(model.files) > 1 or architecture not in HEAD_DIMS:
        return False
    return config.rope_scaling is None and HEAD_DIMS[architecture] in (None, config.head_dim)


FORMAT = PEFT()
