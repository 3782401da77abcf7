"""Ollama's folder: the Modelfile follows the grammar, and its template renders the same text as the model's own."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback import models
from featherback.data.templates.chat import ChatTemplate
from featherback.engine.formats.types import TensorType
from featherback.errors import FeatherbackError
from featherback.exports import FORMATS, formats
from featherback.exports.chat_parts import ChatParts, chat_parts
from featherback.exports.formats.base import Request
from featherback.exports.formats.ollama import OWN_ENGINE
from featherback.models.adapter import LoRA
from featherback.models.architecture.config import ModelConfig
from tests.data import templates
from tests.data.support import byte_tokenizer
from tests.support import modelfile
from tests.support.families import MODELS
from tests.support.tiny_chat import byte_level_metadata, write_tiny_chat
from tests.support.tiny_models import TINY_QWEN3, tiny, write_tiny

GEMMA = (
    "{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}{%- set first = messages[0]['content'] + '\n\n' -%}"
    "{%- set messages = messages[1:] -%}{%- else -%}{%- set first = '' -%}{%- endif -%}"
    "{%- for m in messages -%}{{ '<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n' }}"
    "{{ (first if loop.first else '') + m['content'] | trim + '<end_of_turn>\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"
)
BRACES = (
    "{% for m in messages %}{{ '{{' + m.role + '}}' + m.content + '<|im_end|>' }}{% endfor %}"
    "{{ '{{a}}' if add_generation_prompt }}"
)
QUOTES = (
    "{% for m in messages %}{{ m.role + ' {{{' + m.content + '\"\"\"\nSYSTEM x\n\"<|im_end|>' }}{% endfor %}"
    "{{ 'assistant {{{' if add_generation_prompt }}"
)
UNSEEN = (
    "{% for m in messages %}{{ m.role + '\u00a0\u200b\U000e0001\r' + m.content + '\t日<|im_end|>' }}{% endfor %}"
    "{{ 'assistant\u00a0' if add_generation_prompt }}"
)
# Template: its BOS and end, whether the tokenizer adds the BOS, whether it has a place for a system message.
KNOWN: dict[str, tuple[str, str | None, str, bool, bool]] = {
    "chatml": (templates.CHATML, None, "<|im_end|>", False, True),
    "qwen2.5": (templates.QWEN2_5, None, "<|im_end|>", False, True),
    "qwen3": (templates.QWEN3, None, "<|im_end|>", False, True),
    "llama3": (templates.LLAMA3, "<s>", "<|eot_id|>", True, True),
    "llama3.1": (templates.LLAMA3_1, "<s>", "<|eot_id|>", True, True),
    "mistral v1": (templates.MISTRAL_V1, "<s>", "</s>", True, False),
    "gemma": (GEMMA, "<s>", "<|im_end|>", True, True),
    "braces": (BRACES, None, "<|im_end|>", False, True),
    "characters that cannot be seen": (UNSEEN, None, "<|im_end|>", False, True),
    "braces before contents, three quotes after them": (QUOTES, None, "<|im_end|>", False, True),
}
UNKNOWN = {
    "mistral v3 moves the system message": (templates.MISTRAL_V3, "<s>", "</s>", True),
    "llama 2 begins every turn with the BOS": (templates.LLAMA2, "<s>", "</s>", True),
    "contents are cut": (templates.REORDERS, None, "<|im_end|>", False),
}
TALK = [
    {"role": "user", "content": "Hi {{ there }}"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "No."},
]
ORDERS = {"role": "system", "content": "Be brief."}


def _parts(name: str) -> tuple[ChatParts, ChatTemplate, str]:
    template, bos, eos, add_bos, _ = KNOWN[name]
    tokenizer = byte_tokenizer(template, bos, eos, add_bos)
    parts = chat_parts(tokenizer)
    assert parts is not None
    return parts, ChatTemplate(tokenizer), bos or "" if add_bos else ""


@pytest.mark.parametrize("name", KNOWN)
def test_the_template_renders_what_the_models_own_does(name: str) -> None:
    parts, template, bos = _parts(name)
    with_system = KNOWN[name][4]
    assert (parts.system is not None) == with_system
    for talk in (TALK[:1], TALK, *([[ORDERS, *TALK[:1]], [ORDERS, *TALK]] if with_system else [])):
        wanted = template.render(talk, add_generation_prompt=True).removeprefix(bos)
        modelfile.parse(f'FROM a\nTEMPLATE """{parts.go_template()}"""\n')
        plain = replace(parts, tools=None)  # `test_ollama_tools.py` renders those with tools
        [_, told] = modelfile.parse(f'FROM a\nTEMPLATE """{plain.go_template()}"""\n')
        assert parts.render(talk) == wanted
        assert Go(told.value).render(talk) == wanted


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_templates_are_left_to_ollama(name: str) -> None:
    assert chat_parts(byte_tokenizer(*UNKNOWN[name])) is None
    assert chat_parts(byte_tokenizer(None)) is None


class Go:
    """The few actions of Go's templates that are written, by their meaning in its documentation."""

    def __init__(self, text: str) -> None:
        self.pieces = re.split(r"\{\{ (.*?) \}\}", text)  # literal, action, literal ...
        assert all("{{" not in piece and not piece.endswith("{") for piece in self.pieces[::2])

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """As Ollama executes it: .Messages with the system message, and .System."""
        self.messages = messages
        self.system = "\n\n".join(m["content"] for m in messages if m["role"] == "system")
        self.at = 0
        text = self._block({}, True)
        assert self.at >= len(self.pieces)
        return text

    def _block(self, scope: dict[str, Any], live: bool) -> str:
        """Text up to the else or the end of this block, which is not consumed."""
        text = ""
        while self.at < len(self.pieces):
            if self.at % 2 == 0:
                text += self.pieces[self.at] if live else ""
                self.at += 1
                continue
            action = self.pieces[self.at]
            if action.split()[0] in ("else", "end"):
                return text
            self.at += 1
            text += self._action(action, scope, live)
        return text

    def _action(self, action: str, scope: dict[str, Any], live: bool) -> str:
        if action == "range $i, $_ := .Messages":
            start, text = self.at, ""
            for i, message in enumerate(self.messages):
                self.at = start
                text += self._block({"i": i, "message": message}, live)
            self._end()
            return text
        if action.startswith("if "):
            return self._if(action[3:], scope, live)
        if action == "$last := eq (len (slice $.Messages $i)) 1":
            scope["last"] = len(self.messages[scope["i"] :]) == 1
            return ""
        if not live:
            return ""
        if action.startswith('"'):  # in these escapes Go's are Python's
            return str(ast.literal_eval(action))
        return str({".Content": lambda: scope["message"]["content"], "$.System": lambda: self.system}[action]())

    def _if(self, condition: str, scope: dict[str, Any], live: bool) -> str:
        chosen = self._holds(condition, scope) if live else False
        text = self._block(scope, live and chosen)
        while (action := self.pieces[self.at]) != "end":
            self.at += 1
            here = not chosen and (action == "else" or self._holds(action.removeprefix("else if "), scope))
            text += self._block(scope, live and here)
            chosen = chosen or here
        self._end()
        return text

    def _end(self) -> None:
        assert self.pieces[self.at] == "end"
        self.at += 1

    def _holds(self, condition: str, scope: dict[str, Any]) -> bool:
        role = scope.get("message", {}).get("role")
        return bool(
            {
                "not .System": lambda: not self.system,
                "and $.System (eq $i 1)": lambda: self.system and scope["i"] == 1,
                'eq .Role "user"': lambda: role == "user",
                'eq .Role "assistant"': lambda: role == "assistant",
                "not $last": lambda: not scope["last"],
                'and $last (ne .Role "assistant")': lambda: scope["last"] and role != "assistant",
            }[condition]()
        )


