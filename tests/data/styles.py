"""Chat templates for the tests, which do what published ones do around an answer.

Each is a few lines of its own. What matters is how the text before an answer differs between the prompt, the
conversation with the answer, and later turns.
"""

from __future__ import annotations

from typing import NamedTuple


class Style(NamedTuple):
    """The text around an answer, in a template with ChatML's roles."""

    prompt: str
    """What the prompt ends with."""
    answer: str = "<|im_start|>assistant\n{{ said }}<|im_end|>\n"
    """The last answer. `said` is its content or its call, `m` the message."""
    earlier: str | None = None
    """An answer that is not the last; None if it is written like the last."""
    before: str = ""
    """At the start of the conversation."""


_START = "<|im_start|>assistant\n"
STYLES = {
    "the same": Style(_START),
    "opens its thoughts": Style(_START + "<think>\n"),
    "opens its thoughts on one line": Style(_START + "<think>"),
    "closes its thoughts": Style(_START + "<think>\n\n</think>\n\n"),
    "closes its thoughts and repeats the end": Style(
        _START + "<think></think>", "<|im_start|>assistant\n</think>{{ said }}<|im_end|>\n"
    ),
    "opens what the answer only closes": Style(
        _START + "<think>", "<|im_start|>assistant\n</think>{{ said }}<|im_end|>\n"
    ),
    "writes empty thoughts in another way": Style(
        _START + "<think>\n", "<|im_start|>assistant\n<think></think>{{ said }}<|im_end|>\n"
    ),
    "names what follows": Style(
        _START + "<|START_THINKING|><|END_THINKING|>",
        "<|im_start|>assistant\n<|START_RESPONSE|>{{ said }}<|END_RESPONSE|><|im_end|>\n",
    ),
    "opens thoughts and names what follows": Style(
        _START + "<|START_THINKING|>", "<|im_start|>assistant\n<|START_TEXT|>{{ said }}<|END_TEXT|><|im_end|>\n"
    ),
    "a channel": Style(_START + "<|channel>thought\n<channel|>"),
    "an instruction at the end": Style("<|im_start|>system\nWrite in English.<|im_end|>\n" + _START),
    "a line break before the answer": Style(_START, "{{ '\n' }}<|im_start|>assistant\n{{ said }}<|im_end|>\n"),
    "trims": Style(_START, "<|im_start|>assistant\n{{ said | trim }}<|im_end|>\n"),
    "another end before the last": Style(
        _START, "<|im_start|>assistant\n{{ said }}<|return|>", "<|im_start|>assistant\n{{ said }}<|im_end|>\n"
    ),
    "thoughts only in the last": Style(
        _START,
        "<|im_start|>assistant\n<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{{ said }}<|im_end|>\n",
        "<|im_start|>assistant\n{{ said }}<|im_end|>\n",
    ),
    "thoughts by another name": Style(
        _START, "<|im_start|>assistant\n{% if m.thinking %}[T]{{ m.thinking }}[/T]{% endif %}{{ said }}<|im_end|>\n"
    ),
    "the date": Style(_START, before="<|im_start|>system\nToday is {{ strftime_now('%d %B %Y') }}.<|im_end|>\n"),
    "a space before the answer": Style("<|im_start|>assistant:", "<|im_start|>assistant: {{ said }}<|im_end|>\n"),
    "ids of nine characters": Style(
        _START,
        "{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('ids of 9') }}{% endif %}"
        "{% endfor %}<|im_start|>assistant\n{{ said }}<|im_end|>\n",
    ),
}


def template_of(style: Style) -> str:
    """Return the template of a style."""
    before, prompt = style.before, style.prompt.replace("\n", "\\n")
    return (
        f"{before}{{% if tools %}}<|im_start|>system\nTools: {{{{ tools | tojson }}}}<|im_end|>\n{{% endif %}}"
        "{% for m in messages %}{% if m.role == 'assistant' %}{% set said %}{{ m.content }}"
        "{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}{% endset %}"
        f"{{% if loop.last %}}{style.answer}{{% else %}}{style.earlier or style.answer}{{% endif %}}"
        "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        f"{{% if add_generation_prompt %}}{{{{ '{prompt}' }}}}{{% endif %}}"
    )
