"""A folder for Sentence Transformers: the merged model, and how its embeddings are pooled and normed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from featherback.core.files import atomic_file, atomic_folder, make_folder
from featherback.core.naming import argument
from featherback.core.terminal import quoted
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.exports.formats.base import Exported, Format, Request, WholeRequest
from featherback.exports.merged_hf import MergedHF
from featherback.exports.report import merge_facts, merge_notes
from featherback.exports.whole import write_model
from featherback.models.model import Model
from featherback.models.pooled import FILE, FOLDER, pooling_entries, stored_pooling

_MODULES = ("Transformer", ""), ("Pooling", FOLDER), ("Normalize", "2_Normalize")
PLAIN = (TensorType.F32, TensorType.F16, TensorType.BF16)


class SentenceTransformers(Format):
    help = "a folder that Sentence Transformers opens: merged weights, pooling and norm"
    types = whole_types = PLAIN

    def name(self, request: Request, stem: str) -> str:
        return f"{stem}-embeddings"

    def write(self, request: Request) -> Exported:
        _check_folder(request.adapter.model)
        merged = MergedHF(request.adapter, request.kind)
        with atomic_folder(request.out) as folder:
            merged.write(folder)
            _write_modules(folder, request.adapter.model, request.pooling)
        return Exported(request.out, _try_out(request.out), merge_notes(merged), merge_facts(merged))

    def whole_name(self, request: WholeRequest, stem: str) -> str:
        return f"{stem}{request.suffix}-embeddings"

    def write_whole(self, request: WholeRequest) -> Exported:
        _check_folder(request.model)
        with atomic_folder(request.out) as folder:
            notes, facts = write_model(request.model, folder, request.kind, request.base)
            _write_modules(folder, request.base or request.model, request.pooling)
        return Exported(request.out, _try_out(request.out), notes, facts)


def _check_folder(model: Model) -> None:
    if model.source == "gguf":
        raise FeatherbackError(
            f"{model.path} is a GGUF file, and Sentence Transformers reads Hugging Face folders. Train with the "
            f"model's folder, or use {argument('to', 'merged')}."
        )
    load_tokenizer(model.path)  # raises the error of a folder without one


def _try_out(out: Path) -> str:
    return quoted("featherback", "embed", out, "TEXT")


def _write_modules(folder: Path, model: Model, pooling: str | None) -> None:
    """Write what Sentence Transformers reads beside a model."""
    usual = "mean" if model.family.is_encoder else "last"
    entries = pooling_entries(pooling or stored_pooling(model) or usual, model.config.hidden_size)
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(_MODULES)
    ]
    most = {"max_seq_length": model.config.max_position_embeddings, "do_lower_case": False}
    _write(folder / "modules.json", modules)
    _write(folder / FOLDER / FILE, entries)
    _write(folder / "sentence_bert_config.json", most)
    make_folder(folder / _MODULES[2][1])


def _write(path: Path, content: Any) -> None:
    make_folder(path.parent)
    with atomic_file(path) as file:
        file.write((json.dumps(content, indent=2) + "\n").encode())


FORMAT = SentenceTransformers()
