"""A PEFT directory."""

from __future__ import annotations

from featherback.adapters.base_model import base_model_name
from featherback.adapters.formats.peft import FORMAT
from featherback.files import atomic_folder
from featherback.targets.base import Exported, Request, Target, check_adapter_room
from featherback.terminal import quoted


class PEFT(Target):
    help = "a PEFT directory"
    format = FORMAT

    def name(self, request: Request, stem: str) -> str:
        return f"{stem}-peft"

    def write(self, request: Request) -> Exported:
        base = request.base_model or base_model_name(request.adapter.model)
        check_adapter_room(request)
        with atomic_folder(request.out) as folder:
            FORMAT.save(request.adapter, folder, base)
        program = (
            "from peft import AutoPeftModelForCausalLM as Auto; "
            f"model = Auto.from_pretrained({str(request.out)!r})"
        )
        notes = [f"base_model_name_or_path: {base}"]
        if base.startswith("/"):
            notes.append(
                "that is a path here, which transformers opens only if it is a Hugging Face folder; name the base's "
                "place on the Hub with --base-model"
            )
        return Exported(request.out, quoted("python", "-ic", program), notes)


TARGET = PEFT()
