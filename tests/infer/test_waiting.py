"""The queue: in order within a client, and clients in turns."""

from __future__ import annotations

from featherback.infer.sampler import Sampler
from featherback.infer.tickets import Request, Ticket
from featherback.infer.waiting import Waiting


def _queue(clients: str) -> tuple[Waiting[Ticket], list[Ticket]]:
    waiting = Waiting[Ticket]()
    tickets = [Ticket(Request([n], Sampler(), 1, client=client.strip())) for n, client in enumerate(clients)]
    for ticket in tickets:
        waiting.add(ticket)
    return waiting, tickets


def _taken(waiting: Waiting) -> list[int]:
    """Take all that may be taken at the same time. Return their numbers."""
    found = []
    while (ticket := waiting.next()) is not None:
        waiting.take(ticket)
        found.append(ticket.request.prompt[0])
    return found


def test_a_client_waits_for_its_own_answers() -> None:
    waiting, tickets = _queue("aaab")
    assert _taken(waiting) == [0, 3]
    assert len(waiting) == 2
    waiting.answered(tickets[3])
    assert _taken(waiting) == []
    waiting.answered(tickets[0])
    assert _taken(waiting) == [1]


def test_clients_take_turns() -> None:
    waiting, _ = _queue("aaabbc")
    order = []
    while (ticket := waiting.next()) is not None:
        waiting.take(ticket)
        order.append(ticket.request.prompt[0])
        waiting.answered(ticket)
    assert order == [0, 3, 5, 1, 4, 2]


def test_requests_without_a_client_wait_for_none() -> None:
    waiting, _ = _queue("   ")
    assert _taken(waiting) == [0, 1, 2]


def test_a_removed_ticket_leaves_the_others() -> None:
    waiting, tickets = _queue("ab a")
    waiting.remove(tickets[0])
    waiting.remove(tickets[2])
    assert _taken(waiting) == [3, 1]
    assert len(waiting) == 0
