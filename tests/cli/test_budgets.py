"""Every command keeps a memory budget, or states why it has none."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, get_args

import pytest
import typer
from featherback.cli.from_config import expanded

from featherback.cli.app import COMMANDS
from featherback.cli.options import FromConfig
from tests.cli.conftest import Command

PAGE = Path(__file__).parents[2] / "docs" / "memory.md"


def _parameters(function: Callable[..., None]) -> Mapping[str, inspect.Parameter]:
    """The options of a command, with those that fields of TrainConfig describe."""
    signature = inspect.signature(function, eval_str=True)
    marked = {
        name: marker
        for name, parameter in signature.parameters.items()
        for marker in get_args(parameter.annotation)[1:]
        if isinstance(marker, FromConfig)
    }
    return inspect.signature(expanded(function, signature, marked)[0]).parameters


def _problem(name: str, module: Any) -> str | None:
    """What is wrong with a command: it must take --memory, or state why not, as the page does."""
    reason = getattr(module, "WITHOUT_BUDGET", None)
    if reason is None:
        command = getattr(module, name.replace("-", "_"))
        return None if "memory" in _parameters(command) else f"{name} has no --memory and states no reason"
    return None if f"| `{name}` | {reason} |\n" in PAGE.read_text() else f"docs/memory.md lacks the reason of {name}"


def _module(name: str) -> ModuleType:
    return import_module(f"featherback.cli.{name.replace('-', '_')}")


LIMITED = [name for name in COMMANDS if not hasattr(_module(name), "WITHOUT_BUDGET")]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_takes_a_budget_or_states_why_not(name: str) -> None:
    assert _problem(name, _module(name)) is None


def test_a_planted_fault_is_found_a_new_command_without_a_budget() -> None:
    def ask(model: str, seed: int = typer.Option(0)) -> None:
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
        "generate": (str(chat_model), "--prompt", "Hi"),
        "chat": (str(chat_model),),
        "serve": (str(chat_model), "--port", "0"),
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
