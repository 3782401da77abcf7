"""`featherback chat`"""

from __future__ import annotations

import re
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from featherback.cli.options import (
    ADAPTER,
    COMPUTE,
    KV,
    LOOKUP,
    MEMORY,
    MIN_P,
    MODEL,
    SEED,
    TOP_K,
    decode_option,
    temperature_option,
    top_p_option,
)
from featherback.cli.parameters import of_training
from featherback.core.options import option
from featherback.core.terminal import OutputError, print_error, quoted, say
from featherback.errors import FeatherbackError
from featherback.infer import ANSWER_TOKENS, CHAT_DECODE, CONTEXT, TEMPERATURE, TOP_P

if TYPE_CHECKING:
    from featherback.engine.host.maps import MapWatch
    from featherback.infer.conversation import Conversation

_NEW, _HELP, _QUIT = ("/reset", "/new"), ("/help", "/?"), ("/quit", "/exit", "/bye")
_COMMANDS = {
    _NEW: "start a new conversation",
    _HELP: "show this list",
    _QUIT: "end the chat, like an empty line or Ctrl-D",
}
_COMMAND = re.compile(r"/(\w+|\?)")


def chat(
    model: str = MODEL,
    adapter: Path | None = ADAPTER,
    system: str | None = option(None, metavar="TEXT", help="System message of the conversation."),
    max_tokens: int = option(ANSWER_TOKENS, help="Maximum length of an answer in tokens.", least=1),
    context: int = option(CONTEXT, help="Maximum length of the conversation in tokens.", least=1),
    temperature: float = temperature_option(TEMPERATURE),
    top_p: float = top_p_option(TOP_P),
    top_k: int = TOP_K,
    min_p: float = MIN_P,
    seed: int = SEED,
    decode: str = decode_option(CHAT_DECODE),
    kv: str = KV,
    lookup: bool = LOOKUP,
    memory: int | str | None = MEMORY,
    quantize: str = of_training(),
    compute: str = COMPUTE,
    threads: int | None = of_training(),
) -> int:
    """Chat with MODEL, with or without an adapter.

    Ctrl-C stops an answer. An empty line or Ctrl-D ends the chat. /help lists the commands.

    Lines from a pipe are answered one by one until the input ends. Empty lines are skipped.
    """
    from featherback.cli.options import check_adapter, open_model, set_threads
    from featherback.data.templates.chat import NoTemplateError
    from featherback.data.tokenizers.loader import load_tokenizer
    from featherback.engine.host.maps import MapWatch
    from featherback.infer.sampler import Sampler
    from featherback.model import conversation
    from featherback.runs.compute import resolve_compute
    from featherback.runs.decoders import Within

    sampler = Sampler(temperature, top_p, top_k, seed, min_p)
    opened, _ = open_model(model, quantize=quantize)
    check_adapter(opened, adapter)
    within = Within(memory, whole=True, decode=decode, kv=kv, lookup=lookup)
    set_threads(threads)
    compute = resolve_compute(compute, model, adapter)
    failed = False
    with MapWatch(opened.maps) as maps:
        tokenizer = load_tokenizer(opened.path)
        try:
            talk = conversation(opened, tokenizer, sampler, context, adapter, system, compute, within)
        except NoTemplateError as error:
            raise FeatherbackError(_no_template_message(model, adapter, quantize)) from error
        ending = "An empty line" if sys.stdin.isatty() else "The end of the input"
        say(f"{ending} ends the chat. /help lists all commands.", file=sys.stderr)
        while (text := _next_line()) and (command := text.lower()) not in _QUIT:
            if command in _NEW:
                talk.reset()
            elif command in _HELP:
                _help()
            elif _COMMAND.fullmatch(text):
                print_error(f"unknown command {text}. /help lists all commands.")
            else:
                failed |= not _answer(talk, text, max_tokens, maps)
    return 2 if failed else 0


def _no_template_message(model: str, adapter: Path | None, quantize: str) -> str:
    """The error for a base model that cannot chat, with a command that continues text instead."""
    from featherback.models.converted import NONE

    named = [*([] if quantize == NONE else ["--quantize", quantize]), *(["--adapter", adapter] if adapter else [])]
    instead = quoted("featherback", "generate", model, *named, "--raw", "--prompt", "Once upon a time")
    return (
        f"{model} has no chat template: it is a base model, which continues text and cannot chat. To continue a text: "
        f"{instead}"
    )


def _answer(talk: Conversation, text: str, max_tokens: int, maps: MapWatch) -> bool:
    """Print the answer, which Ctrl-C stops. False if it failed; the conversation continues with the next line."""
    from featherback.engine.host.interrupt import Interrupt

    try:
        with Interrupt(signals=(signal.SIGINT,)) as interrupt:
            for piece in talk.answer(text, max_tokens, interrupt.check):
                maps.check()
                say(piece, end="", flush=True)
    except OutputError:
        raise
    except FeatherbackError as error:
        maps.check()  # without the model there is nothing to continue
        print_error(f"error: {error}")
        return False
    say()
    return True


def _help() -> None:
    for names, text in _COMMANDS.items():
        say(f"  {', '.join(names):<20}{text}", file=sys.stderr)
    say(f"  {'Ctrl-C':<20}stop the answer; at the prompt: end the chat", file=sys.stderr)


def _next_line() -> str:
    """The user's next line; empty at the end of the input. On a terminal an empty line is the end."""
    if not sys.stdin.isatty():
        return next((text for line in sys.stdin if (text := line.strip())), "")
    with suppress(ImportError):
        import readline  # noqa: F401  (arrow keys and a history)
    try:
        return input("> ").strip()
    except EOFError:
        return ""
    except KeyboardInterrupt:
        say()
        raise
