"""An adapter directory of mlx-lm."""

from __future__ import annotations

from featherback.adapters.base_model import base_model_name
from featherback.adapters.formats.mlx import FORMAT
from featherback.files import atomic_folder
from featherback.targets.base import Exported, Request, Target, check_adapter_room
from featherback.terminal import quoted


class MLX(Target):
    help = "an adapter directory of mlx-lm"
    format = FORMAT

    def name(self, request: Request, stem: str) -> str:
        return f"{stem}-mlx"

    def write(self, request: Request) -> Exported:
        base = request.base_model or base_model_name(request.adapter.model)
        check_adapter_room(request)
        with atomic_folder(request.out) as folder:
            FORMAT.save(request.adapter, folder, base)
        notes = []
        if base.startswith("/"):
            notes.append(
                "mlx-lm opens Hugging Face folders and names on the Hub: give it the base's as --model"
            )
        words = ("mlx_lm.generate", "--model", base, "--adapter-path", request.out, "--prompt", "Hello")
        return Exported(request.out, quoted(*words), notes)


TARGET = MLX()
