"""Options of distillation: a teacher, and how much of the loss comes from it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from featherback.core.naming import argument
from featherback.core.options import Panel, option, spelled
from featherback.errors import FeatherbackError


@dataclass(frozen=True, kw_only=True)
class DistillationOptions(Panel):
    title = "Distillation"

    teacher: str | None = option(
        None,
        help="Learn from a larger model with the same tokenizer: MODEL as for the student. It runs once over the data "
        "before training, within --memory. The training loss is a mixture of the next-token loss and the divergence "
        "from the teacher's predictions.",
        metavar="MODEL",
    )
    distill_weight: float = option(
        0.5,
        help="Share of the training loss that comes from the teacher; the rest is the next-token loss.",
        above=0,
        most=1,
    )
    temperature: float = option(
        1.0,
        help="Divide the logits of both models by this number before they are compared. Above 1, unlikely tokens count "
        "more. The divergence is multiplied by its square.",
        above=0,
    )
    teacher_top_k: int = option(
        64,
        help="Number of the teacher's most likely tokens that are stored for each trained token, 6 bytes each. All "
        "others count as one.",
        least=1,
        most=4096,
    )

    def check_rules(self) -> None:
        super().check_rules()
        if self.teacher is None:
            for entry in fields(DistillationOptions):
                if getattr(self, entry.name) != entry.default:
                    given = spelled(DistillationOptions, entry.name)
                    raise FeatherbackError(
                        f"{given} only works with a teacher; add {argument('teacher', 'MODEL')}, or remove {given}."
                    )
