"""The least budget of a command on this machine: Python and its libraries take more on some than on others."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence


def least_mb(command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """What the refusal of `command`, which has no `--memory`, names at a budget in which nothing runs."""
    words = [*command, "--memory", "1MB"]
    refused = subprocess.run(words, env=environment, input="", capture_output=True, text=True, check=False)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    return named_mb(refused.stderr)


def named_mb(refusal: str) -> int:
    """The budget that the text of a refusal names."""
    named = re.findall(r"these options need at least (?:--memory |memory=\")(\d+)MB", refusal)
    assert named, refusal
    return int(named[0])
