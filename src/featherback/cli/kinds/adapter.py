"""An adapter outside a run's directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from featherback.cli.kinds.base import DATA, OTHER_OUT, Kind, Outlook, chosen, in_folder
from featherback.core.terminal import quoted
from featherback.errors import FeatherbackError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from featherback.engine.formats.gguf import GGUFFile

_CONFIG = "adapter_config.json"
_UNKNOWN_BASE = (
    "replace MODEL by the model that the adapter was trained on; the adapter does not name its model, or the model is "
    "not on this machine"
)


class Adapter(Kind):
    title = "an adapter: a PEFT or MLX directory, or a GGUF LoRA"
    rank = 2

    def recognises(self, path: Path, head: bytes) -> bool:
        from featherback.exports.formats import place_of

        if head.startswith(b"GGUF"):
            return _is_gguf_adapter(path)
        return in_folder(place_of(path), _CONFIG)

    def describe(self, path: Path) -> dict[str, Any]:
        from featherback.core.files import read_json
        from featherback.exports.formats import place_of

        path = place_of(path)
        if path.is_file():
            return _gguf_facts(path)
        configuration = read_json(path / _CONFIG)
        if not isinstance(configuration, dict):
            raise FeatherbackError(f"{path / _CONFIG} is not a JSON object.")
        return {"kind": _kind(path), "adapter": str(path), **chosen(configuration)}

    def outlook(self, path: Path, named: str) -> Outlook:
        from featherback.exports import formats
        from featherback.exports.base_model import model_path

        place = formats.place_of(path)
        try:
            formats.detect(place)
        except FeatherbackError as error:
            return Outlook([], False, str(error))
        try:
            base = model_path(place, None)
        except FeatherbackError:
            return Outlook(_next("MODEL", named, place), notes=[_UNKNOWN_BASE])
        try:
            least = _least(base, place)
        except FeatherbackError as error:
            return Outlook([quoted("featherback", "inspect", base)], False, str(error))
        return Outlook(_next(str(base), named, place), True, None, least)


def _export_format(place: Path) -> str | None:
    """A format to export the adapter to: not its own, and one that supports its kind; None if there is none."""
    from featherback.core.files import read_json
    from featherback.exports.formats.own import FORMAT as OWN
    from featherback.exports.formats.peft_configuration import kind_in

    if place.is_file():
        return "peft"
    if OWN.recognises(place):
        return None
    configuration = read_json(place / _CONFIG)
    return "gguf" if not isinstance(configuration, dict) or kind_in(configuration).is_low_rank else "merged"


def _kind(path: Path) -> str:
    from featherback.exports.formats import formats_of

    found = " and ".join(format.title for format in formats_of(path))
    return f"adapter, {found or 'without its weights'}"


def _next(model: str, named: str, place: Path) -> list[str]:
    named_model = ("--model", model) if model == "MODEL" else ()
    if _has_head(place):
        return [quoted("featherback", "classify", model, "--adapter", named, "TEXT")]
    to = _export_format(place)
    return [
        quoted("featherback", "chat", model, "--adapter", named),
        quoted("featherback", "train", model, "--from", named, "--data", DATA, "--out", OTHER_OUT),
        *([] if to is None else [quoted("featherback", "export", named, "--to", to, *named_model)]),
    ]


def _has_head(place: Path) -> bool:
    """Whether the adapter ends in a trained head, as a classifier does."""
    from featherback.core.files import read_json

    configuration = {} if place.is_file() else read_json(place / _CONFIG)
    return isinstance(configuration, dict) and bool(configuration.get("modules_to_save"))


def _least(base: Path, adapter: Path) -> int:
    """The least memory budget, in bytes, for continuing to train the adapter."""
    from featherback import models
    from featherback.data.tokenizers.loader import load_tokenizer
    from featherback.exports import formats
    from featherback.runs.config import TrainConfig, head_objective
    from featherback.runs.outlook import least_memory
    from featherback.runs.worker_process import worker_baseline

    model = models.load(base)
    load_tokenizer(base)
    form = formats.form(model, adapter)
    objective = head_objective(form.outputs)
    config = TrainConfig(model=str(base), data=(DATA,), out=OTHER_OUT, start=str(adapter), objective=objective)
    config = config.starting_from(form, model).for_model(model)
    return least_memory(config, model, worker_baseline())


def _is_gguf_adapter(path: Path) -> bool:
    """Whether a GGUF file holds an adapter. A damaged file counts as a model, whose error is then shown."""
    try:
        with _opened(path) as file:
            return file.metadata.get("general.type") == "adapter"
    except FeatherbackError:
        return False


def _gguf_facts(path: Path) -> dict[str, Any]:
    with _opened(path) as file:
        tensors, metadata = file.tensors, dict(file.metadata)
    ranks = sorted({info.shape[0] for name, info in tensors.items() if name.endswith(".lora_a")})
    return {"kind": _kind(path), "adapter": str(path), "ranks": ranks, "tensors": len(tensors), **metadata}


def _opened(path: Path) -> AbstractContextManager[GGUFFile]:
    from featherback.engine.formats.gguf import GGUFFile
    from featherback.engine.formats.mapping import reading

    return reading(GGUFFile(path))


KIND = Adapter()
