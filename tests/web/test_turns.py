"""Places that clients get in turns, and the processes of schemas that hold them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from featherback.engine.host.process_tree import tree
from featherback.infer.grammar import Grammars
from featherback.web.openai.turns import Turns
from tests.infer.test_grammar import HOSTILE
from tests.support.tiers import some
from tests.web.conftest import Files
from tests.web.scripted import scripted

CHAT = "/v1/chat/completions"


def asked(schema: Any, **fields: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"messages": [{"role": "user", "content": "Hi"}], "response_format": form, **fields}


def followed() -> list[int]:
    """The processes that follow a schema."""
    return [pid for pid in tree(os.getpid()) if Path(f"/proc/{pid}/comm").read_text() == "schema\n"]


def test_clients_take_turns() -> None:
    """Two places, and a client that asks first and most often: the other one is next when a place is free."""

    async def exchange() -> list[str]:
        turns, order, ends = Turns(2), list[str](), list[Callable[[], None]]()

        async def ask(client: str) -> None:
            async with turns.turn(client) as free:
                order.append(client)
                ends.append(free)
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(ask(client)) for client in ("a", "a", "a", "b", "b")]
        while len(order) < 2:
            await asyncio.sleep(0)
        assert order == ["a", "b"]
        for _ in range(20):  # no place is free
            await asyncio.sleep(0)
        assert order == ["a", "b"]
        while ends or not all(task.done() for task in tasks):
            if ends:
                ends.pop(0)()
            await asyncio.sleep(0)
        return order

    assert asyncio.run(exchange()) == ["a", "b", "a", "b", "a"]


def test_who_leaves_gives_up_the_turn_and_the_place() -> None:
    async def exchange() -> None:
        turns = Turns(1)

        async def ask() -> None:
            async with turns.turn("") as free:
                free()

        async with turns.turn("") as free:
            waiting = [asyncio.create_task(ask()) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            free()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            waiting[1].cancel()  # which has been given the place, or has just given it back
        await asyncio.wait(waiting)
        await ask()

    asyncio.run(exchange())


def test_all_requests_of_a_client_leave_at_once() -> None:
    """As when a program ends. A place that one of them frees meanwhile goes to nobody who has left."""

    async def exchange() -> None:
        turns, begun = Turns(2), 0

        async def ask(seconds: float = 0) -> None:
            nonlocal begun
            async with turns.turn("a") as free:
                begun += 1
                try:
                    await asyncio.sleep(seconds)
                finally:
                    free()

        leaving = [asyncio.create_task(ask(60)) for _ in range(3)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert begun == 1  # and a place is free
        for task in leaving:
            task.cancel()
        left = await asyncio.gather(*leaving, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in left)
        await asyncio.wait_for(asyncio.gather(ask(), ask()), 20)

    asyncio.run(exchange())


@pytest.mark.parametrize("stream", some([False, True], 1))
def test_a_client_that_leaves_ends_the_process_of_its_schema(files: Files, stream: bool) -> None:
    """While the schema is compiled, and while the answer is written."""
    for schema, has_come in (
        (HOSTILE["products"], lambda api: bool(followed())),
        ({"type": "object"}, lambda api: bool(api.batcher.tickets)),
    ):
        with scripted(files.model, "{}") as api:
            api.service._grammars = Grammars(api.tokenizer, 8 * 10**9)
            api.batcher.ends = False
            api.leave(CHAT, asked(schema, stream=stream), when=lambda api=api, come=has_come: come(api))
            for ticket in api.batcher.tickets:
                assert ticket.cancelled
                assert followed()  # until the batcher has noticed
                ticket.finish("cancelled")
            assert not followed()


def test_a_schema_that_takes_too_much_is_refused_and_leaves_its_place(files: Files) -> None:
    with scripted(files.model, "{}") as api:
        api.service._schemas = Turns(1)
        for _ in range(2):
            refused = api.post(CHAT, asked(HOSTILE["products"]))
            assert refused.status_code == 400
            assert "needs more than 64 MB of memory and was stopped" in refused.json()["error"]["message"]
            assert api.post(CHAT, asked({"type": "object"})).status_code == 200
        assert not followed()


def test_numbers_that_no_float_can_hold_are_refused(files: Files) -> None:
    body = b'{"messages": [], "response_format": {"type": "json_object", "schema": {"minimum": 1e999}}}'
    with scripted(files.model, "{}") as api:
        assert api.post(CHAT, body).json()["error"]["message"].startswith("The body of the request is not valid JSON")
