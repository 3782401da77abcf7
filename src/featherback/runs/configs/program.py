"""Read the arguments of calls in a program or a notebook. The program is never run."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from featherback.errors import FeatherbackError
from featherback.runs.configs.base import Computed

_CALLS = ("from_pretrained", "get_peft_model", "LoraConfig", "TrainingArguments", "load_dataset",
          "train_on_responses_only")  # fmt: skip
_TRAINER = re.compile(r"(?:Unsloth)?(SFT|DPO|ORPO|KTO|CPO|Reward|PRM|GRPO|PPO|RLOO|OnlineDPO)(?:Trainer|Config)")
_ENDS = ("Trainer", "Config", "TrainingArguments")


def arguments(path: Path, text: str) -> dict[str, Any]:
    """Return the named arguments of the calls that load a model, configure LoRA, and train. The last one counts.

    A value is Computed unless it is a literal, or a name that the program sets to one.
    """
    try:
        tree = ast.parse(_code(text) if path.suffix.lower() == ".ipynb" else text)
    except (SyntaxError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise FeatherbackError(f"{path} is not a Python program: {error}.") from None
    known: dict[str, Any] = {}
    found: dict[str, Any] = {}
    trainers = (_TRAINER.fullmatch(_name(node.func)) for node in ast.walk(tree) if isinstance(node, ast.Call))
    if trainer := next(filter(None, trainers), None):
        found["trainer"] = trainer[1]  # before the options, whose meaning depends on it
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            for value in _literal(node.value, known):
                known[node.targets[0].id] = value
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_wanted(_name(node.func)):
            found |= dict(_of_call(node, known))
    return found


def _of_call(node: ast.Call, known: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    name = _name(node.func)
    if name == "load_dataset":
        files = next((each.value for each in node.keywords if each.arg == "data_files"), None)
        for value in _literal(files or (node.args[0] if node.args else ast.Constant(None)), known):
            yield name, value.get("train", value) if isinstance(value, dict) else value
        return
    if name == "from_pretrained" and node.args:
        for value in _literal(node.args[0], known):
            yield "model_name", value
    for each in node.keywords:
        if each.arg is not None:
            values = list(_literal(each.value, known))
            yield each.arg, values[0] if values else Computed(ast.unparse(each.value))


def _literal(node: ast.expr, known: dict[str, Any]) -> Iterator[Any]:
    """Yield the value of an expression, if it is a literal or a name with a known value."""
    if isinstance(node, ast.Name):
        if node.id in known:
            yield known[node.id]
        return
    try:
        yield ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_wanted(name: str) -> bool:
    return name in _CALLS or (name.endswith(_ENDS) and name != "AutoConfig")


def _code(text: str) -> str:
    """Return the code of a notebook, without the commands of its shell."""
    cells = json.loads(text)["cells"]
    lines = [
        line
        for cell in cells
        if cell["cell_type"] == "code"
        if not "".join(cell["source"]).startswith("%%")
        for line in "".join(cell["source"]).splitlines()
    ]
    return "\n".join(re.sub(r"^(\s*)[!%].*", r"\1pass", line) for line in lines)
