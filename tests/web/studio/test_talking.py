"""Chat on the page: the answers are those of the command line, within the run's budget, and they can be stopped."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import featherback as fb
from featherback.engine.host.process_tree import sizes
from featherback.runs.run_directory import RunDirectory
from featherback.web.refusal import RefusedError
from featherback.web.studio.talking import Talks, asked_of, chat_shown
from tests.runs import runs
from tests.support.tiny_chat import write_messages, write_tiny_chat
from tests.web.studio.conftest import Ask, message

QUESTION = "What is 3 plus 3?"
MEMORY = 80  # MB


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run of a tiny model with a budget."""
    folder = tmp_path_factory.mktemp("talking")
    write_tiny_chat(folder / "tiny.gguf")
    write_messages(folder / "sums.jsonl", 30)
    words = f"train tiny.gguf --data sums.jsonl --out run --steps 10 --compute fp32 --memory {MEMORY}MB".split()
    subprocess.run([sys.executable, "-m", "featherback", *words], cwd=folder, check=True, capture_output=True)
    return RunDirectory.open(folder / "run")


def conversation(*texts: str) -> list[dict[str, str]]:
    """Messages of the user and the assistant in turn."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def asked(*texts: str) -> dict[str, Any]:
    return asked_of({"ask": {side: conversation(*texts) for side in ("original", "trained")}, "temperature": 0})


def text_of(lines: list[Mapping[str, Any]], side: str) -> str:
    return "".join(line["piece"] for line in lines if line.get("side") == side and "piece" in line)


async def answered_until(talks: Talks, run: RunDirectory, act: Callable[[], Awaitable[None]]) -> list[dict[str, Any]]:
    """Ask for long answers, act after the first line, and return all lines."""
    lines = []
    async for line in talks.answers(run, asked("Say something long. " * 20)):
        lines.append(json.loads(line))
        if len(lines) == 1:
            await act()
    return lines


@pytest.mark.full("a process that answers")
def test_answers_are_those_of_the_command_line_within_the_budget(trained: RunDirectory) -> None:
    async def scenario() -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
        talks = Talks(trained.path.parent)
        first = [json.loads(line) async for line in talks.answers(trained, asked(QUESTION))]
        second = [json.loads(line) async for line in talks.answers(trained, asked(QUESTION, "6", "And 4 plus 4?"))]
        assert talks._process is not None
        peak = sizes(talks._process.pid).get("VmHWM", 0)
        await talks.close()
        return first, second, peak

    first, second, peak = asyncio.run(scenario())
    model = fb.load(trained.path.parent / "tiny.gguf")
    for lines, texts in ((first, [QUESTION]), (second, [QUESTION, "6", "And 4 plus 4?"])):
        ends = {line["side"]: line for line in lines if "end" in line}
        assert set(ends) == {"original", "trained"}
        for side, adapter in (("original", None), ("trained", trained.path)):
            length = ends[side]["tokens"]
            want = model.generate(conversation(*texts), adapter=adapter, max_tokens=length, compute="fp32")
            assert text_of(lines, side).startswith(want.rstrip("\ufffd"))
    assert text_of(first, "original") != text_of(first, "trained")
    assert 0 < peak <= MEMORY * 10**6


@pytest.mark.full("a process that answers")
def test_a_run_of_somebody_else_cannot_open_another_model(trained: RunDirectory, tmp_path: Path) -> None:
    write_tiny_chat(tmp_path / "private.gguf", seed=1)
    shutil.copytree(trained.path, tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run")
    run.update(configuration=replace(run.config, model=str(tmp_path / "private.gguf")))

    async def scenario() -> None:
        talks = Talks(tmp_path)
        with pytest.raises(RefusedError, match="have changed since"):
            await anext(talks.answers(run, asked(QUESTION)))

    asyncio.run(scenario())


@pytest.mark.full("a process that answers")
def test_an_answer_can_be_stopped_and_an_abandoned_one_ends(trained: RunDirectory) -> None:
    async def scenario() -> None:
        talks = Talks(trained.path.parent)
        lines = await answered_until(talks, trained, talks.stop)
        assert [line["end"] for line in lines if "end" in line]
        process = talks._process
        assert process is not None
        answers = talks.answers(trained, asked(QUESTION))
        await anext(answers)
        with pytest.raises(RefusedError, match="Another answer"):
            await anext(talks.answers(trained, asked(QUESTION)))
        await answers.aclose()  # as when the page is closed
        assert process.returncode is not None
        await talks.close()

    asyncio.run(scenario())


@pytest.mark.full("a process that answers")
def test_the_end_of_the_process_is_reported_and_the_next_question_is_answered(trained: RunDirectory) -> None:
    async def scenario() -> None:
        talks = Talks(trained.path.parent)

        async def kill() -> None:
            assert talks._process is not None
            talks._process.kill()

        lines = await answered_until(talks, trained, kill)
        assert "has ended" in lines[-1]["error"]
        again = [json.loads(line) async for line in talks.answers(trained, asked(QUESTION))]
        assert [line for line in again if "end" in line], again
        await talks.close()

    asyncio.run(scenario())


@pytest.fixture
def prepared(folder: Path) -> RunDirectory:
    """A run that has not begun."""
    return runs.prepared(folder / "tiny.gguf", folder / "empty", steps=2, memory=10**10)


def test_the_command_has_the_budget(prepared: RunDirectory) -> None:
    shown = chat_shown(prepared, "empty")
    assert shown.startswith("featherback chat ")
    assert shown.endswith("--adapter empty --memory 10000MB")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({}, "`ask` must be"),
        ({"ask": {"other": conversation("a")}}, "`ask` must be"),
        ({"ask": {"trained": []}}, "A conversation must be"),
        ({"ask": {"trained": [{"role": "root", "content": "a"}]}}, "A conversation must be"),
        ({"ask": {"trained": [{"role": "user", "content": 3}]}}, "A conversation must be"),
        ({"ask": {"trained": [{"role": "user", "content": "a" * 100_001}]}}, "A conversation must be"),
        ({"ask": {"trained": conversation("a")}, "temperature": "warm"}, "`temperature`"),
        ({"ask": {"trained": conversation("a")}, "temperature": float("nan")}, "`temperature`"),
        ({"ask": {"trained": conversation("a")}, "seed": -1}, "`seed`"),
        ({"ask": {"trained": conversation("a")}, "seed": True}, "`seed`"),
    ],
)
def test_questions_that_are_none(body: dict[str, Any], problem: str) -> None:
    with pytest.raises(RefusedError) as error:
        asked_of(body)
    assert problem in str(error.value)


def test_a_run_without_an_adapter_has_nothing_to_say(ask: Ask, prepared: RunDirectory) -> None:
    body = {"run": "empty", "ask": {"trained": conversation("a")}}
    assert "is being trained" in message(ask("/chat", body))
    prepared.release()
    assert "no adapter" in message(ask("/chat", body))
