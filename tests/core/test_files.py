"""Opening and writing files."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from featherback.core.files import open_regular


class _CtrlC:
    """Within the context, Ctrl-C arrives before instruction number `at` of the functions that are called."""

    def __init__(self, at: int) -> None:
        self._left = at

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename == __file__:  # the one that leaves this context
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt
        return self._trace

    def __enter__(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)


def test_ctrl_c_at_any_instruction_of_opening_a_file_is_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x")
    for at in range(1, 1000):
        try:
            with _CtrlC(at):
                file = open_regular(path)
        except KeyboardInterrupt:
            continue
        file.close()
        assert at > 20
        return
    pytest.fail("it never came to an end")
