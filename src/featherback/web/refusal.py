"""Errors of a request, as HTTP answers in the form that OpenAI's clients read."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from featherback.errors import FeatherbackError, excerpt

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
_INVALID = "invalid_request_error"
_LEFT = 499  # for the log: the client did not wait for the answer


class RefusedError(FeatherbackError):
    """A request that is answered with an error.

    `status`: the HTTP status. `param`: the field of the request at fault. `code`: a word for programs. `retry_after`:
    seconds after which the client may ask again. `closes`: the connection ends, as its client may still be sending.
    """

    def __init__(
        self,
        message: str,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        closes: bool = False,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers: dict[str, str] = {}
        if closes:
            self.close()
        if status == 401:
            self.headers["WWW-Authenticate"] = "Bearer"
        if retry_after is not None:
            self.headers["Retry-After"] = str(retry_after)

    def close(self) -> None:
        """Make the answer end the connection."""
        self.headers["Connection"] = "close"

    @property
    def body(self) -> dict[str, Any]:
        """The error as JSON."""
        kind = _KINDS.get(self.status, _INVALID)
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    @property
    def response(self) -> JSONResponse:
        """The error as an HTTP answer."""
        return JSONResponse(self.body, self.status, self.headers)


async def _answer(request: Request, error: Exception) -> Response:
    if isinstance(error, RefusedError):
        return error.response
    if isinstance(error, FeatherbackError):
        return RefusedError(str(error)).response
    if isinstance(error, ClientDisconnect):
        return Response(status_code=_LEFT)
    if isinstance(error, HTTPException):  # Starlette's own: no such path, another method
        method, path = request.method, excerpt(request.url.path)
        said = {
            404: f"There is no {path} here.{getattr(request.app.state, 'advice', '')}",
            405: f"{path} does not accept {method}.",
        }
        return RefusedError(said.get(error.status_code, error.detail), error.status_code).response
    return RefusedError("The server failed. This is a bug; its log has the reason.", 500).response


HANDLERS: dict[Any, Any] = dict.fromkeys((FeatherbackError, HTTPException, ClientDisconnect, Exception), _answer)
"""For Starlette(exception_handlers=...): every error as JSON. `guarded` reports those that are bugs."""
