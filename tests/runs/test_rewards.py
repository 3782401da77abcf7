"""Rewards: what each kind says of answers, what it refuses, and that programs cannot take more than their limits."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback.core.options import UnclearError
from featherback.errors import FeatherbackError
from featherback.runs.rewards import REWARDS
from featherback.runs.rewards.base import Answer, Limits
from featherback.runs.rewards.judge import Judge
from featherback.runs.rewards.written import Written, read

LIMITS = Limits(20.0, 256 << 20)


def judged(
    written: str | list[str], text: str, record: Mapping[str, Any] | None = None, limits: Limits = LIMITS
) -> float:
    judge = Judge([written] if isinstance(written, str) else written, limits)
    return float(judge([Answer(text, record or {})])[0][0])


@pytest.mark.parametrize(
    ("written", "text", "record", "wanted"),
    [
        ("exact", " Paris \n", {"answer": "paris"}, 1),
        ("exact", "Paris, France", {"answer": "paris"}, 0),
        ("exact", "7", {"answer": 7}, 1),
        ("exact", "x", {"prompt": "?", "completion": "x"}, 1),
        ("exact:gold", "x", {"answer": "y", "gold": "x"}, 1),
        ("exact", "b", {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, 1),
        ("numeric", "So 2 + 2 = 4.", {"answer": "4"}, 1),
        ("numeric", "4 apples and 5", {"answer": "4"}, 0),
        ("numeric", "about 1,234.50", {"answer": "#### 1234.5"}, 1),
        ("numeric", "-3", {"answer": 3}, 0),
        ("numeric", "2e3", {"answer": "2000"}, 1),
        ("numeric", "none", {"answer": "4"}, 0),
        ("regex:^\\d+$", "12", {}, 1),
        ("regex:^\\d+$", "12.", {}, 0),
        ("regex:<a>(?P<answer>.*?)</a>", "I think\n<a> 12 </a>", {"answer": 12}, 1),
        ("regex:<a>(?P<answer>.*?)</a>", "<a>13</a>", {"answer": 12}, 0),
        ("regex:a:b", "xa:b", {}, 1),
        ("0.25*regex:x", "x", {}, 0.25),
        ("exact", "blue", {"answer": ["red", "Blue"]}, 1),
        ("exact", "red, blue", {"answer": ["red", "blue"]}, 0),
        ("-1*regex:x", "x", {}, -1),
    ],
)
def test_kinds(written: str, text: str, record: dict[str, Any], wanted: float) -> None:
    assert judged(written, text, record) == wanted


@pytest.mark.parametrize(
    ("text", "right", "wanted"),
    [
        ("the Eiffel Tower", "Eiffel tower.", 1),  # articles, case and punctuation do not count
        ("It is in Paris, France", "Paris", 1 / 3),  # 1 of 5 words, 1 of 1
        ("a b a b", "b b b", 2 * 2 / 5),  # "a" is an article; shared words are counted
        ("London", "Paris", 0),
        ("", "Paris", 0),
        ("the", "a", 0),  # nothing is left: version 1.1 gives 0
        ("Tower", ["Big Ben", "the Tower"], 1),
    ],
)
def test_token_f1_is_squads(text: str, right: Any, wanted: float) -> None:
    assert judged("token_f1", text, {"answer": right}) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("text", "right", "wanted"),
    [
        ("The cat sat on the mat.", "A cat was on the mat", 0.6666666666666666),
        ("Paris, France", "paris", 0.6666666666666666),
        ("It's U.S. 3.14 x_y", "its U S 3 14 x y", 0.7999999999999999),
        ("", "a", 0),
        ("one two three four", "four three two one", 0.25),
        ("a b a b a", "b a b", 0.7499999999999999),
    ],
)
def test_rouge_l_is_that_of_rouge_score(text: str, right: str, wanted: float) -> None:
    """The values are those of `rougeL` in the package rouge-score 0.1.2, without its stemmer."""
    assert judged("rouge_l", text, {"answer": right}) == pytest.approx(wanted)


def test_several_add_up() -> None:
    total, parts = Judge(["numeric", "0.5*regex:^\\d+$"], LIMITS)(
        [Answer("4", {"answer": 4}), Answer("4.", {"answer": 4})]
    )
    np.testing.assert_array_equal(total, [1.5, 1.0])
    assert parts == {"reward_numeric": 1.0, "reward_regex": 0.5}


def test_how_they_are_written() -> None:
    assert read("2*command:./a b*c:d") == Written(2.0, "command", "./a b*c:d")
    assert read("json-schema:f.json") == Written(1.0, "json_schema", "f.json")
    for text, said in {
        "numbers": "Did you mean",
        "regex": "regex needs PATTERN after a colon: regex:PATTERN.",
        "3 * * x": "write KIND",
        "..*exact": "'..' is not a number",
    }.items():
        with pytest.raises(UnclearError, match=said.replace("*", r"\*")):
            read(text)


@pytest.mark.parametrize(
    ("written", "text", "record", "said"),
    [
        ("exact", "x", {"prompt": "?", "gold": "x"}, "found prompt, gold. Add it, or name its column: exact:COLUMN"),
        ("exact:gold", "x", {"answer": "x"}, 'expected "gold"; found answer'),
        ("numeric", "4", {"answer": "four"}, "needs a number in the right answer, which is 'four'"),
        ("regex:(", "x", {}, "is not a regular expression"),
        ("command:/does/not/exist.py", "x", {}, "names no program that can be run"),
        ("command:'", "x", {}, "cannot be read"),
        ("python:mine", "x", {}, r"featherback.train\(..., reward=mine\), with resume=True"),
    ],
)
def test_refusals(written: str, text: str, record: dict[str, Any], said: str) -> None:
    with pytest.raises(FeatherbackError, match=said):
        judged(written, text, record)


def test_a_reward_that_is_not_finite_is_refused() -> None:
    def mine(answer: str, record: Mapping[str, Any]) -> float:
        return float("nan")

    with pytest.raises(FeatherbackError, match="python is nan for an answer; it must be a finite number"):
        Judge(["python:mine"], LIMITS, {"mine": mine})([Answer("x", {})])


def program(folder: Path, text: str) -> str:
    """Write a program; return the reward that runs it."""
    path = folder / "score me.py"
    path.write_text(f"import json, sys, time\n{text}\n")
    return f"command:{sys.executable} '{path}'"


def test_a_command_reads_the_record_and_the_answer(tmp_path: Path) -> None:
    score = "asked = json.load(sys.stdin); print(len(asked['text']) + asked['k'])"
    assert judged(program(tmp_path, score), "four", {"k": 0.5}) == 4.5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print('many')", "it printed 'many"),
        ("raise ValueError('no column x')", "exit status 1: 'ValueError: no column x'"),
        ("sys.exit(3)", "exit status 3"),
    ],
)
def test_a_command_that_fails_ends_the_run(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(FeatherbackError, match=said):
        judged(program(tmp_path, text), "x")


def test_a_command_that_takes_too_long_gives_nothing(tmp_path: Path) -> None:
    """Not even what it started lives on."""
    mark = tmp_path / "mark"
    late = f"import time; time.sleep(3); open({str(mark)!r}, 'w')"
    text = f"import subprocess\nsubprocess.Popen([sys.executable, '-c', {late!r}])\ntime.sleep(60)"
    assert judged(program(tmp_path, text), "x", limits=Limits(1.0, LIMITS.memory)) == 0
    time.sleep(3)
    assert not mark.exists()


def test_a_command_may_not_fill_the_memory(tmp_path: Path) -> None:
    fills = "try:\n    held = bytearray(10 ** 9)\n    print(1)\nexcept MemoryError:\n    print(0)"
    assert judged(program(tmp_path, fills), "x") == 0
    assert judged(program(tmp_path, fills), "x", limits=Limits(20.0, 4 << 30)) == 1


GOOD = "Here it is:\n```python\ndef double(x):\n    return 2 * x\n```\nDone."


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (GOOD, 1),
        ("def double(x): return x + x", 1),
        (GOOD.replace("2 *", "3 *"), 0),
        ("import sys\nsys.exit(0)", 0),
        ("import os\nos.write(1, b'passed')\nos._exit(0)\n", 1),  # what a program prints is all that is known of it
        ("while True: pass", 0),
        ("def double(x) return", 0),
    ],
)
def test_code_is_tested(text: str, wanted: float) -> None:
    record = {"tests": "assert double(4) == 8\nassert double(0) == 0"}
    assert judged("python_tests", text, record, Limits(2.0, LIMITS.memory)) == wanted


def test_json_schema(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}))
    pytest.importorskip("jsonschema")
    for text, wanted in {'{"a": 1}': 1, '{"a": "1"}': 0, "{}": 0, "none": 0, '{"a": 1} x': 0}.items():
        assert judged(f"json_schema:{path}", text) == wanted
    path.write_text('{"type": "strange"}')
    with pytest.raises(FeatherbackError, match="is not a valid JSON schema"):
        judged(f"json_schema:{path}", "{}")


def test_tasks_of_reasoning_gym() -> None:
    gym = pytest.importorskip("reasoning_gym")
    entry = gym.create_dataset("chain_sum", size=1, seed=3)[0]
    assert judged("reasoning_gym:chain_sum", entry["answer"], entry) == 1
    assert judged("reasoning_gym:chain_sum", "none", entry) < 0.1
    with pytest.raises(FeatherbackError, match=r"Unknown task 'chain_sums' of reasoning-gym; .*chain_sum"):
        judged("reasoning_gym:chain_sums", "x")


@pytest.mark.parametrize(("kind", "package"), [("json_schema:x", "jsonschema"), ("reasoning_gym:x", "reasoning-gym")])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, kind: str, package: str) -> None:
    monkeypatch.setattr(f"featherback.runs.rewards.{kind.partition(':')[0]}.find_spec", lambda name: None)
    with pytest.raises(FeatherbackError, match=f"not installed: pip install {package}"):
        judged(kind, "x")


def test_every_kind_has_a_test_here() -> None:
    text = Path(__file__).read_text()
    assert all(f'"{name}' in text or f"{name}:" in text for name in REWARDS.names)
