"""The command that tries out what was written, in Featherback itself."""

from __future__ import annotations

from pathlib import Path

from featherback.core.terminal import quoted
from featherback.data.tokenizers.loader import check_tokenizer
from featherback.engine.formats.split import part_names
from featherback.errors import FeatherbackError
from featherback.models.converted import NONE
from featherback.models.model import Model


def try_out(model: Path, *options: object) -> str:
    """The command line that lets `model` answer, with `options`; that looks at it, if it has no tokenizer to answer."""
    try:
        check_tokenizer(model)
    except FeatherbackError:
        return quoted("featherback", "inspect", model)
    return quoted("featherback", "generate", model, *options, "--prompt", "Hello")


def try_adapter(model: Model, adapter: Path) -> str:
    """The same of an adapter on its base."""
    named = () if model.quantize == NONE else ("--quantize", model.quantize)
    return try_out(model.path, *named, "--adapter", adapter)


def first_part(model: Model) -> Path:
    """The GGUF file that other programs are given: the first of a model in several."""
    return model.path.with_name(part_names(model.path.name)[0])
