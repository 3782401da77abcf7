"""An adapter directory for mlx-lm."""

from __future__ import annotations

from pathlib import Path

from featherback.core.files import atomic_folder
from featherback.core.terminal import quoted
from featherback.exports.base_model import base_model_name
from featherback.exports.formats.mlx import FORMAT
from featherback.exports.stops import stop_note
from featherback.exports.targets.base import Exported, Request, Target, check_adapter_room
from featherback.exports.targets.commands import try_adapter


class MLX(Target):
    help = "an adapter directory for mlx-lm"
    format = FORMAT

    def name(self, request: Request, stem: str) -> str:
        return f"{stem}-mlx"

    def write(self, request: Request) -> Exported:
        model, out = request.adapter.model, request.out
        base = request.base_model or base_model_name(model)
        check_adapter_room(request)
        with atomic_folder(out) as folder:
            FORMAT.save(request.adapter, folder, base)
        if base == str(model.path.absolute()) and model.source == "gguf":
            note = (
                f"mlx-lm cannot open {model.path.name}; give it the Hugging Face model that the file was made from: "
                f"{_command('OWNER/NAME', out)}"
            )
            return Exported(out, try_adapter(model, out), [note])
        return Exported(out, _command(base, out), stop_note(model.path))


def _command(base: str, out: Path) -> str:
    return quoted("mlx_lm.generate", "--model", base, "--adapter-path", out, "--prompt", "Hello")


TARGET = MLX()
