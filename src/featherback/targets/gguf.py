"""A GGUF LoRA file, for llama.cpp and whatever is built on it."""

from __future__ import annotations

from featherback.adapters.formats.gguf import FORMAT, TYPES
from featherback.targets.base import Exported, Request, Target, check_adapter_room
from featherback.terminal import quoted
from featherback.weights.types import TensorType


class GGUF(Target):
    help = "a GGUF LoRA file, for llama.cpp"
    types = TYPES

    def name(self, request: Request, stem: str) -> str:
        return f"{stem}.gguf"

    def write(self, request: Request) -> Exported:
        adapter, kind = request.adapter, TensorType.F32 if request.kind is None else request.kind
        check_adapter_room(request, kind)
        FORMAT.save(adapter, request.out, request.base_model, kind)
        model = adapter.model
        base = model.path if model.source == "gguf" else "MODEL.gguf"
        notes = [f"factors as {kind.name}; they apply to any GGUF of the same model, however quantised"]
        return Exported(request.out, quoted("llama-cli", "-m", base, "--lora", request.out), notes)


TARGET = GGUF()
