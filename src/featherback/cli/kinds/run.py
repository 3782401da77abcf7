"""A run's directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from featherback.cli.kinds.base import DATA, OTHER_OUT, Kind, Outlook, chosen, in_folder
from featherback.core.terminal import quoted


class Run(Kind):
    title = "the directory of a run"

    def recognises(self, path: Path, head: bytes) -> bool:
        return in_folder(path, "run.json")

    def describe(self, path: Path) -> dict[str, Any]:
        from dataclasses import asdict

        from featherback.runs.run_directory import RunDirectory, plan_from_json

        record = RunDirectory.open(path).record
        plan = plan_from_json(record.get("plan"))
        return {
            "kind": "run",
            "run": str(path),
            **{name: record.get(name) for name in ("status", "created", "steps")},
            **chosen(record.get("summary", {})),
            "options": chosen(record.get("configuration", {})),
            "plan": chosen(asdict(plan)) if plan else {},
            **({"teacher": _teacher(record)} if "teacher" in record else {}),
            "versions": record.get("versions", {}),
        }

    def outlook(self, path: Path, named: str) -> Outlook:
        from featherback.nn.adapters import kind_of
        from featherback.runs.outcome import chat_command, describe_worsening, repeat_command
        from featherback.runs.run_directory import RunDirectory

        record = RunDirectory.open(path).record
        model = str(record.get("configuration", {}).get("model") or "MODEL")
        notes = [] if Path(model).exists() else [f"its model is no longer at {model}"]
        if record.get("status") not in ("finished", "stopped early"):
            return Outlook([quoted("featherback", "train", model, "--out", named, "--resume")], notes=notes)
        if (rise := describe_worsening(record.get("summary", {}))) is not None:
            notes.append(f"it is worse than before training: {rise}")
            return Outlook([quoted(*repeat_command(record, named))], notes=notes)
        if record["configuration"].get("train") == "full":
            more = quoted("featherback", "train", named, "--data", DATA, "--out", OTHER_OUT)
            return Outlook([quoted(*chat_command(record, named)), more])
        kind, objective = kind_of(record["configuration"]), record["configuration"].get("objective")
        if objective in ("classify", "reward"):
            beside = ("--objective", objective, "--data", DATA, "--out", OTHER_OUT)
            more = quoted("featherback", "train", model, "--from", named, *beside)
            return Outlook([quoted(*chat_command(record, named)), more], notes=notes)
        to = "gguf" if kind.is_low_rank else "merged"
        return Outlook(
            [
                quoted(*chat_command(record, named)),
                *([] if kind.is_branch else [quoted("featherback", "export", named, "--to", to)]),
                quoted("featherback", "train", model, "--from", named, "--data", DATA, "--out", OTHER_OUT),
            ],
            notes=notes,
        )


def _teacher(record: dict[str, Any]) -> dict[str, Any]:
    """The facts of the teacher's pass: its size on disk and, once it is complete, its time and memory."""
    known = {name: value for name, value in record["teacher"].items() if name not in ("plan", "model")}
    return {**known, "complete": "seconds" in known}


KIND = Run()
