"""What stands between the network and an app: which requests are answered, how large they are, and how long they take.

A page of another site that is open in the user's browser can send requests to this machine. It names its own host
(DNS rebinding) or its own origin, and both are rejected. No answer has CORS headers, so that no other page may read it.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from featherback.core.naming import argument
from featherback.errors import excerpt
from featherback.web.refusal import RefusedError

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
BODY_BYTES = 4_000_000
_BODY_SECONDS = 30.0
_LEAST_RATE = 64_000  # bytes a second that a larger body must arrive with
_AUTHORITY = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[\w.-]+))(?::\d{1,5})?", re.ASCII)
_LONGEST_NAME = 253
HOLD, _RELEASE = "featherback.hold", "featherback.release"
_ELSEWHERE = ("cross-site", "same-site")
_COOKIE = "featherback-key"
_LEFT: Message = {"type": "http.disconnect"}
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class Rules:
    """What `guarded` lets through."""

    names: frozenset[str] = frozenset()
    """Host names by which clients may reach the server, besides those of the loopback interface."""
    any_address: bool = False
    """Accept every IP address as a host name, because the server listens on all interfaces. Only names are rebound."""
    key: str | None = None
    """The key that clients must send."""
    page: bool = False
    """The app is a page: `?key=KEY` in its address becomes a cookie, because a browser cannot send other headers."""
    body_bytes: int = BODY_BYTES
    """The most bytes in the body of a request."""
    uploads: Mapping[str, int] = field(default_factory=dict)
    """Path -> the most bytes of its body, if the app writes it to a file as it arrives."""
    all_bytes: int = 16 * BODY_BYTES
    """The most bytes of all requests that are being read or understood: their bodies without uploads, and `hold`."""
    body_seconds: float = _BODY_SECONDS
    """Time for the body of a request; larger ones get a second more for each 64 kB."""
    log: Callable[[str], object] = lambda line: None
    """Is called with a line for each request that was answered: method, path without the query, status, time."""
    failed: Callable[[BaseException], object] = lambda error: None
    """Is called with an error that is a bug. The client gets status 500."""


def guarded(app: ASGIApp, rules: Rules) -> ASGIApp:
    """Wrap an app so that it receives only the requests that `rules` allow. Its answers get headers for browsers."""
    return _Guard(app, rules)


def hold(scope: Scope, nbytes: int) -> None:
    """Count memory of a request besides its body, until `release_body`. Raises RefusedError if it is too much."""
    scope.get(HOLD, lambda _: None)(nbytes)


def release_body(scope: Scope) -> None:
    """Tell the guard that a request's body is no longer held, because it has been understood."""
    scope.get(_RELEASE, lambda: None)()


def rules_for(host: str, names: frozenset[str] = frozenset()) -> Rules:
    """Return the rules of a server that listens on `host` and that users also reach by `names`."""
    try:
        address = ip_address(host)
    except ValueError:
        return Rules(names | {host.lower()})
    return Rules(names | {str(address)}, any_address=address.is_unspecified)


class _Guard:
    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app, self._rules = app, rules
        self._held = 0  # bytes of the bodies of open requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # no other protocol is spoken
            return
        exchange = _Exchange(scope, send)
        try:
            headers = Headers(scope=scope)
            self._check_host(headers)
            _check_origin(scope["method"], headers)
            if (opened := self._check_key(scope, headers)) is not None:
                await opened(scope, receive, exchange.send)
            else:
                await self._pass_on(scope, headers, receive, exchange)
        except RefusedError as error:
            await exchange.fail(error)
        except MemoryError:
            await exchange.fail(RefusedError("The server is out of memory. Try again later.", 503, retry_after=5))
        except Exception as error:
            if exchange.is_over:  # the app has been told that the client left
                return
            self._rules.failed(error)
            await exchange.fail(RefusedError("The server failed. This is a bug; its log has the reason.", 500))
        finally:
            self._rules.log(exchange.line())

    def _check_host(self, headers: Headers) -> None:
        given = headers.getlist("host")
        match = _AUTHORITY.fullmatch(given[0]) if len(given) == 1 else None
        if match is None:
            raise RefusedError("The request needs one Host header, such as `Host: 127.0.0.1:8000`.", closes=True)
        name = (match["six"] or match["name"]).lower().removesuffix(".")
        if name in LOOPBACK or name in self._rules.names or (self._rules.any_address and _is_address(name)):
            return
        raise RefusedError(
            f"The server is not reached by the name {excerpt(name)}. Use the address that it printed when it started, "
            f"or start it with {argument('allow_host', name[:_LONGEST_NAME])}.",
            403,
            code="unknown_host",
        )

    def _check_key(self, scope: Scope, headers: Headers) -> ASGIApp | None:
        """Raise RefusedError without the key. Returns an answer that opens a page, if its address has the key."""
        if (key := self._rules.key) is None:
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        sent = given.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if _equal(sent.encode("latin-1"), key):  # as Starlette decodes headers
            return None
        if self._rules.page:
            name = f"{_COOKIE}-{scope['server'][1]}"  # browsers share cookies between ports
            if _equal(_cookie(headers, name).encode(), _ticket(key)):
                return None
            query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
            if scope["method"] == "GET" and _equal(query.pop("key", "").encode(), key):
                path = "/" + scope["path"].lstrip("/\\")  # never another host's
                opened = RedirectResponse(f"{path}?{urlencode(query)}" if query else path, 303)
                opened.set_cookie(name, _ticket(key), httponly=True, samesite="strict")
                return opened
        raise RefusedError(
            "The API key is missing or wrong. Send the header `Authorization: Bearer KEY`.", 401, code="invalid_api_key"
        )

    async def _pass_on(self, scope: Scope, headers: Headers, receive: Receive, exchange: _Exchange) -> None:
        upload = self._rules.uploads.get(scope["path"])
        body = _Body(self._rules.body_bytes if upload is None else upload, self._rules.body_seconds, receive)
        body.check_length(headers.get("content-length", "0"))
        held = 0  # bytes of this request

        def count(nbytes: int) -> None:
            nonlocal held
            self._held, held = self._held + nbytes, held + nbytes
            if held > self._rules.all_bytes:
                raise RefusedError("The request has too many values for this server's memory. Shorten it.", 413)
            if self._held > self._rules.all_bytes:
                raise RefusedError("The server holds too many large requests. Try again later.", 503, retry_after=2)

        def release() -> None:
            nonlocal held
            self._held, held = self._held - held, 0

        async def counted() -> Message:
            try:
                message = await body.receive()
                if upload is None:
                    count(len(message.get("body", b"")))
            except RefusedError as error:
                release()
                await exchange.fail(error)
                return _LEFT  # so that the app ends, whatever it does with errors
            return message

        scope[HOLD], scope[_RELEASE] = count, release
        try:
            await self._app(scope, counted, exchange.send)
        finally:
            release()


