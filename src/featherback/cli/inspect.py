"""`featherback inspect`"""

from __future__ import annotations

import json as json_format
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from featherback.cli.options import FromConfig, JSONOption
from featherback.terminal import say


def inspect(
    what: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="A model, a data file, a token file, a run or an adapter directory."
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", help="Show examples of a data file as this model would be trained on them."
        ),
    ] = None,
    examples: Annotated[int, typer.Option(min=1, help="With --model: how many.")] = 3,
    *,
    seq_len: Annotated[int, FromConfig("With --model: where longer examples are cut.")],
    json: JSONOption = False,
) -> None:
    """Describe a model, a data file or a run, and the instruction set that this machine computes with."""
    if model is not None:
        _show_examples(model, what, seq_len, examples, json)
        return
    facts = describe(what)
    if json:
        say(json_format.dumps(facts))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        say(f"{name:<{width}}  {_text(value)}")


def _show_examples(model: str, data: str, seq_len: int, count: int, json: bool) -> None:
    from featherback.cli.preamble import print_sample
    from featherback.data.preview import preview
    from featherback.hub.locate import locate

    samples = preview(locate(model), data, seq_len, count)
    if json:
        say(json_format.dumps({"data": data, "model": model, "examples": [asdict(s) for s in samples]}))
        return
    for sample in samples:
        print_sample(sample)
        cut = f", {sample.truncated} cut off" if sample.truncated else ""
        say(f"  {sample.n_tokens} tokens, {sample.n_supervised} trained{cut}\n")


def describe(what: str) -> dict[str, Any]:
    """The facts about a path, or a fetched model's name."""
    from featherback.files import open_regular

    path = Path(what)
    if (path / "run.json").is_file():
        return _run(path)
    if (path / "adapter_config.json").is_file():
        return _adapter(path)
    if path.exists() and not path.is_dir():
        with open_regular(path) as file:
            magic = file.read(8)
        if magic == b"FBTOKENS":
            return _tokens(path)
        if not magic.startswith(b"GGUF") and path.suffix.lower() != ".gguf":
            return _data(path)
    return _model(what)


def _model(what: str) -> dict[str, Any]:
    from featherback import kernels, models
    from featherback.cli.model_facts import formats, matrices, parameters
    from featherback.data.tokenizer_loader import load_tokenizer
    from featherback.hub.locate import locate

    model = models.load(locate(what))
    config, tokenizer = model.config, load_tokenizer(model.path)
    return {
        "model": str(model.path),
        "architecture": config.architecture,
        "parameters": parameters(model),
        "formats": formats(model),
        "matrix_bytes": sum(matrix.nbytes for matrix in matrices(model)),
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "heads": [config.num_attention_heads, config.num_key_value_heads],
        "head_dim": config.head_dim,
        "context": config.max_position_embeddings,
        "vocabulary": config.vocab_size,
        "tied_head": config.tie_word_embeddings,
        "chat_template": tokenizer.is_chat,
        "end_tokens": sorted(tokenizer.decode([i], special=True) for i in tokenizer.end_ids),
        "kernels": kernels.describe(),
    }


def _data(path: Path) -> dict[str, Any]:
    from featherback.data.readers import detect, read_jsonl, read_text
    from featherback.terminal import Counting

    with Counting(path) as shown:
        if detect(path) == "txt":
            characters = sum(map(len, read_text(path, shown.read)))
            return {"data": str(path), "format": "plain text", "characters": characters}
        kinds: Counter[str] = Counter()
        for example in read_jsonl(path, shown.read):
            kinds[
                "messages" if example.messages else "text" if example.text else "prompt and completion"
            ] += 1
    return {"data": str(path), "format": "JSON lines", "examples": sum(kinds.values()), "kinds": dict(kinds)}


def _tokens(path: Path) -> dict[str, Any]:
    from featherback.data.token_file import TokenFile

    file = TokenFile(path)
    return {
        "token_file": str(path),
        "sequences": len(file),
        "tokens": file.n_tokens,
        "trained_tokens": file.n_targets,
        "longest": file.max_length,
        **file.metadata,
    }


def _run(path: Path) -> dict[str, Any]:
    from featherback.training.run_directory import RunDirectory

    record = RunDirectory.open(path).record
    return {
        "run": str(path),
        **{name: record.get(name) for name in ("status", "created", "steps")},
        **record.get("summary", {}),
        **{
            f"option {name}": value
            for name, value in record.get("configuration", {}).items()
            if value not in (None, {})
        },
        **{f"version {name}": value for name, value in record.get("versions", {}).items()},
    }


def _adapter(path: Path) -> dict[str, Any]:
    from featherback.files import read_json

    configuration = read_json(path / "adapter_config.json")
    return {
        "adapter": str(path),
        **{name: value for name, value in configuration.items() if value not in (None, {}, [])},
    }


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_text(item)}" for key, item in value.items())
    return str(value)
