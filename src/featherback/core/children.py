"""Calls functions in child processes, so that their memory, with all that they import, is free when they return.

The process that calls stays small if it imports only the standard library and leaves the rest to its children.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from featherback.core.exit_status import ChildFailedError as ChildFailedError
from featherback.core.exit_status import reported as reported

if TYPE_CHECKING:
    from featherback.core.system.posix.children import Children as Children
    from featherback.core.system.posix.children import hand_over as hand_over
    from featherback.core.system.posix.children import handed as handed
else:
    from featherback.core.system import children

    Children, hand_over, handed = children.Children, children.hand_over, children.handed
