"""`featherback serve` in its own process, with the official `openai` client and with curl."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

import featherback as fb
from tests.infer.test_grammar import BILL, is_bill
from tests.support.tiers import some
from tests.web.conftest import Files
from tests.web.serving import Running, serving, write_adapter

QUESTION: list[Any] = [{"role": "user", "content": "What is 2 plus 2?"}]
LENGTH = 24
Answers = dict[str, str]


@pytest.fixture(scope="module")
def answers(files: Files) -> Answers:
    """Model name -> its greedy answer to QUESTION, as `generate` gives it."""
    model = fb.load(files.model)
    paths = {"tiny": None, "notes": files.notes, "tone": files.tone}
    options: Any = {"max_tokens": LENGTH, "compute": "fp32"}
    found = {name: model.generate(QUESTION, adapter=path, **options) for name, path in paths.items()}
    assert len(set(found.values())) == 3
    return found


def ask(client: openai.OpenAI, model: str, **options: Any) -> str:
    options = {"temperature": 0, "max_tokens": LENGTH, **options}
    answer = client.chat.completions.create(model=model, messages=QUESTION, **options)
    return answer.choices[0].message.content or ""


def test_the_greeting_has_a_command_that_works(server: Running) -> None:
    assert "Models: tiny, notes, tone" in server.greeting
    [command] = [line for line in server.greeting.splitlines() if line.startswith("  curl")]
    done = subprocess.run(f"{command} -s --fail", shell=True, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert answer["model"] == "tone"
    assert answer["choices"][0]["message"]["role"] == "assistant"


def test_models(server: Running) -> None:
    client = server.client()
    assert [model.id for model in client.models.list()] == ["tiny", "notes", "tone"]
    assert client.models.retrieve("tiny:tone").id == "tone"
    with pytest.raises(openai.NotFoundError, match="Did you mean `notes`"):
        client.models.retrieve("note")
    with pytest.raises(openai.NotFoundError, match="expected one of: tiny, notes, tone"):
        ask(client, "gpt-4o")


def test_every_name_of_a_model_gives_its_answers(server: Running, answers: Answers) -> None:
    client = server.client()
    for name, expected in answers.items():
        assert ask(client, name) == expected
        assert name == "tiny" or ask(client, f"tiny:{name}") == expected
    status, answer = server.ask("/chat/completions", {"messages": QUESTION, "temperature": 0, "max_tokens": LENGTH})
    assert (status, answer["choices"][0]["message"]["content"]) == (200, answers["tiny"])


def test_streams(server: Running, answers: Answers) -> None:
    stream = server.client().chat.completions.create(
        model="notes",
        messages=QUESTION,
        temperature=0,
        max_tokens=LENGTH,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == answers["notes"]
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == LENGTH


def test_adapters_answer_at_the_same_time(server: Running, answers: Answers) -> None:
    async def one(client: openai.AsyncOpenAI, name: str, stream: bool) -> str:
        options: Any = {"model": name, "messages": QUESTION, "temperature": 0, "max_tokens": LENGTH}
        if not stream:
            return (await client.chat.completions.create(**options)).choices[0].message.content or ""
        text = ""
        async for chunk in await client.chat.completions.create(stream=True, **options):
            text += chunk.choices[0].delta.content or ""
        return text

    async def several() -> list[str]:
        async with server.async_client() as client:
            return await asyncio.gather(*(one(client, name, stream) for name in names for stream in (False, True)))

    names = [*answers] * 3
    assert asyncio.run(several()) == [answers[name] for name in names for _ in range(2)]


def test_seeds(server: Running) -> None:
    client = server.client()
    ask(client, "tiny")  # a prompt that is known already has the same logits each time, up to the last bit
    said = {seed: [ask(client, "tiny", temperature=1, seed=seed) for _ in range(2)] for seed in (1, 2)}
    assert said[1][0] == said[1][1]
    assert said[1] != said[2]
    assert ask(client, "tiny", temperature=1) != ask(client, "tiny", temperature=1)


def test_json_of_a_schema(server: Running) -> None:
    """The tiny model's text is noise, so that only the grammar can make it fit."""
    asked: Any = {"type": "json_schema", "json_schema": {"name": "bill", "strict": True, "schema": BILL}}
    client, options = server.client(), {"messages": QUESTION, "response_format": asked, "max_tokens": 200}

    def texts(seed: int) -> tuple[str, str]:
        """Two answers, whole and streamed, of a model and of an adapter."""
        whole = client.chat.completions.create(model="tiny", seed=seed, temperature=1, **options)
        stream = client.chat.completions.create(model="tone", seed=seed, temperature=1, stream=True, **options)
        assert whole.choices[0].finish_reason == "stop"
        return whole.choices[0].message.content, "".join(each.choices[0].delta.content or "" for each in stream)

    with ThreadPoolExecutor(4) as pool:
        for pair in pool.map(texts, range(4)):
            assert all(map(is_bill, pair)), pair


