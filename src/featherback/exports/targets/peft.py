"""A PEFT directory."""

from __future__ import annotations

from pathlib import Path

from featherback.core.files import atomic_folder
from featherback.core.naming import argument
from featherback.core.terminal import quoted
from featherback.exports.base_model import base_model_name
from featherback.exports.formats.peft import FORMAT
from featherback.exports.stops import stop_note
from featherback.exports.targets.base import Exported, Request, Target, check_adapter_room
from featherback.exports.targets.commands import first_part, try_adapter
from featherback.models.converted import ConvertedWeights
from featherback.models.mlx import MLXFolder
from featherback.models.model import Model
from featherback.models.ternary import LABEL as TERNARY

HEAD_DIMS: dict[str, int | None] = {"llama": None, "qwen2": None, "qwen3": 128}
"""Architectures whose GGUF files transformers computes correctly -> the head size that it assumes (None: any).

transformers opens other architectures too, but ignores some of their keys (Gemma's scale and caps) and scalings of
rotary frequencies.
"""


class PEFT(Target):
    help = "a PEFT directory"
    format = FORMAT
    any_family = holds_heads = True

    def name(self, request: Request, stem: str) -> str:
        return f"{stem}-peft"

    def write(self, request: Request) -> Exported:
        model = request.adapter.model
        base = request.base_model or base_model_name(model)
        check_adapter_room(request)
        with atomic_folder(request.out) as folder:
            FORMAT.save(request.adapter, folder, base)
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
            return Exported(request.out, try_adapter(model, request.out, scores=outputs > 0), notes)
        notes.append(f"transformers converts the model at this path to floats; {advice}")
        return Exported(request.out, _python(_program(first_part(model), request.out, outputs)), notes)


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


TARGET = PEFT()
