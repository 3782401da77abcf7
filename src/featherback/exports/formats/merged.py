"""The model with the adapter merged into its weights: a GGUF file, or a Hugging Face folder if the base is one."""

from __future__ import annotations

from pathlib import Path

from featherback.core.files import atomic_folder
from featherback.core.naming import argument
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.exports.base_model import check_not_base
from featherback.exports.formats.base import QUANTIZABLE, Exported, Format, Request, WholeRequest, try_out
from featherback.exports.merged_gguf import MergedGGUF
from featherback.exports.merged_hf import MergedHF
from featherback.exports.report import merge_facts, merge_notes
from featherback.exports.whole import write_model
from featherback.models.adapter import Adapter


class Merged(Format):
    help = "the model with the adapter merged into it: GGUF, or a Hugging Face folder if the base is one"
    types = whole_types = QUANTIZABLE

    def name(self, request: Request, stem: str) -> str:
        return f"{stem}-merged" + (".gguf" if request.adapter.model.source == "gguf" else "")

    def write(self, request: Request) -> Exported:
        out = request.out
        merged: MergedGGUF | MergedHF
        if request.adapter.model.source == "gguf":
            merged = write_merged_gguf(request.adapter, out, request.kind)
        else:
            merged = self._folder(request)
        return Exported(out, try_out(out), merge_notes(merged), merge_facts(merged))

    def whole_name(self, request: WholeRequest, stem: str) -> str:
        return f"{stem}{request.suffix or '-merged'}" + (".gguf" if request.model.source == "gguf" else "")

    def write_whole(self, request: WholeRequest) -> Exported:
        if request.model.source == "gguf":
            notes, facts = write_model(request.model, request.out, request.kind, request.base)
        else:
            with atomic_folder(request.out) as folder:
                notes, facts = write_model(request.model, folder, request.kind, request.base)
        return Exported(request.out, try_out(request.out), notes, facts)

    def _folder(self, request: Request) -> MergedHF:
        if request.out.suffix == ".gguf":
            raise FeatherbackError(
                f"{request.adapter.model.path} is a Hugging Face folder, so the merged model is one too. Name a folder "
                f"as {argument('out')}, then make a GGUF of it with llama.cpp's convert_hf_to_gguf.py."
            )
        merged = MergedHF(request.adapter, request.kind)
        with atomic_folder(request.out) as folder:
            merged.write(folder)
        return merged


def write_merged_gguf(adapter: Adapter, out: Path, kind: TensorType | None) -> MergedGGUF:
    """Merge into a GGUF file. Raises FeatherbackError if `out` is the base model itself."""
    check_not_base(out, adapter.model)
    merged = MergedGGUF(adapter, kind)
    merged.write(out)
    return merged


FORMAT = Merged()
