"""Run the preparation in a process of its own, so that its memory is gone before training begins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from featherback.core.files import cut_short
from featherback.data.report import PrepareReport
from featherback.data.source import Source
from featherback.errors import FeatherbackError


def prepare_in_subprocess(
    model_path: str | os.PathLike[str],
    data: Source | str | os.PathLike[str],
    out_path: str | os.PathLike[str],
    seq_len: int,
    progress: Callable[[dict[str, Any]], None] | None = None,
    enough: int | None = None,
) -> PrepareReport:
    """`prepare.prepare` in a process of its own. `progress` is called with what it tells.

    Raises FeatherbackError with the sentence the preparation failed with.
    """
    source = Source.of(data)
    config = {
        "model": str(model_path),
        "data": source.to_json(),
        "out": str(out_path),
        "seq_len": seq_len,
        "enough": enough,
    }
    command = [sys.executable, "-m", "featherback.data.prepare", json.dumps(config)]
    last: dict[str, Any] = {}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaints:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, encoding="utf-8")
        assert process.stdout is not None
        try:
            for line in process.stdout:
                last = json.loads(line)
                if progress and "progress" in last:
                    progress(last["progress"])
            status = process.wait()
        finally:
            process.kill()  # no effect on a process that has ended
            process.wait()
            process.stdout.close()
        complaints.seek(0)
        complaint = complaints.read().strip()
    if "report" in last and status == 0:
        return PrepareReport.from_json(last["report"])
    if "error" in last:
        raise FeatherbackError(last["error"])
    if status == -signal.SIGBUS:  # it maps the model for its vocabulary
        raise cut_short(model_path)
    if status < 0:
        raise FeatherbackError(
            f"Preparing the data {source.name} was ended by signal {signal.Signals(-status).name}, perhaps for want of "
            f"memory: close other programs, or split the data."
        )
    reason = complaint.splitlines()[-1] if complaint else f"exit status {status}"
    raise FeatherbackError(f"Preparing the data {source.name} failed: {reason}. This is a fault of Featherback.")
