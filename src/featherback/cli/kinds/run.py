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
        from featherback.core.decode import encode
        from featherback.runs.run_directory import RunDirectory

        record = encode(RunDirectory.open(path).record)
        return {
            "kind": "run",
            "run": str(path),
            **{name: record[name] for name in ("status", "created", "steps")},
            **chosen(record["summary"] or {}),
            "options": chosen(record["configuration"]),
            "plan": chosen(record["plan"] or {}),
            **({"teacher": _teacher(**record["teacher"])} if record["teacher"] else {}),
            "versions": record["versions"],
        }

    def outlook(self, path: Path, named: str) -> Outlook:
        from featherback.runs.outcome import chat_command, describe_worsening, repeat_command
        from featherback.runs.run_directory import RunDirectory

        record = RunDirectory.open(path).record
        config = record.configuration
        model = config.model
        notes = [] if Path(model).exists() else [f"its model is no longer at {model}"]
        if record.status not in ("finished", "stopped early"):
            return Outlook([quoted("featherback", "train", model, "--out", named, "--resume")], notes=notes)
        if (rise := describe_worsening(record.summary)) is not None:
            notes.append(f"it is worse than before training: {rise}")
            return Outlook([quoted(*repeat_command(record, named))], notes=notes)
        if config.train == "full":
            more = quoted("featherback", "train", named, "--data", DATA, "--out", OTHER_OUT)
            return Outlook([quoted(*chat_command(record, named)), more])
        if config.objective in ("classify", "reward"):
            beside = ("--objective", config.objective, "--data", DATA, "--out", OTHER_OUT)
            more = quoted("featherback", "train", model, "--from", named, *beside)
            return Outlook([quoted(*chat_command(record, named)), more], notes=notes)
        kind = config.form.kind
        to = "gguf" if kind.is_low_rank else "merged"
        return Outlook(
            [
                quoted(*chat_command(record, named)),
                *([] if kind.is_branch else [quoted("featherback", "export", named, "--to", to)]),
                quoted("featherback", "train", model, "--from", named, "--data", DATA, "--out", OTHER_OUT),
            ],
            notes=notes,
        )


def _teacher(disk_bytes: int, taken: dict[str, Any] | None, **_: Any) -> dict[str, Any]:
    """The facts of the teacher's pass: its size on disk and, once it is complete, its time and memory."""
    return {"disk_bytes": disk_bytes, **(taken or {}), "complete": taken is not None}


KIND = Run()
