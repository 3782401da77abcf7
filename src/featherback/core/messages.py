"""Messages on a socket: a size of 4 bytes, and then as many bytes."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

_SIZE = struct.Struct("<I")


def send(stream: socket.socket, *parts: bytes) -> None:
    """Send a message."""
    stream.sendall(b"".join((_SIZE.pack(sum(map(len, parts))), *parts)))


def receive(stream: socket.socket) -> bytes:
    """Return a message. Raises EOFError if the other side has gone."""
    [size] = _SIZE.unpack(_exactly(stream, _SIZE.size))
    return _exactly(stream, size)


def _exactly(stream: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        with suppress(ConnectionError):
            if piece := stream.recv(size - len(found)):
                found += piece
                continue
        raise EOFError
    return bytes(found)
