"""Run the preparation in a separate process, so that its memory is free before training begins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from featherback.core.decode import decode, encode
from featherback.core.files import truncated_file_error
from featherback.core.naming import in_python
from featherback.core.system import signals
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
    """Run `prepare.prepare` in a separate process. `progress` is called with each progress report.

    If the preparation fails, its message is raised as FeatherbackError.
    """
    source = Source.of(data)
    config = {
        "model": str(model_path),
        "data": encode(source),
        "out": str(out_path),
        "seq_len": seq_len,
        "enough": enough,
        "flags": not in_python(),
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
        return decode(PrepareReport, last["report"], "the report")
    if "error" in last:
        raise FeatherbackError(last["error"])
    if status == signals.PAGE_LOST:  # the model file, which is mapped for its vocabulary, was truncated
        raise truncated_file_error(model_path)
    if killer := signals.name_of(status):
        raise FeatherbackError(
            f"The process that prepares the data {source.name} was killed by {killer}, perhaps "
            "because memory ran out. Close other programs, or split the data."
        )
    reason = complaint.splitlines()[-1] if complaint else f"exit status {status}"
    raise FeatherbackError(f"Preparing the data {source.name} failed: {reason}. This is a bug in Featherback.")
