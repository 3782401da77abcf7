"""How much of the processor this process leaves to others."""

from __future__ import annotations

import os
import sys

LOWEST = 19
"""The weakest priority that systems have."""


def step_back(niceness: int) -> None:
    """Lower the priority of this process, and of what it starts, to `niceness` (0 to LOWEST).

    A process that is below already stays there: none but the superuser may raise a priority.
    """
    threads = [0]  # this process
    if sys.platform == "linux":  # where each thread has a priority of its own
        threads = [int(name) for name in os.listdir("/proc/self/task")]
    for thread in threads:
        try:
            if os.getpriority(os.PRIO_PROCESS, thread) < niceness:
                os.setpriority(os.PRIO_PROCESS, thread, niceness)
        except ProcessLookupError:  # a thread that has ended meanwhile
            continue
