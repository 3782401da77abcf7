"""The requests that wait for a place: in order within a client, and clients in turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Waits(Protocol):
    """What waits for a place."""

    @property
    def client(self) -> str:
        """Whose it is; "": it is a client of its own."""


W = TypeVar("W", bound=Waits)


class Waiting(Generic[W]):
    """A queue of tickets. Not thread-safe."""

    def __init__(self) -> None:
        self._clients: deque[tuple[str, deque[W]]] = deque()  # the next client's turn comes first
        self._by_name: dict[str, deque[W]] = {}  # of the clients that have a name
        self._busy: set[str] = set()  # clients whose request is being answered

    def __len__(self) -> int:
        return sum(len(tickets) for _, tickets in self._clients)

    def __iter__(self) -> Iterator[W]:
        return (ticket for _, tickets in self._clients for ticket in tickets)

    def add(self, ticket: W) -> None:
        """Add a ticket behind those of its client."""
        client = ticket.client
        if (tickets := self._by_name.get(client)) is not None:
            tickets.append(ticket)
            return
        tickets = deque([ticket])
        self._clients.append((client, tickets))
        if client:
            self._by_name[client] = tickets

    def next(self) -> W | None:
        """Return the ticket whose turn it is; None if all clients wait for an answer, or nothing waits."""
        return next((tickets[0] for client, tickets in self._clients if client not in self._busy), None)

    def take(self, ticket: W) -> None:
        """Remove a ticket, because it is answered from now on. Its client's turn ends."""
        self.remove(ticket)
        client = ticket.client
        if client:
            self._busy.add(client)
        if (tickets := self._by_name.get(client)) is not None:
            self._clients.remove((client, tickets))
            self._clients.append((client, tickets))

    def remove(self, ticket: W) -> None:
        """Remove a ticket that will not be answered."""
        for entry in self._clients:
            client, tickets = entry
            if ticket in tickets:
                tickets.remove(ticket)
                if not tickets:
                    self._clients.remove(entry)
                    self._by_name.pop(client, None)
                return

    def answered(self, ticket: W) -> None:
        """Note that a ticket that was taken is done, so that the client's next one may be taken."""
        self._busy.discard(ticket.client)
