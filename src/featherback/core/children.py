"""Calls functions in child processes, so that their memory, with all that they import, is free when they return.

The process that calls stays small if it imports only the standard library and leaves the rest to its children.
"""

from __future__ import annotations

from featherback.core.exit_status import ChildFailedError as ChildFailedError
from featherback.core.exit_status import reported as reported
from featherback.core.system import children

Children = children.Children
hand_over = children.hand_over
handed = children.handed
