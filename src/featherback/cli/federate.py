"""`featherback federate`"""

from __future__ import annotations

from pathlib import Path

from featherback.core.options import option
from featherback.core.system import processes
from featherback.core.terminal import quoted, say
from featherback.errors import FeatherbackError, expected

WITHOUT_BUDGET = "writes files; its `--memory` is the budget of a node"
"""Why the command has no memory budget, as docs/memory.md says it."""

ACTIONS = ("init",)


def federate(
    action: str = option(positional=True, metavar="init", help="What to do. init: write a Flower app."),
    folder: Path = option(positional=True, metavar="DIR", help="New folder for the app."),
    model: str = option("smollm2-135m", metavar="MODEL", help="The base model: a path, or a name from `models`."),
    data: Path | None = option(
        None, metavar="FILE", help="Examples for a simulation, one a line: divided among its nodes."
    ),
    eval_data: Path | None = option(None, metavar="FILE", help="Held-out examples for a simulation."),
    nodes: int = option(2, help="Nodes of a simulation.", least=1),
    memory: str = option("96MB", metavar="SIZE", help="Memory budget of a node."),
    host: str = option("localhost", metavar="HOST", help="The server's name or address in the network."),
) -> None:
    """Write a Flower app that trains one adapter on many machines, and no example leaves its machine.

    Example: featherback federate init clinics --model smollm2-135m
    """
    processes.need_forks("featherback federate")
    if action not in ACTIONS:
        raise FeatherbackError(f"federate cannot {action!r}; {expected(action, ACTIONS)}")
    from featherback.federated import template
    from featherback.models.hub.locate import locate
    from featherback.runs.parse import memory as checked

    checked(memory)
    parts = [] if data is None else template.divided(data, nodes)
    held_out = None if eval_data is None else str(eval_data.absolute())
    template.write(folder, str(locate(model).absolute()), nodes, memory, parts, held_out, host)
    say(f"next: read {folder / 'README.md'}, and {quoted('cd', folder)}")