class _Body:
    """The body of a request, as it arrives."""

    def __init__(self, most: int, seconds: float, receive: Receive) -> None:
        self.size = 0
        self._most, self._receive, self._complete = most, receive, False
        self._seconds, self._start = seconds, time.monotonic()

    def check_length(self, announced: str) -> None:
        """Raise RefusedError if the body is announced to be too long."""
        if announced.isdecimal() and (len(announced) > 18 or int(announced) > self._most):
            raise self._too_long()

    async def receive(self) -> Message:
        """Return the next part, or the message that the client has left. Raises RefusedError if it is late or long."""
        if self._complete:
            return await self._receive()
        message = await self._next()
        if self.size > self._most:
            raise self._too_long()
        return message

    async def _next(self) -> Message:
        left = self._start + self._seconds + self.size / _LEAST_RATE - time.monotonic()
        try:
            message = await asyncio.wait_for(self._receive(), max(0, left))
        except asyncio.TimeoutError:
            raise RefusedError("The body of the request did not arrive in time.", 408, closes=True) from None
        self.size += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        return message

    def _too_long(self) -> RefusedError:
        return RefusedError(f"The body of the request is too long; at most {self._most:,} bytes are accepted.", 413)


class _Exchange:
    """The answer to one request, and what the log says of it."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send, self._start = scope, send, time.monotonic()
        self._status: int | None = None
        self.is_over = False
        """Whether the request was answered with an error. What the app still sends is dropped."""

    async def send(self, message: Message) -> None:
        if not self.is_over:
            await self._write(message)

    async def _write(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await self._send(message)

    async def fail(self, error: RefusedError) -> None:
        """Answer with an error. If an answer has begun, it stays incomplete and the server ends the connection."""
        if self.is_over:
            return
        self.is_over = True
        if self._status is None:
            await error.response(self._scope, _nothing, self._write)

    def line(self) -> str:
        """The request in a line, without its query, which may hold a key."""
        seconds = time.monotonic() - self._start
        status = "left" if self._status is None else self._status  # the client left before it had an answer
        return f"{self._scope['method']} {excerpt(self._scope['path'])[1:-1]} {status} {seconds:.2f} s"


def _check_origin(method: str, headers: Headers) -> None:
    """Raise RefusedError for a request of another site's page. Other programs than browsers name no origin."""
    origin = headers.get("origin")
    if origin is not None:
        scheme, _, authority = origin.partition("://")
        wrong = scheme not in ("http", "https") or authority.lower() != headers["host"].lower()
    else:  # browsers send no Origin with a picture's or a link's address
        opened = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        top = opened and headers.get("sec-fetch-dest") == "document"
        wrong = headers.get("sec-fetch-site") in _ELSEWHERE and not top
    if wrong:
        raise RefusedError("Requests from pages of other sites are rejected.", 403, code="other_origin")


def _equal(given: bytes, key: str) -> bool:
    """Whether a client sent the key, in a time that does not depend on where they differ."""
    return hmac.compare_digest(given, key.encode())


def _ticket(key: str) -> str:
    """The value of the cookie, which does not give the key away."""
    return hmac.digest(key.encode(), _COOKIE.encode(), "sha256").hex()


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach a server that listens on `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in LOOPBACK


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


async def _nothing() -> Message:
    return _LEFT
