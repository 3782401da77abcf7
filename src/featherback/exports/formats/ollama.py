"""A folder for `ollama create`: a Modelfile, with the adapter or the merged model beside it.

Ollama runs some architectures in llama.cpp, which applies adapters. It runs others in its own engine, which rejects
adapters ("loras are not yet implemented"); for these the folder holds the merged model.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from featherback.core.files import atomic_folder, write_bytes
from featherback.core.naming import argument
from featherback.core.terminal import quoted
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.errors import FeatherbackError
from featherback.exports.base_model import check_not_base
from featherback.exports.chat_parts import ChatParts, chat_parts, writes_tools
from featherback.exports.formats import gguf
from featherback.exports.formats.base import QUANTIZABLE, Exported, Format, Request, WholeRequest, first_part
from featherback.exports.formats.merged import write_merged_gguf
from featherback.exports.report import merge_facts, merge_notes
from featherback.exports.whole import write_model
from featherback.models.model import Model

OWN_ENGINE = ("gemma3", "gemma3n", "gemma4", "gpt-oss", "llama4", "mistral3", "olmo3", "qwen3", "qwen3moe")
"""Architectures that Ollama runs in its own engine: `OllamaEngineRequired` in its fs/ggml/ggml.go."""
MODELFILE, ADAPTER, MODEL = "Modelfile", "adapter.gguf", "model.gguf"
CONTEXT = 4096
"""The largest num_ctx in a Modelfile. Users can set a larger one."""


class Ollama(Format):
    help = "a Modelfile with the adapter, or with the merged model if Ollama cannot apply the adapter"
    types = whole_types = QUANTIZABLE

    def name(self, request: Request, stem: str) -> str:
        return f"{stem}-ollama"

    def write(self, request: Request) -> Exported:
        model, notes, facts = request.adapter.model, [], {}
        if model.source != "gguf":
            raise _no_gguf(model, f"export it with {argument('to', 'merged')}, and make a GGUF of it")
        architecture = model.family.architecture
        own, kind = architecture in OWN_ENGINE, request.adapter.form.kind
        applied = kind.is_low_rank
        with atomic_folder(request.out) as folder:
            if own or request.kind is not None or not applied:
                merged = write_merged_gguf(request.adapter, folder / MODEL, request.kind)
                source = [f"FROM ./{MODEL}"]
                if not applied and not (own and request.kind is None):
                    reason = f"Ollama cannot apply {kind.title}"
                elif own:
                    reason = f"Ollama's engine for {architecture} cannot apply adapters"
                else:
                    reason = f"{argument('type')} was given; without it, Ollama applies the adapter to the base model"
                notes = [f"merged: {reason}", *merge_notes(merged)]
                facts = merge_facts(merged)
            else:
                check_not_base(folder / ADAPTER, model)
                request.check_room()
                gguf.FORMAT.save(request.adapter, folder / ADAPTER, request.base_model)
                source = [f"FROM {_path(first_part(model))}", f"ADAPTER ./{ADAPTER}"]
                notes = [
                    f"Ollama applies the adapter to the base model's file, which must stay where it is; for a merged "
                    f"model, which does not need that file, add {argument('type', 'q8_0')}"
                ]
            notes += _write_modelfile(folder, source, model)
        return Exported(request.out, create_command(request.out), notes, facts)

    def whole_name(self, request: WholeRequest, stem: str) -> str:
        return f"{stem}{request.suffix}-ollama"

    def write_whole(self, request: WholeRequest) -> Exported:
        model, out = request.model, request.out
        facts: dict[str, Any] = {}
        if model.source != "gguf":
            raise _no_gguf(model, f"make a GGUF of {model.path}")
        with atomic_folder(out) as folder:
            if request.kind is None:
                source = [f"FROM {_path(model.path)}"]
                notes = [
                    f"the Modelfile names the trained model's file, which must stay where it is; to write a copy into "
                    f"the folder, add {argument('type', 'q8_0')}"
                ]
            else:
                source = [f"FROM ./{MODEL}"]
                notes, facts = write_model(request.model, folder / MODEL, request.kind, request.base)
            notes += _write_modelfile(folder, source, model)
        return Exported(out, create_command(out), notes, facts)


def _no_gguf(model: Model, remedy: str) -> FeatherbackError:
    return FeatherbackError(
        f"{model.path} is a Hugging Face folder; Ollama's Modelfile needs a GGUF base: {remedy} with llama.cpp's "
        f"convert_hf_to_gguf.py."
    )


def _write_modelfile(folder: Path, source: list[str], model: Model) -> list[str]:
    """Write the Modelfile, beginning with the lines `source`, and return notes about it."""
    tokenizer = load_tokenizer(model.path)
    parts = chat_parts(tokenizer)
    lines = [*source, *_template(parts), *_parameters(parts, tokenizer)]
    lines.append(f"PARAMETER num_ctx {min(CONTEXT, model.config.max_position_embeddings)}")
    write_bytes(folder / MODELFILE, ("\n".join(lines) + "\n").encode())
    if parts is None:
        return [
            "no TEMPLATE was written: the model has no chat template, or one that Ollama's format cannot express; "
            "Ollama uses its own template for the model, if it has one"
        ]
    notes = []
    if parts.system is None:
        notes.append("the model's chat template has no place for a system message: Ollama will ignore it")
    if parts.tools is not None:
        notes.append(
            "the TEMPLATE has a place for tools; Ollama writes them as JSON without spaces and in its own order, so a "
            "prompt with tools differs there from the trained one"
        )
    elif writes_tools(tokenizer):
        notes.append(
            "the model's chat template has a place for tools, and the TEMPLATE has none: Ollama will reject requests "
            "with tools. Serve the model with featherback serve or llama.cpp for these"
        )
    return notes


def create_command(out: Path) -> str:
    """The command that imports a folder into Ollama and starts a chat with the model."""
    name = re.sub(r"[^a-z0-9._-]", "-", out.name.removesuffix("-ollama").lower()).strip("-._") or "model"
    create = quoted("ollama", "create", name, "-f", out / MODELFILE)
    return f"{create} && {quoted('ollama', 'run', name)}"


def _path(path: Path) -> str:
    """Return the absolute path. Raises FeatherbackError if a Modelfile cannot contain it."""
    text = str(path.absolute())
    if not text.isprintable() or '"' in text or text.endswith(" "):
        raise FeatherbackError(
            f"A Modelfile cannot name {text!r}; rename the base model, without quotes or a space at the end."
        )
    return text


def _template(parts: ChatParts | None) -> list[str]:
    return [] if parts is None else [f'TEMPLATE """{parts.go_template()}"""']


def _parameters(parts: ChatParts | None, tokenizer: Tokenizer) -> list[str]:
    """The PARAMETER lines with the texts that end an answer: end tokens, and the tokens that begin a user's turn."""
    stops = [tokenizer.name(token) for token in sorted(tokenizer.end_ids)]
    if parts is not None:
        around = parts.assistant[1] + parts.user[0]
        stops += [tokenizer.name(token) for token, _, _ in tokenizer.control_tokens(around)]
    found = [stop for stop in dict.fromkeys(stops) if stop and stop.isprintable() and '"' not in stop]
    return [f'PARAMETER stop "{stop}"' for stop in found]


FORMAT = Ollama()
