"""A model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from featherback.cli.kinds.base import DATA, OUT, Kind, Outlook, in_folder
from featherback.core.terminal import quoted
from featherback.errors import FeatherbackError

if TYPE_CHECKING:
    from featherback.models.model import Model


class AModel(Kind):
    title = "a model, as a GGUF file or a Hugging Face folder with config.json"
    rank = 3

    def __init__(self, quantize: str = "none") -> None:
        """`quantize`: the value of --quantize, for Hugging Face folders."""
        self._quantize = quantize

    def recognises(self, path: Path, head: bytes) -> bool:
        if path.is_dir():
            return in_folder(path, "config.json")
        return head.startswith(b"GGUF") or path.suffix.lower() in (".gguf", ".safetensors")

    def describe(self, path: Path) -> dict[str, Any]:
        from featherback.engine import kernels
        from featherback.models.model import formats, matrices, parameters
        from featherback.runs.choose import best, measured_rates
        from featherback.runs.config import TrainConfig

        model = self._opened(path)
        config = model.config
        rates = measured_rates(TrainConfig(model=str(path), out=OUT), model)
        return {
            "kind": _kind(model),
            "model": str(model.path),
            "architecture": config.architecture,
            "parameters": parameters(model),
            "formats": formats(model),
            **({} if self._quantize == "none" else {"quantize": self._quantize}),
            "matrix_bytes": sum(matrix.nbytes for matrix in matrices(model)),
            "layers": config.num_hidden_layers,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "heads": [config.num_attention_heads, config.num_key_value_heads],
            "head_dim": config.head_dim,
            "context": config.max_position_embeddings,
            "vocabulary": config.vocab_size,
            "tied_head": config.tie_word_embeddings,
            **_tokenizer_facts(model),
            "kernels": kernels.describe(),
            "compute": {"auto": best(rates), **rates},
        }

    def outlook(self, path: Path, named: str) -> Outlook:
        from featherback.data.tokenizers.loader import load_tokenizer
        from featherback.runs.config import TrainConfig
        from featherback.runs.outlook import least_memory
        from featherback.runs.worker_process import worker_baseline

        model = self._opened(path)
        how = () if self._quantize == "none" else ("--quantize", self._quantize)
        try:
            load_tokenizer(path)
            config = TrainConfig(model=str(path), data=(DATA,), out=OUT, quantize=self._quantize)
            config = config.for_model(model)
            least = least_memory(config, model, worker_baseline())
        except FeatherbackError as error:
            return Outlook([quoted("featherback", "plan", named, *how)], False, str(error))
        steps = [quoted("featherback", "train", named, "--data", DATA, "--out", OUT, *how)]
        return Outlook([*steps, quoted("featherback", "plan", named, *how)], True, None, least)

    def _opened(self, path: Path) -> Model:
        from featherback import models

        return models.load(path, self._quantize, without_converting=True)  # inspecting converts nothing


def _kind(model: Model) -> str:
    parts = f" in {len(model.files)} files" if len(model.files) > 1 else ""
    return f"GGUF model{parts}" if model.source == "gguf" else f"model, a Hugging Face folder{parts}"


def _tokenizer_facts(model: Model) -> dict[str, Any]:
    """Facts from the tokenizer; empty if it is unsupported, which the outlook then reports."""
    from featherback.data.tokenizers.loader import load_tokenizer

    try:
        tokenizer = load_tokenizer(model.path)
    except FeatherbackError:
        return {}
    return {
        "chat_template": tokenizer.is_chat,
        "end_tokens": sorted(tokenizer.decode([i], special=True) for i in tokenizer.end_ids),
    }


KIND = AModel()
