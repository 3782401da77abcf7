"""How a child process ends, and what its parent makes of that."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class ChildFailedError(Exception):
    """Raised if a child has failed. It has printed the reason. `status`: the exit status that it chose."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}")
        self.status = status


def killed(function: Callable[..., Any], by: str) -> int:
    """Print what has ended a child, because it could not, and return the exit status."""
    from featherback.core.terminal import print_error

    step = function.__name__.strip("_")
    print_error(
        f"error: The process of the step {step!r} was killed by {by}, perhaps because memory ran out. Close other "
        "programs."
    )
    return 2


def reported(error: BaseException) -> int:
    """Print why a child has failed, and return its exit status."""
    from featherback.core.failure import report
    from featherback.core.terminal import DEBUG

    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) and error.code else 1
    status = report(error, DEBUG in os.environ)
    sys.stderr.flush()
    return status
