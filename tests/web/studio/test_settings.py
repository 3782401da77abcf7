"""The form of options says what their descriptions say, and its values become the words of a command."""

from __future__ import annotations

from typing import Any

import pytest

from featherback.core.naming import as_flags
from featherback.core.options import described
from featherback.runs.config import PANELS, TrainConfig
from featherback.runs.names import grouped, known
from featherback.web.refusal import RefusedError
from featherback.web.studio import settings
from featherback.web.studio.goals import QUESTIONS


def options() -> dict[str, dict[str, Any]]:
    return {each["name"]: each for group in settings.form() for each in group["options"]}


def test_every_option_is_in_the_form_or_elsewhere() -> None:
    assert options().keys() | settings.ELSEWHERE == {field for fields in grouped().values() for field in fields} | {
        "out"
    }
    assert not options().keys() & settings.ELSEWHERE
    assert {group["title"] for group in settings.form()} <= {panel.title for panel in PANELS}


def test_labels_help_and_choices_are_those_of_the_descriptions() -> None:
    form = options()
    about = described(TrainConfig)["optimizer"]
    assert form["optimizer"]["help"] == about.meaning
    assert form["optimizer"]["choices"] == list(about.choices)
    assert form["learning_rate"]["flag"] == "--lr"
    assert form["epochs"]["default"] == described(TrainConfig)["epochs"].default_in_words
    assert form["cut"]["kind"] == "switch"
    assert form["seed"]["kind"] == "number"
    assert form["memory"]["kind"] == "text"
    assert form["weight_decay"]["only_with"]["option"] == "optimizer"
    assert "adamw" in form["weight_decay"]["only_with"]["values"]
    assert form["master"]["only_for"] == "full"


def test_the_answers_of_the_questions_are_options() -> None:
    for question in QUESTIONS:
        assert question.own is None or question.own in options()
        assert [choice for choice in question.choices if not choice.options], "one answer is the default"
        for choice in question.choices:
            assert settings.words(dict(choice.options)) or not choice.options


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, []),
        ({"epochs": "", "rank": " "}, []),
        ({"rank": "16", "epochs": "0.5"}, ["--rank", "16", "--epochs", "0.5"]),
        ({"learning_rate": "1e-3"}, ["--lr", "1e-3"]),
        ({"memory": "96MB"}, ["--memory", "96MB"]),
        ({"memory": "least"}, ["--memory", "least"]),
        ({"targets": "q,v"}, ["--targets", "q,v"]),
        ({"cut": "yes", "skip_bad": "no"}, ["--cut"]),
        ({"columns": "prompt=question\ncompletion=reply"}, ["--map", "prompt=question", "--map", "completion=reply"]),
        ({"optimizer": "lion", "weight_decay": "0.1"}, ["--optimizer", "lion", "--weight-decay", "0.1"]),
        ({"warmup": "0.05"}, ["--warmup", "0.05"]),
    ],
)
def test_values_become_words(given: dict[str, str], words: list[str]) -> None:
    assert sorted(settings.words(given)) == sorted(words)
    assert settings.words(given)[:1] == words[:1] or len(words) > 2


def test_only_options_of_reading_count_when_examples_are_shown() -> None:
    given = {"rank": "8", "columns": "prompt=a\ncompletion=b", "skip_bad": "yes"}
    given |= {"table": "sheet=A b", "me": "Ann\n--x"}
    reading = ["--map", "prompt=a", "--map", "completion=b", "--table", "sheet=A b", "--me", "Ann", "--me=--x"]
    assert settings.reading_words(given) == [*reading, "--skip-bad"]
    with pytest.raises(RefusedError):
        settings.reading_words(["skip_bad"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rank": "many"}, "--rank is 'many'; it must be a whole number"),
        ({"rank": "0"}, "--rank is 0; it must be at least 1"),
        ({"optimizer": "adam"}, "--optimizer is 'adam'"),
        ({"learning_rate": "nan"}, "--lr is"),
        ({"seed": "1 --out elsewhere"}, "--seed is '1 --out elsewhere'"),
        ({"nonsense": "1"}, "There is no option 'nonsense'"),
        ({"out": "elsewhere"}, "There is no option 'out'"),
        ({"start": "/etc"}, "There is no option 'start'"),
        ({"teacher": "/etc"}, "There is no option 'teacher'"),
        ({"data": "/etc/passwd"}, "There is no option 'data'"),
        ({"freeze": "x" * 1001}, "longer than 1000 characters"),
        ({"cut": "maybe"}, "--cut is 'maybe'"),
        ({"rank": 8}, "must be an object of texts"),
        ([], "must be an object of texts"),
    ],
)
def test_bad_values_are_rejected_with_a_reason(given: Any, message: str) -> None:
    with as_flags(), pytest.raises(RefusedError) as error:
        settings.words(given)
    assert message in str(error.value)


def test_no_option_of_the_form_names_a_file() -> None:
    named = {field for field in known() if described(known()[field][0])[field].is_path}
    assert named <= settings.ELSEWHERE
