"""1 if the code in the answer passes the tests of the record, in Python; else 0. `python_tests:COLUMN`: their column.

The code is the answer's last fenced block, or all of it. The tests follow it in one program: they must not fail.
"""

from __future__ import annotations

import re
import sys

from featherback.runs.rewards.base import Answer, Reward, expected
from featherback.runs.rewards.limited import run

_FENCED = re.compile(r"```[^\n]*\n(.*?)```", re.DOTALL)
COLUMN = "tests"


class PythonTests(Reward):
    def judge(self, answer: Answer) -> float:
        code = (_FENCED.findall(answer.text) or [answer.text])[-1]
        tests = expected(answer.record, self.argument or COLUMN)
        ended = "import os as _os\n_os.write(1, b'passed')\n"  # code that ends the program early has not passed
        found = run([sys.executable, "-I", "-"], f"{code}\n\n{tests}\n\n{ended}", self.limits)
        return float(found.status == 0 and found.output.endswith("passed"))


REWARD = PythonTests
