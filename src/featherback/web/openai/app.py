"""The routes of the OpenAI API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from featherback.engine.budget import BudgetError
from featherback.infer.batching import BusyError
from featherback.web.openai.chat import chat
from featherback.web.openai.completions import completions, fim_completions
from featherback.web.openai.embeddings import embeddings
from featherback.web.openai.fields import Fields
from featherback.web.openai.responses import responses
from featherback.web.openai.service import Service
from featherback.web.openai.shelf import Entry
from featherback.web.refusal import HANDLERS, RefusedError

Handler = Callable[[Service, Request], Awaitable[Response]]

_RETRY = 2
"""Seconds after which a busy server may be asked again."""


def application(service: Service) -> Starlette:
    """The API over one model. It must be guarded (`web.guard`)."""
    routes: list[tuple[str, Handler, str]] = [
        ("/health", _health, "GET"),
        ("/v1/models", _models, "GET"),
        ("/v1/models/{name:path}", _model, "GET"),
        ("/v1/chat/completions", chat, "POST"),
        ("/v1/completions", completions, "POST"),
        ("/v1/fim/completions", fim_completions, "POST"),
        ("/v1/responses", responses, "POST"),
        ("/v1/embeddings", embeddings, "POST"),
        ("/v1/adapters", _adapters, "GET"),
        ("/v1/adapters", _add_adapter, "POST"),
        ("/v1/adapters/{name:path}", _remove_adapter, "DELETE"),
    ]
    app = Starlette(
        routes=[Route(path, _bound(handler, service), methods=[method]) for path, handler, method in routes],
        exception_handlers={**HANDLERS, BusyError: _busy, BudgetError: _busy},
    )
    return app


def _bound(handler: Handler, service: Service) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        return await handler(service, request)

    return handle


async def _busy(request: Request, error: Exception) -> Response:
    return RefusedError(str(error), 503, code="busy", retry_after=_RETRY).response


async def _health(service: Service, request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _models(service: Service, request: Request) -> Response:
    entries = await service.work(service.shelf.entries)
    base = service.shelf.base
    return JSONResponse(
        {"object": "list", "data": [_described(service, base), *(_described(service, each.name) for each in entries)]}
    )


async def _model(service: Service, request: Request) -> Response:
    return JSONResponse(_described(service, await service.work(service.shelf.known, request.path_params["name"])))


def _described(service: Service, name: str) -> dict[str, Any]:
    about: dict[str, Any] = {"id": name, "object": "model", "created": service.created, "owned_by": "featherback"}
    if name != service.shelf.base:
        about |= {"root": service.shelf.base, "parent": service.shelf.base}
    return about


async def _adapters(service: Service, request: Request) -> Response:
    entries = await service.work(service.shelf.entries)
    return JSONResponse({"object": "list", "data": [_adapter(each) for each in entries]})


async def _add_adapter(service: Service, request: Request) -> Response:
    fields = await Fields.of(request)
    name, path = fields.text("name"), fields.text("path")
    fields.end(())
    return JSONResponse(_adapter(await service.work(service.shelf.add, name, path)), 201)


async def _remove_adapter(service: Service, request: Request) -> Response:
    await service.work(service.shelf.remove, request.path_params["name"])
    return Response(status_code=204)


def _adapter(entry: Entry) -> dict[str, Any]:
    return {"object": "adapter", "name": entry.name, "path": str(entry.path), "loaded": entry.loaded is not None}
