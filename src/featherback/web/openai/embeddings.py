"""POST /v1/embeddings"""

from __future__ import annotations

import base64
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from featherback.infer.batching import Ticket
from featherback.web.guard import release_body
from featherback.web.openai.completions import encoded
from featherback.web.openai.fields import Fields
from featherback.web.openai.replies import ended
from featherback.web.openai.service import Service
from featherback.web.openai.written import Written, send_json

Float32 = NDArray[np.float32]


async def embeddings(service: Service, request: Request) -> Response:
    """Return a vector of length 1 for each text: the mean of its hidden states, or the last one."""
    fields = await Fields.of(request)
    model, given = fields.text("model"), fields.take("input")
    as_text = fields.choice("encoding_format", ("float", "base64")) == "base64"
    width = service.batcher.model.config.hidden_size
    if fields.whole("dimensions", width, 1) != width:
        fields.refuse("dimensions", f"is not supported: the vectors of this model have {width} numbers.")
    fields.end()
    several = await encoded(service, given, "input")
    for ids in several:
        service.prompt(ids, None, "input")
    release_body(request.scope)
    count = sum(map(len, several))
    answer = {
        "object": "list",
        "model": model or service.shelf.base,
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }

    async def write(send: Send) -> None:
        tickets: list[Ticket] = []
        async with service.adapter(model, tickets) as adapter:
            vectors = np.empty((len(several), width), np.float32)
            for index, ids in enumerate(several):
                ticket = service.batcher.embed(ids, adapter, service.pooling, 0 if tickets else vectors.nbytes)
                tickets[1:] = [ticket]  # the first one holds the vectors
                await ended(ticket)
                vectors[index] = _unit(ticket.result())
            await send_json(send, {**answer, "data": _entries(vectors, as_text)})

    return Written(write)


def _entries(vectors: Float32, as_text: bool) -> Iterator[dict[str, object]]:
    for index, vector in enumerate(vectors):
        yield {"object": "embedding", "index": index, "embedding": _written(vector, as_text)}


def _unit(pooled: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a vector (D,) with length 1."""
    length = float(np.sqrt(pooled @ pooled))
    return pooled / length if length else pooled


def _written(vector: Float32, as_text: bool) -> str | list[float]:
    if as_text:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    found: list[float] = vector.tolist()
    return found
