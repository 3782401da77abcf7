"""The files that `featherback federate init` writes: a complete Flower app, short enough to read and change.

It needs no Flower. Options of strategies and privacies come from the registries, so they are listed here by themselves.
"""

from __future__ import annotations

import json
import shlex
import stat
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from featherback.core.files import make_folder, write_bytes
from featherback.core.options import described
from featherback.errors import FeatherbackError
from featherback.federated import scripts
from featherback.federated.privacy import PRIVACIES
from featherback.federated.settings import USUAL, Federation
from featherback.federated.strategies import STRATEGIES

_PYPROJECT = """\
# A federation of Featherback, as an app of Flower. Change what you like; run it as README.md says.

[project]
name = "{name}"
version = "1.0.0"
description = "Train one adapter on many machines"
license = "Apache-2.0"
dependencies = []  # featherback[flower] is installed on every machine already

[tool.flwr.app]
publisher = "{name}"

[tool.flwr.app.components]
serverapp = "federation.server_app:app"
clientapp = "federation.client_app:app"

[tool.flwr.app.config]
{options}
# Options of `featherback train` for each round: steps = 20, lr = 0.001, seq-len = 512, rank = 16, ...
# Without steps or epochs, each round is one pass over each node's data.
[tool.flwr.app.config.train]
{train}
# The nodes of a simulation. {{node}} is a node's number, from 0. Elsewhere each node has its own (node.sh).
[tool.flwr.app.config.node]
{node}{tables}"""

_CLIENT = '''\
"""What runs on each node. To change it, see featherback.federated.client."""

from featherback.federated.client import client_app

app = client_app()
'''

_SERVER = '''\
"""What runs on the server. To change it, see featherback.federated.server."""

from featherback.federated.server import server_app

app = server_app()
'''


def write(
    folder: Path, model: str, nodes: int, memory: str, parts: list[bytes], eval_data: str | None, host: str
) -> None:
    """Write the app to a new folder. `parts`: the data of each node of a simulation. `eval_data`: a path for all.

    Raises FeatherbackError if the folder exists and is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FeatherbackError(f"{folder} exists already. Choose a new folder.")
    folder = folder.absolute()
    node = {
        "model": model,
        "data": f"{folder}/data/node-{{node}}.jsonl",
        "work": f"{folder}/work/{{node}}",
        "memory": memory,
    }
    if eval_data is not None:
        node["eval-data"] = eval_data
    options = dict(_options(model=model, out=f"{folder}/result", min_nodes=min(nodes, 2)))
    pyproject = _PYPROJECT.format(
        name="".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in folder.name).strip("-")
        or "app",
        options=_lines({name: (value, _comment(name)) for name, value in options.items()}),
        train=_lines({name: (value, "") for name, value in USUAL.items() if name in ("schedule", "keep")}),
        node=_lines({name: (value, "") for name, value in node.items()}),
        tables="".join(_tables()),
    )
    places: dict[str, Any] = {
        "host": host,
        "port": scripts.PORT,
        "control_port": scripts.CONTROL_PORT,
        "nodes": nodes,
        "model": shlex.quote(model),
        "memory": memory,
        "authority": json.dumps(f"{folder}/certificates/ca.crt", ensure_ascii=False),
    }
    texts: dict[str, str | bytes] = {
        "app/pyproject.toml": pyproject,
        "app/federation/__init__.py": "",
        "app/federation/client_app.py": _CLIENT,
        "app/federation/server_app.py": _SERVER,
        **scripts.FIXED,
        **{name: text.format(**places) for name, text in scripts.SCRIPTS.items()},
    }
    texts |= {f"data/node-{number}.jsonl": part for number, part in enumerate(parts)}
    for name, text in texts.items():
        path = folder / name
        make_folder(path.parent)
        write_bytes(path, text.encode() if isinstance(text, str) else text)
        if name.endswith(".sh"):
            path.chmod(path.stat().st_mode | stat.S_IXUSR)


def _options(**given: Any) -> Iterator[tuple[str, Any]]:
    """The options of the federation, with these values or their defaults."""
    for entry in fields(Federation):
        if entry.name in described(Federation):
            yield entry.name, given.get(entry.name, entry.default)


def _comment(name: str) -> str:
    about = described(Federation)[name]
    return f"{about.meaning} One of: {', '.join(map(_dashed, about.choices))}." if about.choices else about.meaning


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _tables() -> Iterator[str]:
    """A table for each strategy and privacy that has options. Only the chosen ones are read."""
    for choice, registry in (("strategy", STRATEGIES), ("privacy", PRIVACIES)):
        for name in registry.names:
            kind = registry[name]
            about = described(kind)
            values = {
                entry.name: (entry.default, about[entry.name].meaning) for entry in fields(kind) if entry.name in about
            }
            if values:
                title = f'# With {choice} = "{_dashed(name)}".\n[tool.flwr.app.config.{_dashed(name)}]\n'
                yield f"\n{title}{_lines(values)}"


def _lines(values: Mapping[str, tuple[Any, str]]) -> str:
    """Return values as lines of TOML, with comments."""
    lines = [f"{_dashed(name)} = {json.dumps(value, ensure_ascii=False)}" for name, (value, _) in values.items()]
    width = min(30, max(map(len, lines)))
    comments = [f"  # {help}" if help else "" for _, help in values.values()]
    return "".join(
        f"{line.ljust(width) if comment else line}{comment}\n" for line, comment in zip(lines, comments, strict=True)
    )


def divided(data: Path, nodes: int) -> list[bytes]:
    """Deal the lines of a file to `nodes` files. Raises FeatherbackError if it cannot be divided."""
    try:
        lines = [line for line in data.read_bytes().splitlines(keepends=True) if line.strip()]
    except OSError as error:
        raise FeatherbackError(f"Cannot read {data}: {error.strerror}.") from error
    if data.suffix != ".jsonl" or len(lines) < nodes:
        raise FeatherbackError(
            f"{data} cannot be divided among {nodes} nodes: it must be a .jsonl file with at least as many lines."
        )
    return [b"".join(lines[node::nodes]) for node in range(nodes)]
