"""The model with the adapter in its weights: a GGUF file, or a Hugging Face folder if that is what the base is."""

from __future__ import annotations

from pathlib import Path

from featherback.adapters.lora import LoRA
from featherback.adapters.merged_gguf import MergedGGUF
from featherback.adapters.merged_hf import MergedHF
from featherback.errors import FeatherbackError
from featherback.files import atomic_folder
from featherback.targets.base import Exported, Request, Target, check_not_base
from featherback.targets.report import merge_facts, merge_notes
from featherback.terminal import quoted
from featherback.weights.quantize import quantizable
from featherback.weights.types import TensorType


class Merged(Target):
    help = "the model with the adapter in its weights: GGUF, or a Hugging Face folder if the base is one"
    types = tuple(kind for kind in TensorType if quantizable(kind))

    def name(self, request: Request, stem: str) -> str:
        return f"{stem}-merged" + (".gguf" if request.adapter.model.source == "gguf" else "")

    def write(self, request: Request) -> Exported:
        out = request.out
        merged: MergedGGUF | MergedHF
        if request.adapter.model.source == "gguf":
            merged = write_merged_gguf(request.adapter, out, request.kind)
        else:
            merged = self._folder(request)
        words = ("featherback", "generate", out, "--prompt", "Hello")
        notes = merge_notes(merged.cost, merged.types, merged.changed)
        return Exported(out, quoted(*words), notes, merge_facts(merged.cost, merged.types))

    def _folder(self, request: Request) -> MergedHF:
        if request.out.suffix == ".gguf":
            raise FeatherbackError(
                f"{request.adapter.model.path} is a Hugging Face folder, and is merged into one; name a folder as "
                f"--out, and make a GGUF of it with llama.cpp's convert_hf_to_gguf.py."
            )
        merged = MergedHF(request.adapter, request.kind)
        with atomic_folder(request.out) as folder:
            merged.write(folder)
        return merged


def write_merged_gguf(adapter: LoRA, out: Path, kind: TensorType | None) -> MergedGGUF:
    """Merge into a GGUF file; FeatherbackError if `out` is the base itself."""
    check_not_base(out, adapter.model)
    merged = MergedGGUF(adapter, kind)
    merged.write(out)
    return merged


TARGET = Merged()
