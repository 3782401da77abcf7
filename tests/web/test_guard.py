"""Which requests the guard lets through, against an app that only echoes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import httpx
import pytest

from featherback.web import guard
from featherback.web.guard import Rules, guarded, rules_for
from tests.web import echo_server

HOST = "127.0.0.1:8000"
LINES: list[str] = []
BUGS: list[BaseException] = []


def ask(
    rules: Rules,
    path: str = "/echo",
    method: str = "GET",
    content: bytes | AsyncIterator[bytes] | None = None,
    **headers: str,
) -> httpx.Response:
    """The answer to one request; an underscore in a header's name stands for a dash."""
    LINES.clear()
    BUGS.clear()
    app = guarded(echo_server.app(), replace(rules, log=LINES.append, failed=BUGS.append))
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))

    async def exchange() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
            named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
            return await client.request(method, path, content=content, headers=named)

    return asyncio.run(exchange())


def error(answer: httpx.Response) -> Mapping[str, Any]:
    found = answer.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    assert found["message"].endswith((".", "?"))
    return found


NAMES_OF_THIS_MACHINE = ("localhost", "localhost:8000", "LOCALHOST:1", "127.0.0.1", "[::1]:8000", "localhost.")
OTHER_NAMES = ("evil.example", "127.0.0.1.evil.example:8000", "localhost.evil.example", "10.0.0.7", "[::2]")
NO_NAMES = ("", "a b", "user@localhost", "localhost:x", "[::1", "localhost/..", "é")


@pytest.mark.parametrize("host", NAMES_OF_THIS_MACHINE)
def test_names_of_this_machine_are_accepted(host: str) -> None:
    assert ask(Rules(), host=host).status_code == 200


@pytest.mark.parametrize("host", OTHER_NAMES)
def test_another_name_is_rejected_because_it_may_be_rebound(host: str) -> None:
    answer = ask(Rules(), host=host)
    assert answer.status_code == 403
    assert error(answer)["code"] == "unknown_host"


@pytest.mark.parametrize("host", NO_NAMES)
def test_what_is_no_host_name_is_rejected(host: str) -> None:
    assert ask(Rules(), host=host).status_code == 400


def test_names_and_addresses_that_the_user_gave() -> None:
    assert ask(rules_for("127.0.0.1", frozenset({"models.lan"})), host="models.lan:80").status_code == 200
    assert ask(rules_for("10.0.0.7"), host="10.0.0.7:80").status_code == 200
    assert ask(rules_for("10.0.0.7"), host="10.0.0.8:80").status_code == 403
    assert ask(rules_for("Models.lan"), host="models.lan").status_code == 200
    for host in ("0.0.0.0", "::"):
        assert ask(rules_for(host), host="10.1.2.3:8000").status_code == 200
        assert ask(rules_for(host), host="evil.example").status_code == 403


def test_a_planted_guard_without_host_check_lets_a_rebound_name_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard._Guard, "_check_host", lambda *_: None)
    assert ask(Rules(), host="evil.example").status_code == 200


OF_OTHERS = (
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "https://127.0.0.1:8000.evil.example"},
    {"origin": "http://127.0.0.1:9000"},  # another server on this machine
    {"origin": "http://localhost:8000"},  # the host name is 127.0.0.1
    {"origin": "file://127.0.0.1:8000"},
    {"sec_fetch_site": "cross-site"},
    {"sec_fetch_site": "same-site"},
    {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"},
)
OF_NO_OTHER = (
    {},
    {"origin": f"http://{HOST}"},
    {"origin": f"https://{HOST}"},  # behind a proxy that speaks TLS
    {"sec_fetch_site": "same-origin"},
    {"sec_fetch_site": "none"},
    {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"},  # a link
)


@pytest.mark.parametrize("headers", OF_OTHERS)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_requests_of_other_sites_are_rejected(method: str, headers: dict[str, str]) -> None:
    answer = ask(Rules(), method=method, **headers)
    assert answer.status_code == 403
    assert error(answer)["code"] == "other_origin"
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("headers", OF_NO_OTHER)
def test_other_requests_are_accepted(headers: dict[str, str]) -> None:
    answer = ask(Rules(), **headers)
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"


def test_a_form_of_another_site_cannot_navigate() -> None:
    form = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert ask(Rules(), method="POST", **form).status_code == 403


def test_a_planted_guard_without_origin_check_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_check_origin", lambda *_: None)
    assert ask(Rules(), method="POST", origin="http://evil.example").status_code == 200


def test_the_key_is_asked_for() -> None:
    plain = Rules(key="sesame")
    assert ask(plain, authorization="Bearer sesame").status_code == 200
    assert ask(plain, authorization="bearer  sesame").status_code == 200
    assert ask(plain, x_api_key="sesame").status_code == 200
    wrong = ({}, {"authorization": "Bearer sesam"}, {"authorization": "Basic sesame"}, {"authorization": "sesame"})
    for headers in (*wrong, {"x_api_key": ""}, {"x_api_key": "é"}, {"cookie": "featherback-key-8000=sesame"}):
        answer = ask(plain, **headers)
        assert answer.status_code == 401, headers
        assert answer.headers["www-authenticate"] == "Bearer"
        assert error(answer)["code"] == "invalid_api_key"
    assert ask(plain, "/echo?key=sesame").status_code == 401  # only for pages
    assert ask(Rules(key="sésame"), authorization="Bearer sésame").status_code == 200
    assert ask(plain, "/nowhere").status_code == 401  # even whether there is such a path


def test_a_page_is_opened_by_its_address_once() -> None:
    rules = Rules(key="se same", page=True)
    opened = ask(rules, "/echo?key=se+same&a=1")
    assert (opened.status_code, opened.headers["location"]) == (303, "/echo?a=1")
    cookie = opened.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "se same" not in cookie
    assert "se+same" not in cookie
    name, _, value = cookie.partition(";")[0].partition("=")
    assert ask(rules, cookie=f"{name}={value}").status_code == 200
    for wrong in (f"{name}={value[1:]}", f"other={value}", "=", f"{name}=se same", "\x00"):
        assert ask(rules, cookie=wrong).status_code == 401
    assert ask(rules, "/echo?key=wrong").status_code == 401
    assert ask(rules, "/echo?key=se+same", method="POST").status_code == 401
    assert ask(rules, f"http://{HOST}//evil.example/?key=se+same").headers["location"] == "/evil.example/"


def test_the_log_has_no_key_and_no_query() -> None:
    rules = Rules(key="sesame", page=True)
    for path in ("/echo?key=sesame", "/echo?key=wrong", "/bug?key=sesame"):
        ask(rules, path, authorization="Bearer sesame")
        [line] = LINES
        assert line.startswith(f"GET {path.partition('?')[0]} ")
        assert "key" not in line
        assert "sesame" not in line
    ask(Rules(), "/echo%1b[2J")
    assert "\x1b" not in LINES[0]


def test_a_planted_log_of_queries_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard._Exchange, "line", lambda self: f"{self._scope['query_string']}")
    with pytest.raises(AssertionError):
        test_the_log_has_no_key_and_no_query()


