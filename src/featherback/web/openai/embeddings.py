"""POST /v1/embeddings"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from featherback.models.adapter import Adapter
from featherback.web.openai.completions import encoded
from featherback.web.openai.fields import Fields
from featherback.web.openai.service import Service, while_connected

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
    several = await service.work(encoded, service.tokenizer, given, "input")
    for ids in several:
        service.prompt(ids, None, "input")
    vectors = await while_connected(request, _vectors(service, model, several))
    data = [
        {"object": "embedding", "index": index, "embedding": _written(vector, as_text)}
        for index, vector in enumerate(vectors)
    ]
    count = sum(map(len, several))
    usage = {"prompt_tokens": count, "total_tokens": count}
    return JSONResponse({"object": "list", "data": data, "model": model or service.shelf.base, "usage": usage})


async def _vectors(service: Service, model: str, several: Sequence[Sequence[int]]) -> list[Float32]:
    async with service.adapter(model) as adapter:
        return [await service.embed(_vector, service, ids, adapter) for ids in several]


def _vector(service: Service, ids: Sequence[int], adapter: Adapter | None) -> Float32:
    """Return the embedding (D,) of token ids (T,), with length 1."""
    states = service.batcher.embed(ids, adapter)  # (T, D)
    pooled = states.mean(axis=0, dtype=np.float64) if service.pooling == "mean" else states[-1].astype(np.float64)
    length = float(np.sqrt(pooled @ pooled))
    return np.asarray(pooled / length if length else pooled, np.float32)


def _written(vector: Float32, as_text: bool) -> str | list[float]:
    if as_text:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    found: list[float] = vector.tolist()
    return found
