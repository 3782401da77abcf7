"""A GGUF LoRA file, for llama.cpp and programs built on it."""

from __future__ import annotations

from featherback.core.terminal import quoted
from featherback.engine.formats.types import TensorType
from featherback.exports.formats.gguf import FORMAT, TYPES
from featherback.exports.targets.base import QUANTIZABLE, Exported, Request, Target, WholeRequest, check_adapter_room
from featherback.exports.targets.commands import first_part, try_adapter
from featherback.exports.targets.whole import check_gguf, suffix, write_model


class GGUF(Target):
    help = "a GGUF LoRA file, for llama.cpp"
    types = TYPES
    whole_types = QUANTIZABLE

    def name(self, request: Request, stem: str) -> str:
        return f"{stem}.gguf"

    def write(self, request: Request) -> Exported:
        adapter, kind = request.adapter, TensorType.F32 if request.kind is None else request.kind
        check_adapter_room(request, kind)
        FORMAT.save(adapter, request.out, request.base_model, kind)
        model = adapter.model
        notes = [f"stored as {kind.name}; it works with any GGUF of the same model, whatever the quantisation"]
        if model.source == "gguf":
            return Exported(request.out, quoted("llama-cli", "-m", first_part(model), "--lora", request.out), notes)
        notes.append(
            f"llama.cpp needs a GGUF of {model.path}; make one with its convert_hf_to_gguf.py, then type: "
            f"{quoted('llama-cli', '-m', 'MODEL.gguf', '--lora', request.out)}"
        )
        return Exported(request.out, try_adapter(model, request.out), notes)

    def whole_name(self, request: WholeRequest, stem: str) -> str:
        check_gguf(request.model)
        return f"{stem}{suffix(request)}.gguf"

    def write_whole(self, request: WholeRequest) -> Exported:
        check_gguf(request.model)
        notes, facts = write_model(request, request.out)
        return Exported(request.out, quoted("llama-cli", "-m", request.out), notes, facts)


TARGET = GGUF()