async def _parts(*parts: bytes, wait: float = 0) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
        await asyncio.sleep(wait)


def test_bodies_have_a_limit() -> None:
    rules = Rules(body_bytes=100)
    assert ask(rules, method="POST", content=b"x" * 100).json() == {"length": 100}
    for content in (b"x" * 101, _parts(b"x" * 60, b"x" * 60)):  # announced, and in chunks
        answer = ask(rules, method="POST", content=content)
        assert answer.status_code == 413
        assert "at most 100 bytes" in error(answer)["message"]
        assert not BUGS
    announced = {"content_length": "9" * 5000}
    assert ask(rules, method="POST", content=b"", **announced).status_code == 413
    uploads = replace(rules, uploads={"/echo": 200})
    assert ask(uploads, method="POST", content=b"x" * 200).status_code == 200
    assert ask(uploads, method="POST", content=b"x" * 201).status_code == 413


def test_a_planted_guard_without_limits_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard._Body, "check_length", lambda *_: None)
    assert ask(Rules(body_bytes=100), method="POST", content=b"x" * 101).status_code == 413  # when it arrives
    monkeypatch.setattr(guard._Body, "_too_long", lambda _: AssertionError())
    assert ask(Rules(body_bytes=100), method="POST", content=b"x" * 101).status_code == 500


def test_bodies_of_all_requests_together_have_a_limit() -> None:
    rules = Rules(all_bytes=100)
    answer = ask(rules, method="POST", content=b"x" * 101)
    assert (answer.status_code, "retry-after" in answer.headers) == (413, False)  # it would never fit
    app = guarded(echo_server.app(), rules)

    async def exchange() -> list[int]:
        began, all_began = itertools.count(1), asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            if next(began) == 4:
                all_began.set()
            yield b"x" * 40
            await all_began.wait()
            for _ in range(100):  # turns in which the others are received
                await asyncio.sleep(0)
            yield b"x"

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{HOST}") as client:
            slow = [client.post("/echo", content=body()) for _ in range(4)]
            several = [each.status_code for each in await asyncio.gather(*slow)]
            return [*several, (await client.post("/echo", content=b"x" * 100)).status_code]

    *several, last = asyncio.run(exchange())
    assert sorted(several) == [200, 200, 503, 503]
    assert last == 200  # nothing is held any more


def test_a_body_must_arrive_in_time() -> None:
    answer = ask(Rules(body_seconds=0.1), method="POST", content=_parts(b"x", b"x", wait=0.5))
    assert answer.status_code == 408
    assert error(answer)["message"] == "The body of the request did not arrive in time."
    assert answer.headers["connection"] == "close"
    assert not BUGS


def test_errors_are_json() -> None:
    answer = ask(Rules(), "/nowhere")
    assert (answer.status_code, error(answer)["message"]) == (404, "There is no '/nowhere' here.")
    for wrong in ("/v1//much", "/v1/much"):  # behind a base URL that the server does not have
        answer = ask(Rules(), wrong)
        assert (answer.status_code, error(answer)["message"]) == (
            404,
            f"There is no {wrong!r} here. Did you mean `/much`?",
        )
    answer = ask(Rules(), "/much", method="DELETE")
    assert (answer.status_code, error(answer)["message"]) == (405, "'/much' does not accept DELETE.")
    answer = ask(Rules(), "/refused")
    assert (answer.status_code, answer.headers["retry-after"], error(answer)["message"]) == (503, "7", "No room.")


def test_a_bug_is_reported_and_answered() -> None:
    answer = ask(Rules(), "/bug")
    assert answer.status_code == 500
    assert error(answer)["type"] == "server_error"
    assert [str(bug) for bug in BUGS] == ["a bug"]
