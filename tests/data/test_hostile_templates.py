"""A chat template with an endless loop, or one that fills the memory, ends with an error that names its file."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from featherback.core.system import pipes
from featherback.data.preview import preview
from featherback.data.templates.chat import ChatTemplate
from featherback.data.templates.renderer import Renderer
from featherback.errors import FeatherbackError
from tests.data.support import byte_tokenizer
from tests.support.tiers import some
from tests.support.tiny_chat import write_tiny_chat

RENDERER = Renderer()
DOUBLED = "{% set n = namespace(x='ab') %}{% for i in range(60) %}"
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
NESTED = "".join(f"{{% for a{i} in range(99999) %}}" for i in range(5)) + "{% endfor %}" * 5

# name: template, words of the error
HOSTILE = {
    "repeated text": ("{{ 'a' * 10**9 }}", "memory"),
    "repeated text in a constant": ("{% set x = 'a' * 10**9 %}", "memory"),
    "a filter's width": ("{{ 'a' | center(10**9) }}", "memory"),
    "a method's width": ("{{ 'a'.ljust(10**9) }}", "memory"),
    "a format's width": ("{{ '%1000000000d' | format(1) }}", "memory"),
    "a list": ("{% set x = [0] * 10**9 %}", "memory"),
    "a power": ("{% set x = 7 ** (9 ** 9) %}", "memory|CPU time"),
    "doubled text": (DOUBLED + "{% set n.x = n.x ~ n.x %}{% endfor %}", "memory"),
    "doubled blocks": (DOUBLED + "{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}", "memory"),
    "doubled lists": (DOUBLED + "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}", "memory|CPU time"),
    "much output": ("{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}", "too much text|memory"),
    "nested loops": (NESTED, "CPU time"),
    "a macro that calls itself": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "too deeply"),
    "a macro that doubles": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(99) }}",
        "CPU time",
    ),
    "parentheses": ("{{ " + "(" * 2000 + "1" + ")" * 2000 + " }}", "too deeply"),
    "loops in loops": ("{% if 1 %}" * 3000 + "{% endif %}" * 3000, "too deeply|nested"),
    "a long template": ("x" * (1 << 20) + "{{ 1 }}", "1048583 characters"),
    "the system": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "rejects|fails"),
    "an exception's text": ("{{ raise_exception('a' * 9999) }}", "rejects this conversation: a{300}$"),
}


def chat(template: str) -> ChatTemplate:
    tokenizer = byte_tokenizer(template)
    tokenizer.template_source = "The chat template of somewhere/model.gguf"
    return ChatTemplate(tokenizer, RENDERER)


@pytest.mark.parametrize(
    "name", some(sorted(HOSTILE, key=["doubled lists", "a macro that doubles"].__contains__), len(HOSTILE) - 2)
)
def test_it_is_refused_in_a_sentence(name: str) -> None:
    template, says = HOSTILE[name]
    with pytest.raises(FeatherbackError, match=says) as refusal:
        chat(template).training([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    assert str(refusal.value).startswith("The chat template of somewhere/model.gguf ")
    assert len(str(refusal.value).splitlines()) == 1
    if RENDERER._process is not None and sys.platform == "linux":
        status = Path(f"/proc/{RENDERER._process.pid}/status").read_text()
        assert int(status.partition("VmHWM:")[2].split()[0]) < 100_000  # KB


def test_a_long_conversation_is_no_attack() -> None:
    """The limits grow with the size of the request."""
    said = "word " * 400_000
    text = chat("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}").render(
        [{"role": "user", "content": said}]
    )
    assert text == said + "<|im_end|>"


def test_the_next_template_is_rendered_all_the_same() -> None:
    with pytest.raises(FeatherbackError):
        chat(NESTED).render([{"role": "user", "content": "a"}])
    assert chat("{{ messages[0].content }}").render([{"role": "user", "content": "é\ud800"}]) == "é\ud800"


def test_inspecting(tmp_path: Path) -> None:
    """The error names the model, and a preview does not start a rendering that never ends."""
    model = write_tiny_chat(tmp_path / "hostile.gguf", {"tokenizer.chat_template": HOSTILE["a list"][0]})
    (tmp_path / "d.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    with pytest.raises(FeatherbackError, match=r"line 1: The chat template of .*hostile.gguf needs too much memory"):
        preview(model, tmp_path / "d.jsonl")


def test_the_process_ends_with_its_owner() -> None:
    code = (
        "import os, sys; from featherback.data.templates.renderer import Renderer\n"
        "renderer = Renderer(); renderer.render('a', {}, 'It', [([], False)])\n"
        "print(renderer._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    owner = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    assert owner.returncode == -signal.SIGKILL
    pid = int(owner.stdout)
    for _ in range(600):  # its standard input ends
        if not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
            return
        subprocess.run(["sleep", "0.1"], check=True)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the process outlived its owner")


def test_ctrl_c_is_the_owners() -> None:
    renderer = Renderer()
    assert renderer.render("a", {}, "It", [([], False)]) == ["a"]
    assert renderer._process is not None
    renderer._process.send_signal(signal.SIGINT)
    assert renderer.render("b", {}, "It", [([], False)]) == ["b"]


def test_requests_behind_the_one_that_ends_the_process_are_answered() -> None:
    """Of several requests sent ahead, only the one that exceeds a limit fails."""
    renderer = Renderer()
    template = "{% if messages %}" + ENDLESS + "{% endif %}ok"
    asked = [renderer.ask(template, {}, "It", [(messages, False)]) for messages in ([], [{}], [], [])]
    assert renderer.take(asked[3], "It") == ["ok"]
    assert renderer.take(asked[0], "It") == ["ok"]
    with pytest.raises(FeatherbackError, match="CPU time"):
        renderer.take(asked[1], "It")
    assert renderer.take(asked[2], "It") == ["ok"]


def test_a_template_that_ends_process_after_process_is_given_up() -> None:
    """Earlier, each of many conversations could use up its CPU time."""
    renderer = Renderer()
    asked = [renderer.ask(ENDLESS, {}, "It", [([], False)]) for _ in range(40)]
    for number in asked:
        with pytest.raises(FeatherbackError, match="It needs more than 1 s of CPU time"):
            renderer.take(number, "It")
    assert renderer._ends == 3
    assert renderer._process is None
    with pytest.raises(FeatherbackError, match="It needs more than 1 s"):
        renderer.ask(ENDLESS, {}, "It", [([], False)])
    assert renderer._process is None
    assert renderer.render("a", {}, "It", [([], False)]) == ["a"]


def test_a_process_that_cannot_load_the_template_again_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    renderer = Renderer()
    template = "{% if messages %}" + ENDLESS + "{% endif %}ok"
    asked = [renderer.ask(template, {}, "It", [(messages, False)]) for messages in ([{}], [], [])]
    renderer._loading = renderer._loading.replace(b"{% if", b"{% fi")
    with pytest.raises(FeatherbackError, match="CPU time"):
        renderer.take(asked[0], "It")
    for number in asked[1:]:
        with pytest.raises(FeatherbackError, match="It has an error in line 1"):
            renderer.take(number, "It")
    assert renderer.render("a", {}, "It", [([], False)]) == ["a"]


def test_more_files_may_be_open_than_select_can_watch() -> None:
    """`select` fails for file descriptors of 1,024 and more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, limits[1]), limits[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert Renderer().render("a", {}, "It", [([], False)]) == ["a"]
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_process_that_never_starts_well_is_not_started_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process crashes on a request, and its successors while loading. All waiting requests must fail."""
    start, started = Renderer._start, []

    def failing(self: Renderer) -> pipes.Talk:
        talk = start(self)
        started.append(talk)
        assert self._process is not None
        if len(started) > 1:
            self._process.kill()
        return talk

    monkeypatch.setattr(Renderer, "_start", failing)
    renderer = Renderer()
    template = "{% if messages %}" + ENDLESS + "{% endif %}ok"
    asked = [renderer.ask(template, {}, "It", [(messages, False)]) for messages in ([{}], [])]
    with pytest.raises(FeatherbackError, match="CPU time"):
        renderer.take(asked[0], "It")
    with pytest.raises(FeatherbackError, match="It fails on this conversation: its process ended"):
        renderer.take(asked[1], "It")
    assert len(started) == 2
