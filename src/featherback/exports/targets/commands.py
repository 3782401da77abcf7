"""Commands to try an export with Featherback itself."""

from __future__ import annotations

from pathlib import Path

from featherback.core.terminal import quoted
from featherback.data.tokenizers.loader import check_tokenizer
from featherback.engine.formats.split import part_names
from featherback.errors import FeatherbackError
from featherback.models.converted import NONE
from featherback.models.model import Model


def try_out(model: Path, *options: object) -> str:
    """The command that lets `model` answer, with `options`; or that inspects it, if it has no tokenizer."""
    try:
        check_tokenizer(model)
    except FeatherbackError:
        return quoted("featherback", "inspect", model)
    return quoted("featherback", "generate", model, *options, "--prompt", "Hello")


def try_adapter(model: Model, adapter: Path, scores: bool = False) -> str:
    """The command that lets a model answer with an adapter, or classify if the adapter's head `scores` texts."""
    named = () if model.quantize == NONE else ("--quantize", model.quantize)
    if scores:
        return quoted("featherback", "classify", model.path, *named, "--adapter", adapter, "TEXT")
    return try_out(model.path, *named, "--adapter", adapter)


def first_part(model: Model) -> Path:
    """The model's file for other programs: of a split GGUF, the first part."""
    return model.path.with_name(part_names(model.path.name)[0])
