"""The processor priority of this process."""

from __future__ import annotations

import os
import sys

LOWEST = 19
"""The lowest priority that systems have."""


def lower_priority(niceness: int) -> None:
    """Lower the priority of this process, and of processes that it starts, to `niceness` (0 to LOWEST).

    A process with a lower priority keeps it, because only the superuser may raise a priority.
    """
    threads = [0]  # this process
    if sys.platform == "linux":  # each thread has its own priority on Linux
        threads = [int(name) for name in os.listdir("/proc/self/task")]
    for thread in threads:
        try:
            if os.getpriority(os.PRIO_PROCESS, thread) < niceness:
                os.setpriority(os.PRIO_PROCESS, thread, niceness)
        except ProcessLookupError:  # the thread has ended meanwhile
            continue
