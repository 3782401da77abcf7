"""Make the folders of nodes, each with a key, and the signature by which nodes know the app: `nodes.sh` runs this.

Flower's nodes can require apps that a trusted key has signed (`flower-supernode --trusted-entities`). Here, a key signs
one app and is not stored, so nodes run that app and no other, whoever controls the server.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from base64 import urlsafe_b64encode
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.primitives import asymmetric, asymmetric_ed25519

from featherback.core.files import copy_file, make_folder, read_json, write_bytes, write_json
from featherback.core.private import make_private_folder
from featherback.core.terminal import print_error, say
from featherback.errors import FeatherbackError
from featherback.federated.scripts import NODE_KEYS, SIGNED_APP

NEEDED = ("flower.env", "node.sh", "certificates/ca.crt")
"""What each node's folder gets beside its key and trusted.yaml."""


def sign(fab: bytes) -> dict[str, object]:
    """Return a signature of an app: {hash, trusted: keys of `trusted.yaml`, verifications: what its server shows}."""
    private, public = asymmetric_ed25519.generate_key_pair()
    digest, now = hashlib.sha256(fab), int(time.time())
    signature = asymmetric_ed25519.sign_message(
        private, asymmetric_ed25519.create_message_to_sign(digest.digest(), now)
    )
    name = f"app-{digest.hexdigest()}"
    shown = json.dumps({"signed_at": now, "signature": urlsafe_b64encode(signature).decode()})
    return {
        "hash": digest.hexdigest(),
        "trusted": {name: public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()},
        "verifications": {"valid_license": "Valid", name: shown},  # Flower asks for this word, of its own shop of apps
    }


def make_nodes(folder: Path, count: int) -> None:
    """Make node-1 to node-COUNT in a federation's folder, and sign its app unless it is signed as it is.

    Keys that are there are kept. Raises FeatherbackError if there are no certificates.
    """
    if not (folder / "certificates" / "ca.crt").is_file():
        raise FeatherbackError("There is no certificates/ca.crt. Run ./certificates.sh HOST first.")
    fab = build_fab_from_disk(folder / "app")
    signature = read_json(folder / SIGNED_APP) if (folder / SIGNED_APP).exists() else None
    if signature is None or signature["hash"] != hashlib.sha256(fab).hexdigest():
        signature = sign(fab)
        write_json(folder / SIGNED_APP, signature)
    for number in range(1, count + 1):
        node = folder / f"node-{number}"
        make_folder(node)
        make_private_folder(node)
        for name in NEEDED:
            copied = node / Path(name).name
            if not copied.exists() or copied.suffix == ".crt":  # node.sh may have been edited
                copy_file(folder / name, copied)
                copied.chmod((folder / name).stat().st_mode)
        write_json(node / "trusted.yaml", signature["trusted"])  # JSON is YAML
        if not (node / "node.key").exists():
            private, public = asymmetric.generate_key_pairs()
            make_folder(folder / NODE_KEYS)
            write_bytes(folder / NODE_KEYS / f"{node.name}.pub", asymmetric.public_key_to_bytes(public))
            write_bytes(node / "node.key", private.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    say(f"app {signature['hash']}: give each machine one of the folders node-1 to node-{count}")


def main(words: list[str]) -> int:
    """Make the folders of nodes, as `nodes.sh` asks. Return the exit status."""
    folder, count = words
    try:
        if not count.isdigit() or not 1 <= int(count) <= 1000:
            raise FeatherbackError(f"COUNT is {count!r}; it must be a number of nodes, such as 2: ./nodes.sh 2")
        make_nodes(Path(folder), int(count))
    except (FeatherbackError, OSError, ValueError) as error:  # ValueError: Flower cannot build the app
        print_error(f"error: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
