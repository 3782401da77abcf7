"""A PEFT directory."""

from __future__ import annotations

from pathlib import Path

from featherback.core.files import atomic_folder
from featherback.core.naming import argument
from featherback.core.terminal import quoted
from featherback.exports.base_model import base_model_name
from featherback.exports.formats.peft import FORMAT
from featherback.exports.targets.base import Exported, Request, Target, check_adapter_room
from featherback.exports.targets.words import first_part, try_adapter
from featherback.models.converted import ConvertedWeights
from featherback.models.model import Model

HEAD_DIMS: dict[str, int | None] = {"llama": None, "qwen2": None, "qwen3": 128}
"""Architectures whose GGUF files transformers opens as what they are, and the head size that it takes for granted.

It opens others too, but leaves out keys of theirs (Gemma's scale and caps), and scalings of rotary frequencies.
"""


class PEFT(Target):
    help = "a PEFT directory"
    format = FORMAT

    def name(self, request: Request, stem: str) -> str:
        return f"{stem}-peft"

    def write(self, request: Request) -> Exported:
        model = request.adapter.model
        base = request.base_model or base_model_name(model)
        check_adapter_room(request)
        with atomic_folder(request.out) as folder:
            FORMAT.save(request.adapter, folder, base)
        notes = [f"base_model_name_or_path: {base}"]
        is_path = base == str(model.path.absolute())
        if not is_path or _opens_folder(model):
            return Exported(request.out, _python(_AUTO.format(out=str(request.out))), notes)
        place = (
            f"which is a path here: name the model's place on the Hub with {argument('base_model')}, so that others "
            f"find it"
        )
        if not _opens_gguf(model):
            notes.append(
                f"transformers cannot open {model.path.name}, {place}. PEFT then opens the adapter as it stands: "
                f"{_python(_AUTO.format(out=str(request.out)))}"
            )
            return Exported(request.out, try_adapter(model, request.out), notes)
        notes.append(f"transformers opens it as floats, {place}")
        return Exported(request.out, _python(_program(first_part(model), request.out)), notes)


_AUTO = "from peft import AutoPeftModelForCausalLM as Auto; model = Auto.from_pretrained({out!r})"
"""For a base that transformers finds by the name in adapter_config.json."""


def _program(base: Path, out: Path) -> str:
    """For a base that is a GGUF file."""
    place = base.absolute()
    return (
        "from peft import PeftModel; from transformers import AutoModelForCausalLM as Auto; "
        f"base = Auto.from_pretrained({str(place.parent)!r}, gguf_file={place.name!r}); "
        f"model = PeftModel.from_pretrained(base, {str(out)!r})"
    )


def _python(program: str) -> str:
    return quoted("python", "-ic", program)


def _opens_folder(model: Model) -> bool:
    """Whether transformers opens the base as a folder: not one of MLX's own packing."""
    packed = isinstance(model.store, ConvertedWeights) and model.quantize == "none"
    return model.source != "gguf" and not packed


def _opens_gguf(model: Model) -> bool:
    """Whether transformers opens the base as a GGUF file, and computes what it says."""
    config, architecture = model.config, model.family.architecture
    if model.source != "gguf" or len(model.files) > 1 or architecture not in HEAD_DIMS:
        return False
    return config.rope_scaling is None and HEAD_DIMS[architecture] in (None, config.head_dim)


TARGET = PEFT()