def _exported(
    path: Path, out: Path, kind: TensorType | None = None, dora: bool = False
) -> tuple[Any, dict[str, list[str]]]:
    model = models.load(path)
    adapter = LoRA(model, 2, dora=dora)
    rng = np.random.default_rng(0)
    adapter.load_state({name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in adapter.shapes().items()})
    done = FORMATS["ollama"].write(Request(adapter, out, kind))
    found: dict[str, list[str]] = {}
    for name, key, value in modelfile.check_folder(out):
        found.setdefault(f"{name} {key}".strip(), []).append(value)
    return done, found


def test_an_adapter_for_llama_cpps_architectures(tmp_path: Path) -> None:
    path = write_tiny_chat(tmp_path / "tiny chat.gguf")
    done, found = _exported(path, tmp_path / "Poet 2-ollama")
    create, run = done.next.split(" && ")
    assert shlex.split(create) == ["ollama", "create", "poet-2", "-f", str(tmp_path / "Poet 2-ollama/Modelfile")]
    assert shlex.split(run) == ["ollama", "run", "poet-2"]
    assert found["FROM"] == [str(path)]
    assert found["ADAPTER"] == ["./adapter.gguf"]
    assert found["PARAMETER stop"] == ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]
    assert found["PARAMETER num_ctx"] == ["512"]
    assert Go(found["TEMPLATE"][0]).render(TALK[:1]) == (
        "<|im_start|>user\nHi {{ there }}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert formats.load(models.load(path), tmp_path / "Poet 2-ollama" / "adapter.gguf").rank == 2
    assert any("Ollama applies the adapter to the base model's file" in note for note in done.notes)


@pytest.mark.parametrize("kind", [None, TensorType.Q8_0])
def test_a_merged_model_where_ollama_applies_no_adapters(tmp_path: Path, kind: TensorType | None) -> None:
    config = tiny(TINY_QWEN3, vocab_size=259)
    path = write_tiny(tmp_path / "m.gguf", config, metadata=byte_level_metadata())
    done, found = _exported(path, tmp_path / "out", kind)
    assert found["FROM"] == ["./model.gguf"]
    assert "ADAPTER" not in found
    merged = models.load(tmp_path / "out" / "model.gguf").layer(0).matrices["q_proj"]
    assert merged.type is (TensorType.F32 if kind is None else kind)
    assert any("Ollama's engine for qwen3 cannot apply adapters" in note for note in done.notes)


def test_a_merged_model_because_a_type_was_named(tmp_path: Path) -> None:
    done, found = _exported(write_tiny_chat(tmp_path / "m.gguf"), tmp_path / "out", TensorType.F16)
    assert found["FROM"] == ["./model.gguf"]
    assert "--type was given; without it, Ollama applies the adapter" in done.notes[0]


def test_a_merged_model_because_llama_cpp_knows_no_dora(tmp_path: Path) -> None:
    done, found = _exported(write_tiny_chat(tmp_path / "m.gguf"), tmp_path / "out", dora=True)
    assert found["FROM"] == ["./model.gguf"]
    assert "ADAPTER" not in found
    assert done.notes[0] == "merged: Ollama cannot apply DoRA"


@pytest.mark.parametrize("name", ["two words", "100 % #1 (copy)", "it's", "модель é 日"])
def test_paths_that_a_modelfile_can_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    path = write_tiny_chat(tmp_path / name / f"{name}.gguf")
    assert _exported(path, tmp_path / name / "out")[1]["FROM"] == [str(path)]


@pytest.mark.parametrize("name", ['a"b.gguf', "a\nb.gguf", "a.gguf "])
def test_what_a_modelfile_cannot_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(FeatherbackError, match="A Modelfile cannot name"):
        _exported(write_tiny_chat(tmp_path / name), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_the_modelfile_of_every_family(tmp_path: Path, config: ModelConfig) -> None:
    """The Modelfile follows the documented grammar, its files exist, and its template renders the same text."""
    path = write_tiny(tmp_path / "m.gguf", tiny(config, vocab_size=259), metadata=byte_level_metadata())
    _, found = _exported(path, tmp_path / "out")
    assert ("ADAPTER" in found) == (config.architecture not in OWN_ENGINE)
    assert found["PARAMETER stop"][:2] == ["<|endoftext|>", "<|im_end|>"]
    assert Go(found["TEMPLATE"][0]).render([ORDERS, *TALK[:1]]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi {{ there }}<|im_end|>\n<|im_start|>assistant\n"
    )


FAULTS = {
    "no base": (("FROM ", "# FROM "), "there is no FROM"),
    "two bases": (("FROM ", "FROM x\nfrom "), "there are several FROM"),
    "a base that is not there": (("/m.gguf", "/n.gguf"), "FROM names .*n.gguf', which is no file"),
    "an adapter that is not there": (("./adapter", "./adaptor"), "ADAPTER names './adaptor.gguf', which is no"),
    "an unknown instruction": (("TEMPLATE", "TEMPLATES"), "line 3: 'TEMPLATES .* is no instruction"),
    "no space": (("PARAMETER stop", "PARAMETER_stop"), "is no instruction"),
    "an unknown parameter": (("PARAMETER stop", "PARAMETER stopp"), "there is no parameter 'stopp'"),
    "a number that is none": (("num_ctx 512", "num_ctx 512.5"), "num_ctx cannot be '512.5'"),
    "a parameter without a value": (("num_ctx 512", "num_ctx"), "nothing is given"),
    "a quote that is open": (('"<|im_end|>"', '"<|im_end|>'), "a quote is not closed"),
    "something behind a quote": (('"<|im_end|>"', '"<|im_end|>" x'), "'x' stands behind the closing quotes"),
    "three quotes that are open": (('{{ end }}"""', "{{ end }}"), "three quotes are not closed"),
    "three quotes within": (("<|im_start|>user", '"""<|im_start|>user'), "stands behind the closing quotes"),
    "one quote before the last": (('{{ end }}"""', '{{ end }}""""'), "'\"' stands behind the closing quotes"),
    "an action that is open": (("{{ .Content }}", "{{ .Content }"), "an action of the template is not closed"),
    "a block without its end": (('{{ end }}"""', '"""'), "a block of the template has no end"),
    "an end too many": (('{{ end }}"""', '{{ end }}{{ end }}"""'), "{{ end }} outside of a block"),
    "a character that is dropped": (("<|im_start|>user", "\u200b<|im_start|>user"), "drops the character"),
    "an unknown role": (("PARAMETER num_ctx", "MESSAGE bot 1\nPARAMETER num_ctx"), "there is no role 'bot'"),
    "no version": (("PARAMETER num_ctx", "REQUIRES new\nPARAMETER num_ctx"), "'new' is no version"),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    _exported(write_tiny_chat(folder / "m.gguf"), folder / "out")
    return folder / "out"


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_of_a_modelfile_are_caught(tmp_path: Path, good: Path, fault: str) -> None:
    (right, wrong), complaint = FAULTS[fault]
    file = Path(shutil.copytree(good, tmp_path / "out")) / "Modelfile"
    text = file.read_text()
    assert right in text
    file.write_text(text.replace(right, wrong, 1))
    with pytest.raises(modelfile.ModelfileError, match=complaint):
        modelfile.check_folder(tmp_path / "out")


def test_what_the_documentation_shows_is_read() -> None:
    """Any case, any order, comments, texts over lines, messages."""
    text = """\
# to build on
PARAMETER stop "AI assistant:"
from llama3.2
  parameter temperature 1
SYSTEM You are Mario from super mario bros, acting as an assistant.
LICENSE \"\"\"
PARAMETER of a license
\"\"\"

MESSAGE user Is Toronto in Canada?
MESSAGE assistant yes
REQUIRES 0.14.0"""
    assert [tuple(each) for each in modelfile.parse(text)] == [
        ("PARAMETER", "stop", "AI assistant:"),
        ("FROM", "", "llama3.2"),
        ("PARAMETER", "temperature", "1"),
        ("SYSTEM", "", "You are Mario from super mario bros, acting as an assistant."),
        ("LICENSE", "", "\nPARAMETER of a license\n"),
        ("MESSAGE", "user", "Is Toronto in Canada?"),
        ("MESSAGE", "assistant", "yes"),
        ("REQUIRES", "", "0.14.0"),
    ]