def test_an_answer_without_the_grammar_is_no_json(server: Running) -> None:
    """The check above can fail."""
    answer = server.client().chat.completions.create(model="tiny", messages=QUESTION, temperature=1, seed=0)
    assert not is_bill(answer.choices[0].message.content or "")


def test_json_objects(server: Running) -> None:
    """An answer that is cut off is the beginning of an object; one that ends is an object."""
    form: Any = {"type": "json_object"}
    for seed in range(3):
        answer = server.client().chat.completions.create(
            model="tiny", messages=QUESTION, response_format=form, temperature=1, seed=seed, max_tokens=120
        )
        [choice] = answer.choices
        text = choice.message.content or ""
        assert text.startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(text), dict)


def test_completions_and_log_probabilities(server: Running) -> None:
    client = server.client()
    done = client.completions.create(model="tone", prompt=["Once", "Two"], max_tokens=5, temperature=0, logprobs=2)
    assert [choice.index for choice in done.choices] == [0, 1]
    likely = done.choices[0].logprobs
    assert likely is not None
    assert likely.token_logprobs is not None
    assert likely.top_logprobs is not None
    for logprob, top in zip(likely.token_logprobs, likely.top_logprobs):
        assert logprob <= 0
        assert logprob == max(top.values())  # greedy
    answer = client.chat.completions.create(
        model="tone", messages=QUESTION, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3
    )
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert len(found.content) == 5
    assert all(len(token.top_logprobs) == 3 for token in found.content)
    assert all(token.logprob == token.top_logprobs[0].logprob for token in found.content)


def test_embeddings_are_those_of_the_model(server: Running, files: Files) -> None:
    client = server.client()
    first, second = (
        np.array(each.embedding) for each in client.embeddings.create(model="tiny", input=["ab", "c"]).data
    )
    assert np.isclose(np.linalg.norm(first), 1, atol=1e-6)
    plain = client.embeddings.create(model="tiny", input="ab", encoding_format="float").data[0].embedding
    assert np.allclose(plain, first, atol=1e-7)
    other = np.array(client.embeddings.create(model="notes", input="ab").data[0].embedding)
    assert not np.allclose(first, other, atol=1e-3)
    assert first.shape == second.shape


def test_a_client_that_leaves_is_not_answered_further(server: Running) -> None:
    for options in ({"stream": True}, {}):
        body = {"model": "tiny", "messages": QUESTION, "max_tokens": 300, "temperature": 0, **options}
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        before = server.errors.count("\n")
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(head.encode() + data)
            if options:
                client.recv(100)
        wait_until(lambda before=before: server.errors.count("\n") > before)
    assert ask(server.client(), "tiny")


def wait_until(condition: Any) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("it did not happen")


def test_errors_of_the_client(server: Running) -> None:
    client = server.client()
    with pytest.raises(openai.BadRequestError) as wrong:
        ask(client, "tiny", temperature=-1)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError, match="holds 400"):
        client.completions.create(model="tiny", prompt="a" * 500)
    with pytest.raises(openai.NotFoundError):
        client.get("/nothing", cast_to=object)
    assert server.ask("/models", {}, "POST")[0] == 405


