"""Tools in Ollama's templates, rendered by Go's own engine: `ollama/render.go` wrote `ollama/rendered.json`.

After a change of a template, run this file as a program: it asks the questions again with `go run`.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from featherback.data.templates.chat import ChatTemplate
from featherback.exports.chat_parts import chat_parts
from tests.data import templates
from tests.data.support import byte_tokenizer

FOLDER = Path(__file__).parent / "ollama"
FUNCTIONS_ONLY = templates.QWEN2_5.replace("{{ tool | tojson }}", "{{ tool.function | tojson }}")
TEMPLATES = {"qwen2.5": templates.QWEN2_5, "qwen3": templates.QWEN3, "functions only": FUNCTIONS_ONLY}


def _tool(name: str, **properties: Any) -> Any:
    parameters = {"type": "object", "required": [*properties][:1], "properties": properties}
    return {"type": "function", "function": {"name": name, "description": f"The {name}.", "parameters": parameters}}


def _call(name: str, **arguments: Any) -> Any:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _said(role: str, content: str, **more: Any) -> Any:
    return {"role": role, "content": content, **more}


TOOLS = [
    _tool("weather", city={"type": "string", "description": 'A "city"'}, unit={"type": "string", "enum": ["C", "F"]}),
    _tool("time", zone={"type": "string"}),
]
SYSTEM, ASKED = _said("system", "Be {brief}."), _said("user", "How {{ warm }} is it?")
ONE = _said("assistant", "", tool_calls=[_call("weather", city="Köln", unit="C")])
TWO = _said("assistant", "Let me see.", tool_calls=[_call("time", zone="UTC"), _call("weather", city="Oslo")])
WARM, LATE = _said("tool", "20 degrees", name="weather"), _said("tool", "9:00", name="time")
MORE = [_said("assistant", "It is warm."), _said("user", "And now?")]
TALKS = [
    [ASKED],
    [SYSTEM, ASKED],
    [SYSTEM, ASKED, ONE, WARM],
    [ASKED, ONE, WARM],
    [SYSTEM, ASKED, TWO, LATE, WARM],
    [SYSTEM, ASKED, TWO, LATE, WARM, *MORE],
    [ASKED, *MORE, ONE, WARM, *MORE, TWO, LATE, WARM],
]
CASES = [{"messages": talk, "tools": tools} for talk in TALKS for tools in ([], TOOLS[:1], TOOLS)]


def _questions() -> list[dict[str, Any]]:
    found = []
    for template in TEMPLATES.values():
        parts = chat_parts(byte_tokenizer(template))
        assert parts is not None
        found.append({"template": parts.go_template(), "cases": CASES})
    return found


def _same_json(text: str) -> str:
    """Return the text with every JSON object in one form: without spaces, and in the order of the names."""
    found, at = [], 0
    while (start := text.find("{", at)) >= 0:
        found.append(text[at:start])
        try:
            value, at = json.JSONDecoder().raw_decode(text, start)
            found.append(json.dumps(value, sort_keys=True))
        except ValueError:
            found.append("{")
            at = start + 1
    return "".join([*found, text[at:]])


@pytest.mark.parametrize("name", TEMPLATES)
def test_tools_are_rendered_as_the_models_own_template_does(name: str) -> None:
    number = [*TEMPLATES].index(name)
    written, answers = json.loads((FOLDER / "rendered.json").read_text())
    asked = _questions()[number]
    assert written[number] == asked["template"], "the template changed: run this file as a program"
    template = ChatTemplate(byte_tokenizer(TEMPLATES[name]))
    for case, text in zip(CASES, answers[number], strict=True):
        wanted = template.render(case["messages"], tools=case["tools"] or None, add_generation_prompt=True)
        assert _same_json(text) == _same_json(wanted)


def test_a_call_is_found_by_the_first_text_behind_if_tool_calls() -> None:
    """By `parseTag` in Ollama's tools/template.go."""
    for question in _questions():
        assert question["template"].count("{{ if .ToolCalls }}") == 1
        behind = question["template"].partition("{{ if .ToolCalls }}")[2]
        for action in ("{{ range $j, $_ := .ToolCalls }}", "{{ if eq $j 0 }}"):
            assert behind.startswith(action)
            behind = behind.removeprefix(action)
        assert behind.startswith("<tool_call>\n{{")


@pytest.mark.parametrize("name", ["llama3.1", "mistral-nemo", "granite3.3", "smollm3"])
def test_other_forms_have_no_tools(name: str) -> None:
    parts = chat_parts(byte_tokenizer(templates.family(name)))
    assert parts is None or parts.tools is None


def test_a_planted_text_between_calls_is_found() -> None:
    """A template that writes something else before a second call cannot be split."""
    odd = templates.QWEN2_5.replace("{{- '\\n<tool_call>", "{{- loop.index ~ '\\n<tool_call>")
    assert odd != templates.QWEN2_5
    parts = chat_parts(byte_tokenizer(odd))
    assert parts is not None
    template = ChatTemplate(byte_tokenizer(odd))
    assert parts.tools is None or "1\n<tool_call>" in template.render([ASKED, ONE, WARM], tools=TOOLS)


if __name__ == "__main__":
    asked = _questions()
    done = subprocess.run(
        ["go", "run", FOLDER / "render.go"], input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    answers = [[question["template"] for question in asked], json.loads(done.stdout)]
    (FOLDER / "rendered.json").write_text(json.dumps(answers, ensure_ascii=False, indent=1) + "\n")
