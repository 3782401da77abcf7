"""The shell scripts and the README that `featherback federate init` writes beside the app."""

PORT, CONTROL_PORT = 9092, 9093
"""The ports of the server: of the gate, which nodes reach over the network, and of Flower, on the server only."""
NODE_KEYS, SIGNED_APP = "certificates/nodes", "certificates/app.json"
"""The public keys of the nodes, a file each; and the signed app: its hash, and what nodes need to check it."""

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

[superlink.simulation]  # all nodes on this machine: ./simulate.sh
address = ":local:"

[superlink.deployment]  # the server that server.sh starts; only this machine reaches it
address = "127.0.0.1:{control_port}"
root-certificates = {authority}
"""

_CERTIFICATES = """\
#!/bin/sh
# Makes the certificates of the federation: ./certificates.sh HOST, the server's name or address as the nodes use it.
# Keep the folder certificates on the server. nodes.sh copies what a node needs.
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

_NODES_SCRIPT = """\
#!/bin/sh
# Makes the folders node-1 to node-COUNT, one for each machine: ./nodes.sh COUNT. Repeat it to add nodes, and after each
# change in app/: nodes run only the app that trusted.yaml names, so give them the new trusted.yaml.
cd "$(dirname "$0")"
. ./flower.env
exec python -P -m featherback.federated.keys "$PWD" "${{1:-{nodes}}}"
"""

_SERVER_SCRIPT = """\
#!/bin/sh
# Starts the server. Nodes reach the gate at port {port}, encrypted. Only this machine reaches port {control_port},
# which is for `flwr run`.
cd "$(dirname "$0")"
. ./flower.env
python -P -m featherback.federated.gate "$PWD" {port} {control_port} &
exec flower-superlink --host 127.0.0.1 --port {control_port} --disable-runtime-dependency-installation \\
  --enable-supernode-auth --ssl-ca-certfile certificates/ca.crt --ssl-certfile certificates/server.crt \\
  --ssl-keyfile certificates/server.key
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
for file in "$MODEL" "$DATA" ${{EVAL_DATA:+"$EVAL_DATA"}} "$PWD/ca.crt" "$PWD/node.key" "$PWD/trusted.yaml"; do
  [ -e "$file" ] || {{ echo "error: There is no $file. Edit node.sh, or copy the file." >&2; exit 1; }}
done
command -v flower-supernode > /dev/null || {{
  echo "error: flower-supernode is not installed here. Activate the virtual environment first." >&2; exit 1; }}
config="model=\\"$MODEL\\" data=\\"$DATA\\" memory=\\"$MEMORY\\" work=\\"$PWD/work-$PORT\\""
[ -z "$EVAL_DATA" ] || config="$config eval-data=\\"$EVAL_DATA\\""
trap 'exit 130' INT
while :; do  # a node ends if its server was started again, and then joins it anew
  flower-supernode --superlink "$host:{port}" --root-certificates ca.crt --port "$PORT" \\
    --auth-supernode-private-key node.key --trusted-entities trusted.yaml --node-config "$config"
  echo "The node has ended. It starts again in 5 seconds; Ctrl-C ends it." >&2
  sleep 5
done
"""

_SIMULATE = """\
#!/bin/sh
# Runs the app with all nodes on this machine: ./simulate.sh NODES
cd "$(dirname "$0")"
. ./flower.env
export FLWR_LOCAL_SUPERLINK_HTTP_API_PORT="${{FLWR_LOCAL_SUPERLINK_HTTP_API_PORT:-39091}}"
answers() {{
  python -c "import socket; socket.create_connection(('127.0.0.1', $FLWR_LOCAL_SUPERLINK_HTTP_API_PORT))" 2> /dev/null
}}
if answers; then
  echo "error: Port $FLWR_LOCAL_SUPERLINK_HTTP_API_PORT is in use. Set FLWR_LOCAL_SUPERLINK_HTTP_API_PORT." >&2; exit 1
fi
flower-superlink --simulation --insecure --host 127.0.0.1 --port "$FLWR_LOCAL_SUPERLINK_HTTP_API_PORT" \\
  --disable-runtime-dependency-installation > simulation.log 2>&1 &
server=$!
trap 'kill $server' EXIT  # the server ends with this script
trap 'exit 130' INT
trap 'exit 143' TERM
until answers; do
  kill -0 $server 2> /dev/null || {{ echo "error: The server has ended. See simulation.log." >&2; exit 1; }}
  sleep 1
done
flwr run app simulation --stream --federation-config "num-supernodes=${{1:-{nodes}}}"
"""

_README = """\
# A federation

Several machines train one adapter, and no example leaves its machine. Featherback's docs describe each step, and what
each party can do: docs/federated.md.

| file | contents |
|---|---|
| `app/pyproject.toml` | everything that can be chosen |
| `app/federation/` | what runs on the server and on the nodes |
| `flower.env` | settings of the shell: telemetry and update checks of Flower are off |
| `flower/config.toml` | addresses for `flwr run` |
| `simulate.sh` | runs all nodes on this machine |
| `certificates.sh`, `nodes.sh` | make certificates, and a folder with a key for each node |
| `server.sh`, `node.sh` | start the server, start a node |
| `result/` | the adapter after each round, in PEFT's format |

All nodes on this machine, as a simulation:

    ./simulate.sh {nodes}

Nodes on several machines. On the server, after the last change in `app/`:

    ./certificates.sh {host}
    ./nodes.sh {nodes}
    ./server.sh

On each machine, with one of the folders `node-1` to `node-{nodes}`. Edit the first lines of its `node.sh`:

    ./node.sh {host}

On the server, in another shell:

    . ./flower.env
    flwr run app deployment --stream
"""

SCRIPTS = {
    "flower/config.toml": _CONNECTIONS,
    "simulate.sh": _SIMULATE,
    "nodes.sh": _NODES_SCRIPT,
    "server.sh": _SERVER_SCRIPT,
    "node.sh": _NODE_SCRIPT,
    "README.md": _README,
}
"""Files by name, with fields in braces."""
FIXED = {"flower.env": _ENVIRONMENT, "certificates.sh": _CERTIFICATES}
"""Files by name that are equal in every federation."""
