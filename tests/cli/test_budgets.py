"""Every command keeps a memory budget, or states why it has none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from featherback.cli.commands import COMMANDS
from featherback.cli.options import MODEL, SEED
from featherback.cli.parameters import parameters_of
from tests.cli.conftest import Command

PAGE = Path(__file__).parents[2] / "docs" / "memory.md"


def _problem(name: str, module: Any) -> str | None:
    """What is wrong with a command: it must take --memory, or state why not, as the page does."""
    reason = getattr(module, "WITHOUT_BUDGET", None)
    if reason is None:
        command = getattr(module, name.replace("-", "_"))
        named = [each.name for each in parameters_of(command)]
        return None if "memory" in named else f"{name} has no --memory and states no reason"
    return None if f"| `{name}` | {reason} |\n" in PAGE.read_text() else f"docs/memory.md lacks the reason of {name}"


def _module(name: str) -> ModuleType:
    return import_module(f"featherback.cli.{name.replace('-', '_')}")


LIMITED = [name for name in COMMANDS if not hasattr(_module(name), "WITHOUT_BUDGET")]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_takes_a_budget_or_states_why_not(name: str) -> None:
    assert _problem(name, _module(name)) is None


def test_a_planted_fault_is_found_a_new_command_without_a_budget() -> None:
    def ask(model: str = MODEL, seed: int = SEED) -> None:
        """Load a model."""

    new = SimpleNamespace(ask=ask)
    assert _problem("ask", new) == "ask has no --memory and states no reason"
    new.WITHOUT_BUDGET = "it is small"
    assert _problem("ask", new) == "docs/memory.md lacks the reason of ask"


def test_the_page_has_no_reason_of_a_command_with_a_budget() -> None:
    listed = re.findall(
        r"^\| `([\w-]+)` \| .* \|$", PAGE.read_text().partition("These commands have no budget:")[2], re.M
    )
    assert sorted([*listed, *LIMITED]) == sorted(COMMANDS)


@pytest.fixture(scope="module")
def given(chat_model: Path, messages: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, ...]]:
    """The arguments that each limited command needs."""
    import featherback as fb

    folder = tmp_path_factory.mktemp("given")
    model, common = fb.load(chat_model), {"steps": 1, "rank": 2, "progress": False}
    texts = [{"text": "one", "label": "a"}, {"text": "two", "label": "b"}]
    fb.train(model, messages, out=folder / "run", seq_len=96, samples=0, **common)
    fb.train(model, texts, out=folder / "labels", objective="classify", **common)
    return {
        "train": (str(chat_model), "--data", str(messages), "--out", str(folder / "new")),
        "report": (str(folder / "run"), "--samples", "1"),
        "evaluate": (str(chat_model), "--data", str(messages)),
        "compare": (str(chat_model), "--data", str(messages), "--adapter", str(folder / "run")),
        "generate": (str(chat_model), "--prompt", "Hi"),
        "chat": (str(chat_model),),
        "serve": (str(chat_model), "--port", "0"),
        "embed": (str(chat_model), "one"),
        "classify": (str(chat_model), "one", "--adapter", str(folder / "labels")),
    }


@pytest.mark.parametrize("name", LIMITED)
def test_a_budget_in_which_nothing_runs_is_refused_before_anything_is_computed(
    command: Command, given: Mapping[str, tuple[str, ...]], name: str
) -> None:
    """A new command with --memory needs a line in `given`. One that ignores its --memory fails here."""
    code, out, err = command(name, *given[name], "--memory", "1MB")
    assert code == 2, err
    assert out == ""
    assert len(err.splitlines()) == 1
    assert re.search(r" does not fit in 1MB: these options need at least --memory \d+MB", err)
