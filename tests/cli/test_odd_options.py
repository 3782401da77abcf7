"""Options with absurd values: each is refused in one sentence, or works."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Command

from featherback.options import described, flags
from featherback.training.config import TrainConfig

ABSURD = (10**30, -(10**30), 1e300, "nan", "1e999", "", "\x1b[31m", "9" * 400)
# What would be computed with, if it is accepted: here the model is not there, so that nothing is.
NUMBERS = [
    name for name, about in described(TrainConfig).items() if about.parse is None and not about.choices
]


@pytest.mark.parametrize("name", NUMBERS)
def test_nothing_is_a_bug(
    command: Command, messages: Path, tmp_path: Path, chat_model: Path, name: str
) -> None:
    flag = flags(TrainConfig, name)[0]
    for value in ABSURD:
        options = {"--data": messages, "--out": tmp_path / "run", "--seq-len": 10**6, flag: value}
        arguments = [word for pair in options.items() for word in pair]
        code, _, err = command("train", chat_model, *arguments)
        assert code == 2, (flag, value, err)
        assert len(err.splitlines()) == 1
        assert "\x1b" not in err
        assert not (tmp_path / "run").exists()
