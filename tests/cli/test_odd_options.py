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


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("trian", "m.gguf"), "error: There is no command trian. Did you mean `train`? See featherback --help."),
        (("xyzzy",), "error: There is no command xyzzy. See featherback --help."),
        (("train", "m", "--seqlen", "9"), "error: There is no option --seqlen. Did you mean `--seq-len`? See feath"),
        (("train", "m", "--lora-rank", "9"), "error: There is no option --lora-rank. Did you mean `--rank`"),
        (("train", "m", "--epoch", "9"), "error: There is no option --epoch. Did you mean `--epochs`"),
        (("generate", "m", "--xyzzy"), "error: There is no option --xyzzy. See featherback generate --help."),
        (("train", "m", "--out", "o", "--optimizer", "adam"), "apollo_mini, lion, lomo, mlorc, sgd."),
        (("train", "m", "--out", "o", "--optimizer", "adam"), " Did you mean `adamw`?"),
        (("train", "m", "--out", "o", "--schedule", "cos"), "linear, constant. Did you mean `cosine`?"),
        (("train", "m", "--out", "o", "--method", "mez"), "Did you mean `mezo`?"),
        (("train", "m", "--out", "o", "--compute", "bf-16"), "Did you mean `bf16`?"),
        (("export", "run", "--to", "olama"), "Did you mean `ollama`?"),
        (("export", "run", "--to", "merged", "--type", "q8"), "--type is 'q8'; expected one of: f32, f16, q4_0, "),
        (("generate", "smollm2", "--prompt", "a"), "Did you mean `smollm2-135m`"),
        (("generate", "Qwen/Qwen2-0.5B", "--prompt", "a"), "featherback fetch Qwen/Qwen2-0.5B"),
    ],
)  # fmt: skip
def test_what_was_probably_meant(command: Command, words: tuple[str, ...], says: str) -> None:
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert says in err
    assert err.startswith("error: ")