def test_curl(server: Running) -> None:
    url = f"{server.url}/chat/completions"
    body = json.dumps({"model": "notes", "messages": QUESTION, "stream": True, "max_tokens": 3})
    done = subprocess.run(["curl", "-sN", url, "-d", body], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("data: {")
    assert done.stdout.endswith("data: [DONE]\n\n")
    done = subprocess.run(["curl", "-s", url, "-d", "{"], capture_output=True, text=True, check=True)
    assert "not valid JSON" in json.loads(done.stdout)["error"]["message"]
    evil = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", server.url.replace("/v1", "/health"), "-H"]
    for header, status in (("A: b", "200"), ("Host: evil.example", "403"), ("Origin: http://evil.example", "403")):
        assert subprocess.run([*evil, header], capture_output=True, text=True, check=True).stdout == status


def test_the_log_has_no_content(server: Running) -> None:
    body = {"messages": [{"role": "user", "content": "a-secret"}], "max_tokens": 2}
    server.ask("/chat/completions?key=a-secret", body, Authorization="Bearer a-secret")
    wait_until(lambda: "POST /v1/chat/completions 200" in server.errors)
    assert "secret" not in server.errors


def test_a_key(files: Files) -> None:
    with serving(files.model, FEATHERBACK_API_KEY="sesame") as server:
        assert "$FEATHERBACK_API_KEY" in server.greeting
        assert "sesame" not in server.greeting
        assert ask(server.client("sesame"), "tiny")
        with pytest.raises(openai.AuthenticationError, match="missing or wrong"):
            ask(server.client("open"), "tiny")
        assert server.ask("/models")[0] == 401
        assert "sesame" not in server.errors


def test_adapters_come_and_go(files: Files, answers: Answers, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    outside = shutil.copytree(files.notes, tmp_path / "outside")
    with serving(files.model, "--adapters-folder", folder, "--compute", "fp32") as server:
        client = server.client()
        assert server.ask("/adapters") == (200, {"object": "list", "data": []})
        shutil.copytree(files.notes, folder / "appeared")
        assert ask(client, "appeared") == answers["notes"]
        assert [model.id for model in client.models.list()] == ["tiny", "appeared"]
        status, added = server.ask("/adapters", {"name": "mine", "path": "appeared"})
        assert (status, added["path"]) == (201, str(folder.resolve() / "appeared"))
        assert ask(client, "tiny:mine") == answers["notes"]
        for name, status in (("mine", 201), ("tiny", 409), ("", 400), ("a\nb", 400), ("tiny:appeared", 400)):
            assert server.ask("/adapters", {"name": name, "path": "appeared"})[0] == status, name

        shutil.rmtree(folder / "appeared")  # the run is trained again
        shutil.copytree(files.tone, folder / "appeared")
        assert ask(client, "appeared") == ask(client, "mine") == answers["tone"]

        assert server.ask("/adapters/mine", method="DELETE") == (204, None)
        assert server.ask("/adapters/mine", method="DELETE")[0] == 404
        with pytest.raises(openai.NotFoundError):
            ask(client, "mine")
        assert server.ask("/adapters/appeared", method="DELETE")[0] == 204
        with pytest.raises(openai.NotFoundError):  # it does not come back by itself
            ask(client, "appeared")
        assert server.ask("/adapters", {"name": "appeared", "path": "appeared"})[0] == 201
        assert ask(client, "appeared") == answers["tone"]

        (folder / "link").symlink_to(outside)
        inside = shutil.copytree(files.notes, folder / "inside")
        weights = inside / "adapter_model.safetensors"
        weights.unlink()
        weights.symlink_to(outside / weights.name)
        wrong = (outside, "../outside", "link", "nowhere", "/etc/passwd", ".", folder, "\0", "a" * 5000, "inside/../..")
        said = set()
        for path in wrong:
            status, answer = server.ask("/adapters", {"name": "x", "path": str(path)})
            assert status == 403, path
            said.add(answer["error"]["message"].partition(" in the folders")[2])
        assert len(said) == 1  # it does not tell which files exist
        assert server.ask("/adapters", {"name": "x", "path": "inside"})[0] == 400
        assert [model.id for model in client.models.list()] == ["tiny", "appeared"]
        wait_until(lambda: "inside is not served" in server.errors)


def test_a_planted_shelf_without_confinement_is_caught(files: Files, tmp_path: Path, monkeypatch: Any) -> None:
    from featherback.models import load
    from featherback.web.openai.shelf import Shelf
    from featherback.web.refusal import RefusedError

    outside = shutil.copytree(files.notes, tmp_path / "outside")
    folder = tmp_path / "runs"
    folder.mkdir()
    shelf = Shelf(load(files.model), "tiny", [folder])
    with pytest.raises(RefusedError):
        shelf.add("x", str(outside))
    monkeypatch.setattr(Shelf, "_allowed", lambda self, path: Path(path).resolve())
    shelf.add("x", str(outside))


def test_switching_adapters_between_requests(server: Running, answers: Answers) -> None:
    client = server.client()
    for name in [*answers] * 4:
        assert ask(client, name) == answers[name]


@pytest.mark.parametrize("number", some([signal.SIGINT, signal.SIGTERM], 1))
def test_signals_end_it_cleanly(files: Files, number: int) -> None:
    with serving(files.model, "--context", 2000) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, server.client(), "tiny", max_tokens=1900)
        wait_until(lambda: server.ask("/models")[0] == 200)
        assert server.end(number) == 0
        assert "Traceback" not in server.errors
        assert "bug" not in server.errors
        asked.exception()


def test_a_name_for_each_adapter(files: Files) -> None:
    with serving(
        files.model, "--adapter", f"a={files.notes}", "--adapter", f"b={files.notes}", "--name", "x"
    ) as server:
        assert [model.id for model in server.client().models.list()] == ["x", "a", "b"]


def test_everyone_may_use_an_open_server(files: Files) -> None:
    with serving(files.base, "--host", "0.0.0.0", "--allow-host", "models.lan") as server:
        assert "warning: everyone" in server.errors
        assert "/v1/completions" in server.greeting
        assert server.ask("/models", Host="models.lan")[0] == 200
        assert server.ask("/models", Host="evil.example")[0] == 403


def test_an_adapter_of_a_new_run_can_replace_another(files: Files, answers: Answers, tmp_path: Path) -> None:
    """An adapter that is written again is read again; answers that have begun keep the old values."""
    place = shutil.copytree(files.notes, tmp_path / "live")
    with serving(files.model, "--adapter", place, "--compute", "fp32") as server:
        client = server.client()
        assert ask(client, "live") == answers["notes"]
        write_adapter(files.model, place, 1)
        assert ask(client, "live") == answers["tone"]
