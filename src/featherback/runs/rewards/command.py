"""A program judges answers: `command:./score.py`. It reads a JSON object from its standard input and prints a number.

The object has the keys of the prompt's record, and `text`, the answer. A program that takes too long gives 0.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from typing import ClassVar

from featherback.errors import FeatherbackError, excerpt
from featherback.runs.rewards.base import Answer, Limits, Reward
from featherback.runs.rewards.limited import run


class Command(Reward):
    needs: ClassVar[str | None] = "COMMAND"

    def __init__(self, argument: str, limits: Limits) -> None:
        super().__init__(argument, limits)
        try:
            words = shlex.split(argument)
        except ValueError as error:
            raise FeatherbackError(f"The reward command:{argument} cannot be read: {error}.") from None
        # It runs in another folder, so files that exist here are named by their whole paths.
        self._command = [os.path.abspath(word) if os.path.isfile(word) else word for word in words]
        if not words or shutil.which(self._command[0]) is None:
            raise FeatherbackError(
                f"The reward command:{argument} names no program that can be run. If it is a file, make it executable "
                f"(chmod +x), or name its interpreter: command:python3 {argument}."
            )

    def judge(self, answer: Answer) -> float:
        content = json.dumps({**answer.record, "text": answer.text}, default=str)
        found = run(self._command, content, self.limits)
        if found.status is None:
            return 0.0
        try:
            if found.status:
                raise ValueError
            return float(found.output)
        except ValueError:
            last = found.complaint.splitlines()[-1:] or [f"it printed {excerpt(found.output)}"]
            raise FeatherbackError(
                f"The reward command:{self.argument} failed with exit status {found.status}: {excerpt(last[0])}. It "
                "must print one number and end with 0."
            ) from None


REWARD = Command
