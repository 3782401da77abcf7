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
from featherback.federated.privacy import PRIVACIES
from featherback.federated.settings import USUAL, Federation
from featherback.federated.strategies import STRATEGIES

PORT = 9092

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

_ENVIRONMENT = """\
# Source this file in each shell that starts a program of Flower, in this folder:  . ./flower.env
export FLWR_TELEMETRY_ENABLED=0     # Flower reports nothing to its makers
export FLWR_DISABLE_UPDATE_CHECK=1  # and does not look for new versions
export RAY_USAGE_STATS_ENABLED=0    # nor does Ray, which runs simulations
export UV_OFFLINE=1                 # nothing is downloaded when a run begins
export FLWR_HOME="$PWD/flower"      # its settings are in this folder
export OPENBLAS_NUM_THREADS=1 MALLOC_ARENA_MAX=2  # its programs take less memory
"""

_CONNECTIONS = """\
# The servers that `flwr run app NAME` knows.
[superlink]
default = "simulation"

[superlink.simulation]  # all nodes on this machine
address = ":local:"

[superlink.deployment]  # the server that server.sh starts
address = "{host}:{port}"
root-certificates = {authority}
"""

_CERTIFICATES = """\
#!/bin/sh
# Makes the certificates of the federation: ./certificates.sh HOST, the server's name or address as the nodes use it.
# Give certificates/ca.crt to every node. Keep the .key files on the server.
set -e
cd "$(dirname "$0")"
host=${1:?"usage: ./certificates.sh HOST"}
case $host in *[!0-9.]*) name="DNS:$host" ;; *) name="IP:$host" ;; esac
umask 077
mkdir -p certificates
cd certificates
openssl req -x509 -newkey rsa:3072 -nodes -days 365 -subj "/CN=Federation" -keyout ca.key -out ca.crt
openssl req -newkey rsa:3072 -nodes -subj "/CN=$host" -keyout server.key -out server.csr
printf 'subjectAltName=DNS:localhost,IP:127.0.0.1,%s\\n' "$name" > server.ext
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -extfile server.ext -out server.crt
rm server.csr server.ext
"""

_SERVER_SCRIPT = """\
#!/bin/sh
# Starts the server, which nodes and `flwr run` reach at port {port}, encrypted.
cd "$(dirname "$0")"
. ./flower.env
exec flower-superlink --host 0.0.0.0 --port {port} --disable-runtime-dependency-installation \\
  --ssl-ca-certfile certificates/ca.crt --ssl-certfile certificates/server.crt --ssl-keyfile certificates/server.key
"""

_NODE_SCRIPT = """\
#!/bin/sh
# Starts this machine's node: ./node.sh HOST, where HOST is the server. Edit the lines below first; they stay here.
MODEL=${{MODEL:-{model}}}
DATA=${{DATA:-$PWD/data.jsonl}}
EVAL_DATA=${{EVAL_DATA:-}}        # optional: held-out data of this node
MEMORY=${{MEMORY:-{memory}}}
PORT=${{PORT:-9094}}           # for programs on this machine; another one for each further node
host=${{1:?"usage: ./node.sh HOST"}}
cd "$(dirname "$0")"
. ./flower.env
for file in "$MODEL" "$DATA" ${{EVAL_DATA:+"$EVAL_DATA"}} "$PWD/certificates/ca.crt"; do
  [ -e "$file" ] || {{ echo "error: There is no $file. Edit node.sh, or copy the file." >&2; exit 1; }}
done
command -v flower-supernode > /dev/null || {{
  echo "error: flower-supernode is not installed here. Activate the virtual environment first." >&2; exit 1; }}
config="model=\\"$MODEL\\" data=\\"$DATA\\" memory=\\"$MEMORY\\" work=\\"$PWD/work-$PORT\\""
[ -z "$EVAL_DATA" ] || config="$config eval-data=\\"$EVAL_DATA\\""
trap 'exit 130' INT
while :; do  # a node ends if its server was started again, and then joins it anew
  flower-supernode --superlink "$host:{port}" --root-certificates certificates/ca.crt --port "$PORT" \\
    --node-config "$config"
  echo "The node has ended. It starts again in 5 seconds; Ctrl-C ends it." >&2
  sleep 5
done
"""

_README = """\
# A federation

Several machines train one adapter, and no example leaves its machine. Featherback's docs describe each step:
docs/federated.md.

| file | contents |
|---|---|
| `app/pyproject.toml` | everything that can be chosen |
| `app/federation/` | what runs on the server and on the nodes |
| `flower.env` | settings of the shell: telemetry and update checks of Flower are off |
| `flower/config.toml` | addresses for `flwr run` |
| `certificates.sh`, `server.sh`, `node.sh` | make certificates, start the server, start a node |
| `result/` | the adapter after each round, in PEFT's format |

All nodes on this machine, as a simulation:

    . ./flower.env
    flwr run app simulation --stream --federation-config "num-supernodes={nodes}"

Nodes on several machines. On the server:

    ./certificates.sh {host}
    ./server.sh

On each machine, with a copy of `flower.env`, `node.sh` and `certificates/ca.crt`. Edit the first lines of `node.sh`:

    ./node.sh {host}

On the server, in another shell:

    . ./flower.env
    flwr run app deployment --stream
"""


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
    places: dict[str, Any] = {"host": host, "port": PORT, "nodes": nodes, "model": shlex.quote(model), "memory": memory}
    places["authority"] = json.dumps(f"{folder}/certificates/ca.crt", ensure_ascii=False)
    texts: dict[str, str | bytes] = {
        "app/pyproject.toml": pyproject,
        "app/federation/__init__.py": "",
        "app/federation/client_app.py": _CLIENT,
        "app/federation/server_app.py": _SERVER,
        "flower/config.toml": _CONNECTIONS.format(**places),
        "flower.env": _ENVIRONMENT,
        "certificates.sh": _CERTIFICATES,
        "server.sh": _SERVER_SCRIPT.format(**places),
        "node.sh": _NODE_SCRIPT.format(**places),
        "README.md": _README.format(**places),
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
    return f"{about.help} One of: {', '.join(map(_dashed, about.choices))}." if about.choices else about.help


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _tables() -> Iterator[str]:
    """A table for each strategy and privacy that has options. Only the chosen ones are read."""
    for choice, registry in (("strategy", STRATEGIES), ("privacy", PRIVACIES)):
        for name in registry.names:
            kind = registry[name]
            about = described(kind)
            values = {
                entry.name: (entry.default, about[entry.name].help) for entry in fields(kind) if entry.name in about
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
